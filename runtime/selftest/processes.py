"""One process per rank on this machine: what the ranks say, how each ends, and a deadline.

The processes are forks of a server that has already imported what they need: importing takes 0.4 to
3 s of processor time per process. The ranks' store lives in the parent, as under torchrun: no
rank's death takes it away.
"""

from __future__ import annotations

import contextlib
import queue
import time
import traceback
from collections.abc import Callable, Collection, Generator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, NamedTuple

import torch
import torch.multiprocessing as mp

from runtime.torch_versions import Store, TCPStore

LOOK_S = 0.2
"""How often it is seen whether all processes are alive."""
END_S = 10.0
"""What a rank that is done may take to end."""


@dataclass(frozen=True)
class Place:
    """A process's rank among ``size``, the ranks' store, and how it speaks to its parent."""

    rank: int
    size: int
    store: Store
    say: Callable[[Any], None]


class Said(NamedTuple):
    """``says``: anything; ``done``: the body's value; ``failed``: its traceback; ``died``: the exit
    code; ``late``: all ranks that are not done by the deadline.
    """

    rank: int
    kind: Literal["says", "done", "failed", "died", "late"]
    value: Any


def run(
    body: Callable[..., Any],
    size: int,
    *args: Any,
    timeout_s: float,
    deadline_s: float,
    victims: Collection[int] = (),
    preload: Collection[str] = ("runtime.selftest.schedules",),
) -> Generator[Said, None, None]:
    """Call ``body(place, *args)`` on each of ``size`` processes; what they say, as it comes.

    Args:
        timeout_s: of the store.
        deadline_s: all ranks must be done within it; they are killed then.
        victims: ranks that are not waited for; they are killed when all others are done.
        preload: modules that every process has imported.
    """
    until_s = time.monotonic() + deadline_s
    limit = timedelta(seconds=timeout_s)
    store = TCPStore("127.0.0.1", 0, None, True, limit, wait_for_workers=False)
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(list(preload))
    said: Any = context.Queue()
    processes = [
        context.Process(target=_rank, args=(r, size, store.port, limit, said, body, args))
        for r in range(size)
    ]
    waiting, done = set(range(size)) - set(victims), set[int]()
    try:
        for process in processes:
            process.daemon = True
            process.start()
        while waiting:
            dead = {r for r in waiting if not processes[r].is_alive()}
            try:
                word = Said(*said.get(timeout=LOOK_S))
            except queue.Empty:
                if time.monotonic() > until_s:
                    late = sorted(waiting)
                    yield from (Said(rank, "late", late) for rank in late)
                    return
                waiting -= dead  # what they said before they died would have come by now
                yield from (Said(r, "died", processes[r].exitcode) for r in sorted(dead))
            else:
                if word.kind != "says":
                    waiting.discard(word.rank)
                    done.add(word.rank)
                yield word
    finally:
        for rank, process in enumerate(processes):
            if process.pid is not None:
                process.join(END_S if not waiting and rank in done else 0.0)
                process.kill()
                process.join()


def passes(
    body: Callable[..., None],
    size: int,
    *args: Any,
    report: Callable[[str], None],
    timeout_s: float,
    deadline_s: float,
) -> bool:
    """As :func:`run`; report what the ranks say, or the first failure, which ends all of them.

    Returns:
        Whether there was none.
    """
    words = run(body, size, *args, timeout_s=timeout_s, deadline_s=deadline_s)
    with contextlib.closing(words):
        for rank, kind, value in words:
            if kind == "says":
                report(value)
            elif kind != "done":
                who = ", ".join(map(str, value if kind == "late" else [rank]))
                problem = {
                    "failed": f"rank {who}: {value}",
                    "died": f"rank {who}: died with exit code {value}",
                    "late": f"rank(s) {who}: not done after {deadline_s:g} s",
                }[kind]
                report(f"FAILED: {problem}")
                return False
    return True


def _rank(
    rank: int,
    size: int,
    port: int,
    limit: timedelta,
    said: Any,
    body: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    torch.set_num_threads(1)
    store = TCPStore("127.0.0.1", port, None, False, limit)
    try:
        value = body(Place(rank, size, store, lambda what: said.put((rank, "says", what))), *args)
        said.put((rank, "done", value))
    except BaseException:
        said.put((rank, "failed", traceback.format_exc()))
