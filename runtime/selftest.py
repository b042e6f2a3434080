"""``python -m runtime selftest``: the conformance suite on the user's own machine.

Starts one process per rank (on one GPU, all NCCL ranks on that GPU: NCCL takes them for different
hosts by ``NCCL_HOSTID`` and lets them talk over sockets) and runs the suite for each schedule,
with every rank late in turn (where several are, each in every place), through the executor and
through the process group backend. Late ranks do come late: they sleep before each case.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from runtime import backend, conformance
from runtime.configuration import configure
from runtime.executor import Executor
from runtime.torch_versions import PrefixStore, Store, TCPStore
from runtime.verified import Verified, load
from verify.errors import ArgumentError
from verify.schedule import Schedule

TIMEOUT_S = 60.0
LATE_S = 0.002
"""How much later each late rank comes than the one before it."""


@dataclass(frozen=True)
class Line:
    """One line of the result: a schedule with its late ranks through one way in."""

    schedule: str
    way: str
    late: tuple[int, ...]
    cases: int
    seconds: float
    error: str = ""


def selftest(
    schedules: dict[str, Schedule], ranks: int, device: str, report: Callable[[Line], None]
) -> bool:
    """Run the suite and report each line as it comes; true if all passed.

    Raises:
        ArgumentError: ``device`` is ``cuda`` and there is none.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise ArgumentError("--device", device, "no CUDA device is visible to torch")
    store = TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=TIMEOUT_S))
    context = mp.get_context("spawn")
    lines: Any = context.Queue()
    arguments = (ranks, device, store.port, schedules, lines)
    processes = [
        context.Process(target=_rank, args=(r, *arguments), daemon=True) for r in range(ranks)
    ]
    for process in processes:
        process.start()
    passed = True
    try:
        left = ranks
        while left:
            line = lines.get(timeout=10 * TIMEOUT_S)
            if line is None:
                left -= 1
            else:
                passed = passed and not line.error
                report(line)
    finally:
        for process in processes:
            process.join(timeout=TIMEOUT_S if passed else 1.0)
            process.kill()
    return passed


def _rank(
    rank: int, ranks: int, device: str, port: int, schedules: dict[str, Schedule], lines: Any
) -> None:
    torch.set_num_threads(1)
    if device == "cuda":
        if ranks > torch.cuda.device_count():
            os.environ["NCCL_HOSTID"] = f"latecomer-{rank}"
        torch.cuda.set_device(rank % torch.cuda.device_count())
    store = TCPStore("127.0.0.1", port, None, False, timedelta(seconds=TIMEOUT_S))
    try:
        for name, schedule in schedules.items():
            verified = load(schedule)
            for way in (_executor, _backend):
                for late in turns(verified):
                    began = time.monotonic()
                    place = PrefixStore(f"{name}{way.__name__}/{late}", store)
                    count = way(verified, late, place, rank, ranks, device)
                    if rank == 0:
                        seconds = time.monotonic() - began
                        lines.put(Line(name, way.__name__[1:], late, count, seconds))
    except Exception:
        error = f"rank {rank}: {traceback.format_exc()}"
        lines.put(Line(name, way.__name__[1:], late, 0, 0.0, error))
    lines.put(None)


def turns(verified: Verified) -> list[tuple[int, ...]]:
    """Late ranks, in order of arrival, such that every rank is in every place once."""
    n, q = verified.schedule.ranks, len(verified.late)
    return [tuple((first + i) % n for i in range(q)) for first in range(n if q else 1)]


def late_s(rank: int, late: tuple[int, ...]) -> float:
    """How long ``rank`` sleeps before a case when the ranks ``late`` come one after the other."""
    return LATE_S * (late.index(rank) + 1) if rank in late else 0.0


def _executor(
    verified: Verified, late: tuple[int, ...], store: Store, rank: int, ranks: int, device: str
) -> int:
    executor = Executor(verified, store, rank, ranks, device=device, late=late, timeout_s=TIMEOUT_S)
    count = conformance.run(
        lambda tensor, average: executor.submit(tensor, average=average).wait(),
        PrefixStore("cases", store),
        rank,
        ranks,
        device=device,
        late_s=late_s(rank, late),
    )
    executor.close()
    return count


def _backend(
    verified: Verified, late: tuple[int, ...], store: Store, rank: int, ranks: int, device: str
) -> int:
    configure(verified, late=late)
    timeout = timedelta(seconds=TIMEOUT_S)
    dist.init_process_group(
        backend.BACKEND, store=store, rank=rank, world_size=ranks, timeout=timeout
    )

    def all_reduce(tensor: torch.Tensor, average: bool) -> torch.Tensor:
        dist.all_reduce(tensor, op=dist.ReduceOp.AVG if average else dist.ReduceOp.SUM)
        return tensor

    cases = PrefixStore("cases", store)
    count = conformance.run(
        all_reduce, cases, rank, ranks, device=device, late_s=late_s(rank, late)
    )
    dist.destroy_process_group()
    return count
