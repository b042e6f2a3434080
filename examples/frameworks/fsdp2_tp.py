"""FSDP2, HSDP and tensor parallelism as torchtitan composes them, on the backend.

LATECOMER_MODE=auto torchrun --standalone --nproc-per-node 4 examples/frameworks/fsdp2_tp.py

torchtitan has no option for a backend: it asks torch for the one of the device.
"""

import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import latecomer.runtime  # noqa: F401  (registers the backend)

dist.Backend.default_device_backend_map["cpu"] = "latecomer"
dist.init_process_group()


class Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = torch.nn.Linear(width, 2 * width)
        self.down = torch.nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


def build(shape: tuple[int, ...], names: tuple[str, ...]) -> torch.nn.Module:
    """A model on a mesh with some of the dimensions replicate, shard and tp."""
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    torch.manual_seed(0)
    model = torch.nn.Sequential(Block(16), Block(16))
    if "tp" in names:
        for block in model:
            plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
            parallelize_module(block, mesh["tp"], plan)
    data = mesh[tuple(name for name in names if name != "tp")]
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
    for layer in (*model, model):
        fully_shard(layer, mesh=data, mp_policy=policy)
    return model


def train(model: torch.nn.Module, data_rank: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    torch.manual_seed(1 + data_rank)
    for _ in range(6):
        inputs = torch.randn(8, 16)
        loss = (model(inputs) - inputs.flip(1)).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
    if dist.get_rank() == 0:
        print(f"loss {mean.item():.3f}")


rank = dist.get_rank()
fsdp = build((4,), ("shard",))
train(fsdp, rank)
hsdp = build((2, 2), ("replicate", "shard"))
train(hsdp, rank)
replicas = build((4, 1), ("replicate", "shard"))
train(replicas, rank)
both = build((2, 2), ("shard", "tp"))
train(both, rank // 2)  # ranks of one tp group see the same data
three = build((2, 1, 2), ("replicate", "shard", "tp"))
train(three, rank // 2)
model = torch.nn.ModuleList([fsdp, hsdp, replicas, both, three])

folder = [tempfile.mkdtemp() if rank == 0 else None]
dist.broadcast_object_list(folder)
state = get_model_state_dict(hsdp)
saved = {name: value.clone() for name, value in state.items()}
dcp.save(state, checkpoint_id=folder[0])
for value in state.values():
    value.zero_()
dcp.load(state, checkpoint_id=folder[0])
for name, value in state.items():
    assert torch.equal(value.to_local(), saved[name].to_local()), name

if rank == 0:
    print(f"all-reduces: {dict(dist.group.WORLD.paths)}")
dist.destroy_process_group()
