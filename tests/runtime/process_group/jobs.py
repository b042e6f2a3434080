"""A rank of a job on the backend."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

import runtime


def start(rank: int, size: int, store: Any, schedule: Any = None, timeout_s: float = 120.0) -> Any:
    """Make the group of all ranks, by a schedule or (default) in mode auto, and return it."""
    if schedule is None:
        runtime.configure(mode="auto")
    else:
        runtime.configure(schedule)
    dist.init_process_group(
        "latecomer",
        store=store,
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=timeout_s),
    )
    return dist.group.WORLD
