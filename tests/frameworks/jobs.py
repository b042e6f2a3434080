"""The ways in which a job's process group may run, and how a rank starts in one of them."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from latecomer import runtime
from latecomer.runtime.policy.cost_model import AlphaBeta, Profile
from tests.runtime.spawning import Outcome

GLOO = "gloo"
AUTO = "auto"
EAGER = "eager"
SCHEDULE = "schedule"
WAYS = (GLOO, AUTO, EAGER, SCHEDULE)
"""The reference, the default mode, one in which schedules run, and a schedule always."""


def begin(
    way: str,
    rank: int,
    world_size: int,
    store: dist.Store,
    schedule: str | os.PathLike[str] | None = None,
    timeout_s: float = 30.0,
) -> Any:
    """Make the default group; return it.

    Args:
        schedule: the file, for SCHEDULE.
    """
    if way == AUTO:
        runtime.configure(mode="auto")
    elif way == EAGER:
        # By this profile a schedule is worth it for the smallest buffer, and to wait is not.
        cheap = Profile(world_size, AlphaBeta(1e-2, 1e-9), AlphaBeta(1e-5, 1e-10))
        runtime.configure(mode="eager", profile=cheap, threshold_s=1e-4)
    elif way == SCHEDULE:
        assert schedule is not None
        runtime.configure(schedule)

    dist.init_process_group(
        "gloo" if way == GLOO else runtime.BACKEND,
        store=dist.PrefixStore("job", store),
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=timeout_s),
    )
    return dist.group.WORLD


def results(outcomes: list[Outcome]) -> list[Any]:
    """The values of all ranks; fails with the errors, what only follows from another's last."""
    own: list[str] = []
    following: list[str] = []  # of a connection that another rank's end has closed
    for rank, outcome in enumerate(outcomes):
        if outcome.finished and not outcome.error:
            continue
        error = outcome.error or "died or hung"
        errors = following if "by peer" in error else own
        errors.append(f"rank {rank}: {error}")

    assert not own + following, "\n".join(own + following)
    return [outcome.value for outcome in outcomes]
