"""Hybrid sharding (FSDP2) whose replicate dimension runs on the backend: one line is ours.

LATECOMER_MODE=auto torchrun --standalone --nproc-per-node 4 examples/train_hsdp.py
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import latecomer.runtime  # noqa: F401  (registers the backend)

dist.init_process_group("gloo")
rank = dist.get_rank()
size = dist.get_world_size()
mesh = init_device_mesh(
    "cpu",
    (size, 1),  # replicas, shards
    mesh_dim_names=("replicate", "shard"),
    backend_override={"replicate": "latecomer"},  # ours
)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(100, 200), torch.nn.ReLU(), torch.nn.Linear(200, 10))
fully_shard(model, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

torch.manual_seed(1 + rank)
for _ in range(20):
    inputs = torch.randn(32, 100)
    optimizer.zero_grad()
    loss = (model(inputs) - inputs[:, :10]).square().mean()
    loss.backward()
    optimizer.step()

if rank == 0:
    group = mesh.get_group("replicate")
    print(f"loss {loss.item():.1e}; all-reduces: {dict(group.paths)}")
dist.destroy_process_group()
