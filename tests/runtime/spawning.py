"""Runs a function on n processes, each a rank, with a deadline; reports what each one returned.

The processes are forks of a server that has already imported what they need. Importing takes 0.4
to 3 s of processor time per process, far more than most of the functions take.
"""

from __future__ import annotations

import multiprocessing as mp
import queue
import time
import traceback
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

PATIENCE = 5
"""How many times slower a machine may be that has other work; against hangs, no claim on speed."""
IMPORTED = [
    "hypothesis",
    "networkx",
    "ortools.sat.python.cp_model",
    "pytest",
    "runtime.pipeline",
    "runtime.selftest.schedules",
    "synth.arrivals.generate",
    "synth.pipeline",
    "torch._dynamo",  # otherwise imported by a process's first optimizer or DDP, in 2 s
    "torch.distributed.pipelining",
]


@dataclass
class Outcome:
    """What a rank did: its value, or the text of its exception, or (neither) it died."""

    value: Any = None
    error: str = ""
    finished: bool = False


def _child(
    body: Callable[..., Any], rank: int, size: int, port: int, args: tuple, out: Any
) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    # The store lives in the parent, as under torchrun: no rank's death takes it away.
    store = dist.TCPStore("127.0.0.1", port, None, False, timedelta(seconds=60 * PATIENCE))
    try:
        out.put((rank, Outcome(value=body(rank, size, store, *args), finished=True)))
    except BaseException:
        out.put((rank, Outcome(error=traceback.format_exc(), finished=True)))


def spawn(
    body: Callable[..., Any],
    size: int,
    *args: Any,
    timeout_s: float = 90.0,
    victims: Collection[int] = (),
) -> list[Outcome]:
    """Call ``body(rank, size, store, *args)`` on each of ``size`` processes.

    Returns one outcome per rank; ranks still running at the deadline,
    ``PATIENCE`` times ``timeout_s``, are killed and unfinished.
    Nobody waits for ``victims``: they are killed when all others have finished.
    """
    import torch.distributed as dist

    context = mp.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    patience = timedelta(seconds=60 * PATIENCE)
    store = dist.TCPStore("127.0.0.1", 0, None, True, patience, wait_for_workers=False)
    out = context.Queue()
    processes = [
        context.Process(target=_child, args=(body, r, size, store.port, args, out), daemon=True)
        for r in range(size)
    ]
    for process in processes:
        process.start()
    outcomes = [Outcome() for _ in range(size)]
    deadline = time.monotonic() + PATIENCE * timeout_s
    waiting = set(range(size)) - set(victims)
    while waiting and time.monotonic() < deadline:
        try:
            rank, outcome = out.get(timeout=0.2)
            outcomes[rank] = outcome
            waiting.discard(rank)
        except queue.Empty:
            waiting = {r for r in waiting if processes[r].is_alive()}
    for rank, process in enumerate(processes):
        process.join(timeout=0 if rank in victims else 5)
        if process.is_alive():
            process.kill()
            process.join()
    return outcomes


def values(outcomes: list[Outcome]) -> list[Any]:
    """The values of all ranks; fails with the first rank's traceback if there is one."""
    for rank, outcome in enumerate(outcomes):
        assert outcome.finished, f"rank {rank} died or hung"
        assert not outcome.error, f"rank {rank}:\n{outcome.error}"
    return [outcome.value for outcome in outcomes]


def together(store: Any, rank: int, size: int, name: str) -> None:
    """Wait until all ranks are here, within the store's time-out; a name serves once."""
    store.set(f"{name} {rank}", "")
    store.wait([f"{name} {r}" for r in range(size)])
