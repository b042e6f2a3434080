"""One process per rank for a self-test: what the ranks say, the first failure, and a deadline.

A rank that fails ends all of them: what the others would say after it is only that it is gone.
"""

from __future__ import annotations

import queue
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.multiprocessing as mp

from runtime.torch_versions import Store, TCPStore
from verify.errors import LatecomerError

LOOK_S = 0.5
"""How often it is seen whether all processes are alive."""
END_S = 10.0
"""What a rank that has said everything may take to end."""

Say = Callable[[Any], None]


class RanksFailed(LatecomerError):
    """A rank raised, died or was not done by the deadline; the message says which, and why."""


def talk(
    body: Callable[..., None], ranks: int, *args: Any, timeout_s: float, deadline_s: float
) -> Iterator[Any]:
    """Run ``body(store, rank, ranks, say, *args)`` on each rank; yield what they say, as it comes.

    Args:
        timeout_s: of the store.
        deadline_s: all ranks must be done within it; they are killed then.

    Raises:
        RanksFailed: see there.
    """
    until_s = time.monotonic() + deadline_s
    store = TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=timeout_s))
    context = mp.get_context("spawn")
    said: Any = context.Queue()
    processes = [
        context.Process(target=_rank, args=(body, r, ranks, store.port, timeout_s, said, args))
        for r in range(ranks)
    ]
    waiting, passed = set(range(ranks)), False
    try:
        for process in processes:
            process.daemon = True
            process.start()
        while waiting:
            silent = [r for r in waiting if not processes[r].is_alive()]
            try:
                rank, kind, what = said.get(timeout=LOOK_S)
            except queue.Empty:
                if silent:  # what it said before it died would have come by now
                    code = processes[silent[0]].exitcode
                    raise RanksFailed(f"rank {silent[0]}: died with exit code {code}") from None
                if time.monotonic() > until_s:
                    names = ", ".join(map(str, sorted(waiting)))
                    late = f"rank(s) {names}: not done after {deadline_s:g} s"
                    raise RanksFailed(late) from None
                continue
            if kind == "failed":
                raise RanksFailed(f"rank {rank}: {what}")
            if kind == "done":
                waiting.discard(rank)
            else:
                yield what
        passed = True
    finally:
        for process in processes:
            if process.pid is not None:
                process.join(timeout=END_S if passed else 0.0)
                process.kill()


def _rank(
    body: Callable[[Store, int, int, Say], None],
    rank: int,
    ranks: int,
    port: int,
    timeout_s: float,
    said: Any,
    args: tuple[Any, ...],
) -> None:
    torch.set_num_threads(1)
    try:
        store = TCPStore("127.0.0.1", port, None, False, timedelta(seconds=timeout_s))
        body(store, rank, ranks, lambda what: said.put((rank, "says", what)), *args)
    except Exception:
        said.put((rank, "failed", traceback.format_exc()))
    else:
        said.put((rank, "done", None))
