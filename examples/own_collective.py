"""All-reduces of one's own, without a process group: an executor that runs a schedule file.

synth generate --n 4
torchrun --standalone --nproc-per-node 4 examples/own_collective.py
"""

import os

import torch
import torch.distributed as dist

from latecomer import Executor, load

rank = int(os.environ["RANK"])
size = int(os.environ["WORLD_SIZE"])
torchrun_store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
store = dist.PrefixStore("own", torchrun_store)  # a prefix that nothing else uses
executor = Executor(load("schedule.json"), store, rank, size, timeout_s=60)

tensors = [torch.full((1000,), float(rank + number)) for number in range(3)]
works = [executor.submit(tensor, late=number) for number, tensor in enumerate(tensors)]
sums = [work.wait()[0].item() for work in works]  # submitted at once, waited for one by one
if rank == 0:
    print(f"sums {sums}")
executor.close()
