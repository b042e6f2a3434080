"""The smallest training script that finds out who is late: one line of it is ours.

torchrun --standalone --nproc-per-node 4 examples/train_auto.py
"""

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from latecomer import ddp, watch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(2000, 1000))
attachment = ddp.attach(model, mode="auto")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

torch.manual_seed(1 + rank)
with watch() as watched:
    for _ in range(40):
        inputs = torch.randn(32, 2000)
        optimizer.zero_grad()
        loss = (model(inputs) - inputs[:, :1000]).square().mean()
        if rank == 2:
            time.sleep(0.05)  # a rank is late
        loss.backward()
        optimizer.step()

if rank == 0:
    print(f"loss {loss.item():.1e}\n{watched.summary()}")
    watched.write_trace("trace.json")  # for: latecomer watch --html run.html trace.json
attachment.close()
dist.destroy_process_group()
