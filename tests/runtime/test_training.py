"""Both ways into DDP train like plain DDP, whoever is late."""

from __future__ import annotations

import hashlib
import random
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from latecomer import runtime
from tests.runtime import schedules
from tests.runtime.spawning import default_group, on_ranks

STEPS = 4


def _model():
    """The same on all ranks."""
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 50), nn.Tanh(), nn.Linear(50, 3)
    )
    return DistributedDataParallel(module, bucket_cap_mb=0.01)  # more than one bucket


def _train(model, rank, lateness):
    """The parameters after all steps, before each of which the rank sleeps ``lateness(step)``."""
    data = torch.Generator().manual_seed(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(STEPS):
        time.sleep(lateness(step))
        optimizer.zero_grad()
        model(torch.randn(8, 20, generator=data)).square().mean().backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("random_lateness", [False, True])
@pytest.mark.parametrize("schedule", [schedules.straggler(2), schedules.straggler(4)])
@on_ranks(None, timeout_s=100)
def test_parameters_are_those_of_plain_ddp(rank, size, store, schedule, random_lateness):
    """By the hook and by the backend, with each rank late in turn; the same bits on all ranks."""

    def check(trained, name):
        assert (trained - plain).abs().max().item() < 1e-6
        store.set(f"{name} {rank}", hashlib.sha256(trained.numpy().tobytes()).hexdigest())
        assert store.get(f"{name} {rank}") == store.get(f"{name} 0")

    default_group("gloo", rank, size, store, name="plain", timeout_s=30)
    plain = _train(_model(), rank, lambda step: 0.0)
    for late in range(size):
        dice = random.Random(f"{rank} {late}")

        def lateness(step, late=late, dice=dice):
            if random_lateness:
                return dice.choice([0.0, 0.0, 0.03])
            return 0.03 if rank == late else 0.0

        model = _model()
        attachment = runtime.ddp.attach(model, schedule, late=late, timeout_s=30)
        check(_train(model, rank, lateness), f"hook {late}")
        attachment.close()
    dist.destroy_process_group()

    for late in range(size):
        late_s = 0.03 if rank == late else 0.0
        runtime.configure(schedule, late=late)
        default_group("latecomer", rank, size, store, name=f"backend{late}", timeout_s=30)
        check(_train(_model(), rank, lambda step, late_s=late_s: late_s), f"{late}")
        assert dist.group.WORLD.paths.keys() == {"schedule"}
        dist.destroy_process_group()
