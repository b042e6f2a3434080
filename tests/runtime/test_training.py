"""Both ways into DDP train like plain DDP, whoever is late."""

from __future__ import annotations

import hashlib
import random
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import runtime
from tests.runtime import schedules
from tests.runtime.spawning import spawn, values
from verify.errors import ArgumentError

STEPS = 4


def _model():
    torch.manual_seed(0)
    layers = [nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 50), nn.Tanh(), nn.Linear(50, 3)]
    return DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=0.01)


def _train(model, rank, lateness):
    data = torch.Generator().manual_seed(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(STEPS):
        time.sleep(lateness(step))
        optimizer.zero_grad()
        model(torch.randn(8, 20, generator=data)).square().mean().backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def _bits(parameters):
    return hashlib.sha256(parameters.numpy().tobytes()).hexdigest()


def _all_ways(rank, size, store, schedule, random_lateness):
    """Per late rank: (largest deviation from plain DDP, bits) of both ways."""

    def start(backend, name):
        place = {"store": dist.PrefixStore(name, store), "rank": rank, "world_size": size}
        dist.init_process_group(backend, timeout=timedelta(seconds=30), **place)

    start("gloo", "plain")
    plain = _train(_model(), rank, lambda step: 0.0)
    found = []
    for late in range(size):
        dice = random.Random(f"{rank} {late}")

        def lateness(step, late=late, dice=dice):
            if random_lateness:
                return dice.choice([0.0, 0.0, 0.03])
            return 0.03 if rank == late else 0.0

        model = _model()
        attachment = runtime.ddp.attach(model, schedule, late=late, timeout_s=30)
        hooked = _train(model, rank, lateness)
        attachment.close()
        found.append(((hooked - plain).abs().max().item(), _bits(hooked)))
    dist.destroy_process_group()
    for late in range(size):
        runtime.configure(schedule, late=late)
        start("latecomer", f"backend{late}")
        trained = _train(_model(), rank, lambda step, late=late: 0.03 * (rank == late))
        paths = dict(dist.distributed_c10d._get_default_group().paths)
        dist.destroy_process_group()
        assert set(paths) == {"schedule"}
        found.append(((trained - plain).abs().max().item(), _bits(trained)))
    return found


@pytest.mark.parametrize("random_lateness", [False, True])
@pytest.mark.parametrize("size", [2, 4])
def test_parameters_are_those_of_plain_ddp(size, random_lateness):
    outcomes = spawn(_all_ways, size, schedules.straggler(size), random_lateness, timeout_s=100)
    for per_rank in zip(*values(outcomes), strict=True):
        assert max(deviation for deviation, _ in per_rank) < 1e-6
        assert len({bits for _, bits in per_rank}) == 1


def _native_paths(rank, size, store):
    runtime.configure(schedules.straggler(size))
    dist.init_process_group("latecomer", store=store, rank=rank, world_size=size)
    results = []
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX):
        tensor = torch.full((4,), float(rank))
        dist.all_reduce(tensor, op=op)
        results.append(tensor[0].item())
    pair = dist.new_group([0, 1])
    part = torch.ones(2)
    if rank < 2:
        dist.all_reduce(part, group=pair)
    paths = dict(dist.distributed_c10d._get_default_group().paths)
    dist.destroy_process_group()
    return results, part[0].item(), paths


def test_everything_else_runs_natively_and_is_reported():
    for rank, (results, part, paths) in enumerate(values(spawn(_native_paths, 3))):
        assert results == [3.0, 1.0, 2.0]
        assert part == (2.0 if rank < 2 else 1.0)
        assert paths == {"schedule": 2, "operation MAX": 1}


def _no_schedule(rank, size, store):
    with pytest.raises(ArgumentError, match="synth generate"):
        dist.init_process_group("latecomer", store=store, rank=rank, world_size=size)


def test_the_backend_without_a_schedule_says_what_to_do():
    values(spawn(_no_schedule, 2))
