"""The sum is right whichever rank is late: each in turn sleeps before an all-reduce.

synth generate --n 4
torchrun --standalone --nproc-per-node 4 examples/late_rank.py
"""

import time

import torch
import torch.distributed as dist

from latecomer import configure

configure("schedule.json")
dist.init_process_group("latecomer")
rank = dist.get_rank()
size = dist.get_world_size()
group = dist.group.WORLD


def all_reduce(late: int) -> str:
    """One all-reduce, to which rank ``late`` comes after all others; whether it was right."""
    mine = torch.arange(250_000) * (rank + 1)  # integers: the sum is exact
    expected = torch.arange(250_000) * (size * (size + 1) // 2)
    dist.barrier()
    if rank == late:
        time.sleep(0.2)
    dist.all_reduce(mine)
    right = [None] * size
    dist.all_gather_object(right, torch.equal(mine, expected))
    return f"rank {late} is late: the sum is right on {sum(right)} of {size} ranks"


for late in range(size):
    group.late = late  # set to the same on all ranks
    said = all_reduce(late)
    if rank == 0:
        print(said)
group.late = 3
said = all_reduce(late=0)
if rank == 0:
    print(f"the schedule is told rank 3, but {said}")
    print(f"all-reduces: {dict(group.paths)}")
dist.destroy_process_group()
