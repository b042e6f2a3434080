"""Training has the same bits: whoever is late, in every mode, and on however many ranks."""

from __future__ import annotations

import hashlib
import random
import time

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from latecomer import synth
from latecomer.runtime import ddp
from latecomer.runtime.policy.cost_model import AlphaBeta, Profile
from latecomer.verify.errors import ArgumentError, LatecomerError
from tests.runtime.spawning import on_ranks, spawn, values

STEPS = 6
MICROBATCHES = 4
FEATURES = 40
LATE_S = 0.004


def profile(ranks):
    """By it, schedules are worth it however small the buffer."""
    return Profile(ranks, native=AlphaBeta(1e-2, 1e-9), schedule=AlphaBeta(1e-5, 1e-10))


class Net(torch.nn.Module):
    """Two layers, and one that only some microbatches use."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(FEATURES, 70)
        self.sometimes = torch.nn.Linear(70, 70)
        self.last = torch.nn.Linear(70, 3)

    def forward(self, x, uses_all=True):
        x = torch.tanh(self.first(x))
        if uses_all:
            x = torch.tanh(self.sometimes(x))
        return self.last(x)


def microbatch(step, number):
    """Inputs and targets of a microbatch, whoever has it; some are a hundred times as large."""
    generator = torch.Generator().manual_seed(1000 * step + number)
    x = torch.randn(5, FEATURES, generator=generator)
    if step == 3 and number == 1:
        x = x * 100
    return x, torch.randn(5, 3, generator=generator)


def train(rank, size, store, attach, *, name, buckets_mb=25.0, seed=None, shares=None, **of_model):
    """The hash of all parameters after some steps; ``shares``: by rank, its microbatches."""
    if not dist.is_initialized():
        dist.init_process_group(
            "gloo", store=dist.PrefixStore("pg", store), rank=rank, world_size=size
        )
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = DistributedDataParallel(Net(), bucket_cap_mb=buckets_mb, **of_model)
    attachment = attach(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    dice = random.Random(f"{name} {seed}")
    shares = shares or [[number] for number in range(size)]
    uses_all = not of_model.get("find_unused_parameters", False)
    for step in range(STEPS):
        late = dice.randrange(size)
        if seed is not None and rank == late:
            time.sleep(LATE_S * dice.random())
        for number in shares[rank]:
            x, y = microbatch(step, number)
            with_all = uses_all or number % 2 == 0
            if number == shares[rank][-1]:
                ((model(x, with_all) - y) ** 2).mean().backward()
            else:
                with model.no_sync():
                    ((model(x, with_all) - y) ** 2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    repeated = attachment.same_bits.repeated if attachment is not None else 0
    if attachment is not None:
        attachment.close()
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()[:12], repeated


def ways(ranks):
    """Name -> what attaches."""
    modes = {
        "native": {"mode": "native"},
        "off": {"mode": "off"},
        "static": {"mode": "static", "late": 1},
        "predict": {"mode": "predict"},
        "eager": {"mode": "eager", "threshold_s": 0.0},
        "auto": {"mode": "auto"},
    }
    made = {}
    for name, options in modes.items():
        made[name] = lambda model, options=options: ddp.attach(
            model, **options, profile=profile(ranks), bits="same"
        )
    schedules = {"straggler": synth.generate(ranks), "ring": synth.ring(ranks)}
    for name, schedule in schedules.items():
        made[name] = lambda model, schedule=schedule: ddp.attach(model, schedule, bits="same")
    return made


def _all_ways(rank, size, store):
    results = {}
    for number, (name, attach) in enumerate(ways(size).items()):
        for buckets_mb in (25.0, 0.005):
            results[f"{name}, {buckets_mb} MB"] = train(
                rank, size, store, attach, name=name, buckets_mb=buckets_mb, seed=number
            )
    return results


def test_one_result_in_every_mode_whoever_is_late():
    results = values(spawn(_all_ways, 4, timeout_s=120))
    hashes = {of_way for of_rank in results for of_way, _ in of_rank.values()}
    assert len(hashes) == 1, results
    repeated = {times for of_rank in results for _, times in of_rank.values()}
    assert min(repeated) >= 1
