"""The smallest training script, by the process group backend: two lines are ours.

    synth generate --n 4
    LATECOMER_SCHEDULE=schedule.json \\
        torchrun --standalone --nproc-per-node 4 examples/train_backend.py
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from latecomer.runtime.backend import LatecomerGroup

dist.init_process_group("latecomer")  # line 2: in place of "gloo" or "nccl"
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(10, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

torch.manual_seed(1 + rank)
for _ in range(100):
    inputs = torch.randn(32, 10)
    optimizer.zero_grad()
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()

if rank == 0:
    group = dist.group.WORLD
    assert isinstance(group, LatecomerGroup)
    print(f"loss {loss.item():.1e}; all-reduces: {dict(group.paths)}")
dist.destroy_process_group()
