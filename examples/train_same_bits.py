"""Trains to the same bits on any number of ranks, whoever is late: M microbatches are shared out.

LATECOMER_HASHES=four torchrun --standalone --nproc-per-node 4 examples/train_same_bits.py
LATECOMER_HASHES=two torchrun --standalone --nproc-per-node 2 examples/train_same_bits.py
latecomer compare-bits four two
"""

import argparse
import contextlib
import hashlib

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from latecomer import ddp

parser = argparse.ArgumentParser()
parser.add_argument("--checkpoint", help="save one here after half of the steps")
parser.add_argument("--resume", help="go on from this checkpoint")
parser.add_argument("--dropout-by-rank", action="store_true", help="a mistake, to be found")
arguments = parser.parse_args()

M = 4  # microbatches in a step, over all ranks
SAMPLES = 8  # in a microbatch
STEPS = 20

torch.use_deterministic_algorithms(True)
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
ranks = dist.get_world_size()
torch.manual_seed(0)
data = torch.randn(M * SAMPLES * STEPS, 20)
net = torch.nn.Sequential(
    torch.nn.Linear(20, 32), torch.nn.Tanh(), torch.nn.Dropout(0.1), torch.nn.Linear(32, 4)
)
model = DistributedDataParallel(net)
attachment = ddp.attach(model, mode="auto", bits="same", contributions=M)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

first_step = 0
if arguments.resume:
    state = torch.load(arguments.resume)
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    attachment.same_bits.load_state_dict(state["same_bits"])
    first_step = state["step"]

for step in range(first_step, STEPS):
    mine = range(rank, M, ranks)
    for number in mine:
        position = step * M + number  # of the microbatch, whichever rank has it
        inputs = data[position * SAMPLES : (position + 1) * SAMPLES]
        attachment.note_input(inputs, microbatch=number)
        torch.manual_seed(position)  # for dropout
        if arguments.dropout_by_rank:
            torch.manual_seed(rank)
        is_last = number == mine[-1]
        with contextlib.nullcontext() if is_last else model.no_sync():
            loss = (model(inputs) - inputs[:, :4]).square().mean()
            loss.backward()
    optimizer.step()
    optimizer.zero_grad()

    if arguments.checkpoint and step + 1 == STEPS // 2 and rank == 0:
        state = {
            "model": model.module.state_dict(),
            "optimizer": optimizer.state_dict(),
            "same_bits": attachment.same_bits.state_dict(),
            "step": step + 1,
        }
        torch.save(state, arguments.checkpoint)

if rank == 0:
    digest = hashlib.blake2b(digest_size=8)
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    print(f"{ranks} rank(s): parameters {digest.hexdigest()}")
attachment.close()
dist.destroy_process_group()
