"""The smallest training script, by the communication hook: two lines are ours.

synth generate --n 4
torchrun --standalone --nproc-per-node 4 examples/train_hook.py
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from latecomer import ddp  # line 1

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(10, 1))
attachment = ddp.attach(model, "schedule.json")  # line 2
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

torch.manual_seed(1 + rank)
for _ in range(100):
    inputs = torch.randn(32, 10)
    optimizer.zero_grad()
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()

if rank == 0:
    done = attachment.executor.entered
    print(f"loss {loss.item():.1e} after {done} all-reduces by schedule.json")
attachment.close()
dist.destroy_process_group()
