"""``python -m runtime selftest``: the conformance suite on the user's own machine.

Starts one process per rank (on one GPU, all NCCL ranks on that GPU: NCCL takes them for different
hosts by ``NCCL_HOSTID`` and lets them talk over sockets) and runs the suite for each schedule,
with every rank late in turn (where several are, each in every place), through the executor and
through the process group backend. Late ranks do come late: they sleep before each case.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from runtime import backend
from runtime.config import configure
from runtime.executor.executor import Executor
from runtime.executor.load import Verified, load
from runtime.selftest import conformance
from runtime.selftest.processes import Place, passes
from runtime.torch_versions import PrefixStore, Store
from verify.core.schedule import Schedule
from verify.errors import ArgumentError

TIMEOUT_S = conformance.TIMEOUT_S
LATE_S = 0.002
"""How much later each late rank comes than the one before it."""
LINE_S = 60.0
"""What each line of the report, and the start, may take; a self-test that takes longer failed."""


def selftest(
    schedules: dict[str, Schedule], ranks: int, device: str, report: Callable[[str], None]
) -> bool:
    """Run the suite and report a line for each schedule, way in and order of late ranks.

    Returns:
        Whether all passed; the first failure ends it.

    Raises:
        ArgumentError: ``device`` is ``cuda`` and there is none.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise ArgumentError("--device", device, "no CUDA device is visible to torch")
    lines = sum(2 * len(turns(load(schedule))) for schedule in schedules.values())
    limits = {"timeout_s": TIMEOUT_S, "deadline_s": LINE_S * (1 + lines)}
    return passes(_rank, ranks, device, schedules, report=report, **limits)


def _rank(place: Place, device: str, schedules: dict[str, Schedule]) -> None:
    if device == "cuda":
        if place.size > torch.cuda.device_count():
            os.environ["NCCL_HOSTID"] = f"latecomer-{place.rank}"
        torch.cuda.set_device(place.rank % torch.cuda.device_count())
    for name, schedule in schedules.items():
        verified = load(schedule)
        for method in ("executor", "backend"):
            for late in turns(verified):
                began = time.monotonic()
                store = PrefixStore(f"{name}/{method}/{late}", place.store)
                who = ", ".join(map(str, late)) or "nobody"
                line = f"{name:<12} {method:<9} late: {who:<8}"
                try:
                    count = _run(method, verified, late, store, place, device)
                except Exception as error:
                    error.add_note(f"in: {line}")
                    raise
                if place.rank == 0:
                    place.say(f"{line} {count} cases in {time.monotonic() - began:.1f} s")


def turns(verified: Verified) -> list[tuple[int, ...]]:
    """Late ranks, in order of arrival, such that every rank is in every place once."""
    n, q = verified.schedule.ranks, len(verified.late)
    return [tuple((first + i) % n for i in range(q)) for first in range(n if q else 1)]


def late_s(rank: int, late: tuple[int, ...]) -> float:
    """How long ``rank`` sleeps before a case when the ranks ``late`` come one after the other."""
    return LATE_S * (late.index(rank) + 1) if rank in late else 0.0


def _run(
    method: str,
    verified: Verified,
    late: tuple[int, ...],
    store: Store,
    place: Place,
    device: str,
) -> int:
    rank, size, cases = place.rank, place.size, PrefixStore("cases", store)
    options: Any = {"device": device, "late_s": late_s(rank, late)}
    if method == "backend":
        configure(verified, late=late)
        with process_group(store, rank, size):
            return conformance.run(all_reduce, cases, rank, size, **options)
    executor = Executor(verified, store, rank, size, device=device, late=late, timeout_s=TIMEOUT_S)
    count = conformance.run(
        lambda tensor, average: executor.submit(tensor, average=average).wait(),
        cases,
        rank,
        size,
        **options,
    )
    executor.close()
    return count


@contextmanager
def process_group(store: Store, rank: int, size: int) -> Iterator[Any]:
    """All ranks under the backend, as it is configured; the group."""
    limit = timedelta(seconds=TIMEOUT_S)
    dist.init_process_group(backend.BACKEND, store=store, rank=rank, world_size=size, timeout=limit)
    yield dist.group.WORLD
    dist.destroy_process_group()


def all_reduce(tensor: torch.Tensor, average: bool) -> torch.Tensor:
    """By torch's own call, in place."""
    dist.all_reduce(tensor, op=dist.ReduceOp.AVG if average else dist.ReduceOp.SUM)
    return tensor
