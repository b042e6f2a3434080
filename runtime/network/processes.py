"""One process per rank on this machine: what the ranks say, how each ends, and a deadline.

The processes are forks of a server that has imported, once, the module of what they run and all
that it needs, which takes 0.4 to 3 s of processor time. The ranks' store lives in the parent, as
under torchrun: no rank's death takes it away.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
import torch.multiprocessing as mp

from latecomer.runtime.host import Empty, host
from latecomer.runtime.torch_versions import TCPStore
from latecomer.verify.errors import LatecomerError

LOOK_S = 0.2  # how often it is seen whether all processes are alive
DEATH_S = 1.0  # after a rank's failure: in which a death that may have caused it is noticed
END_S = 10.0  # what a rank that is done may take to end

Say = Callable[[Any], None]


class RanksFailed(LatecomerError):
    """A rank raised, died or was not done by the deadline; the message says which, and why."""


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
    preload: Collection[str] = (),
) -> Generator[Said, None, None]:
    """Call ``body(store, rank, size, say, *args)`` on each of ``size`` processes; what they say.

    The store's time-out is ``timeout_s``; ranks that are not done by ``deadline_s`` are killed,
    ``victims`` when all others are done. Every process has imported ``preload`` (of the first call
    in this process), and the module of ``body``. A rank that died is told of before those that
    failed in the second before that was noticed: their exceptions may be its consequence.
    """
    until_s = host.monotonic() + deadline_s
    limit = timedelta(seconds=timeout_s)
    store = TCPStore("127.0.0.1", 0, None, True, limit, wait_for_workers=False)
    meet = partial(TCPStore, "127.0.0.1", store.port, None, False, limit)

    context = mp.get_context("forkserver")
    context.set_forkserver_preload([body.__module__, *preload])
    messages: Any = context.Queue()
    processes = []
    for rank in range(size):
        call = (rank, size, meet, messages, body, args)
        processes.append(context.Process(target=_rank, args=call, daemon=True))

    waiting = set(range(size)) - set(victims)
    done = set[int]()
    try:
        for process in processes:
            process.start()
        yield from _until_done(processes, messages, waiting, done, until_s)
    finally:
        for rank, process in enumerate(processes):
            if process.pid is not None:
                process.join(END_S if not waiting and rank in done else 0.0)
                process.kill()
                process.join()


def _until_done(
    processes: Sequence[Any], messages: Any, waiting: set[int], done: set[int], until_s: float
) -> Iterator[Said]:
    """What the ranks say until none of those in ``waiting`` is left, or it is ``until_s``.

    Ranks go from ``waiting`` to ``done`` when they have said that they are done or have failed;
    those that died are in neither.
    """
    failures: list[Said] = []  # held back for the sake of a death
    held_until_s = until_s
    while waiting:
        dead = {rank for rank in waiting if not processes[rank].is_alive()}
        said = None
        try:
            said = Said(*messages.get(timeout=LOOK_S))
        except Empty:
            if host.monotonic() > until_s:
                yield from failures
                yield from (Said(rank, "late", sorted(waiting)) for rank in sorted(waiting))
                return
            waiting -= dead  # what they said before they died would have come by now
            yield from (Said(rank, "died", processes[rank].exitcode) for rank in sorted(dead))
            if dead:
                held_until_s = host.monotonic()

        if said is not None and said.kind != "says":
            waiting.discard(said.rank)
            done.add(said.rank)
        if said is not None and said.kind != "failed":
            yield said
        elif said is not None:
            if not failures:
                held_until_s = host.monotonic() + DEATH_S
            failures.append(said)

        if host.monotonic() >= held_until_s:
            yield from failures
            failures.clear()
    yield from failures


def talk(
    body: Callable[..., Any], size: int, *args: Any, timeout_s: float, deadline_s: float
) -> Iterator[Any]:
    """As :func:`run`: what the ranks say, as it comes; the first RanksFailed ends them all."""
    words = run(body, size, *args, timeout_s=timeout_s, deadline_s=deadline_s)
    with contextlib.closing(words):
        for rank, kind, value in words:
            if kind == "says":
                yield value
            elif kind == "late":
                names = ", ".join(map(str, value))
                raise RanksFailed(f"rank(s) {names}: not done after {deadline_s:g} s")
            elif kind != "done":
                how = f"died with exit code {value}" if kind == "died" else value
                raise RanksFailed(f"rank {rank}: {how}")


def passes(lines: Iterable[str], report: Callable[[str], None]) -> bool:
    """Report what ranks say, or that they failed; whether they did not."""
    try:
        for line in lines:
            report(line)
    except RanksFailed as failure:
        report(f"FAILED: {failure}")
        return False
    return True


def _rank(
    rank: int, size: int, meet: Callable[[], Any], messages: Any, body: Any, args: Any
) -> None:
    def say(value: Any) -> None:
        messages.put((rank, "says", value))

    torch.set_num_threads(1)  # all ranks share the processors of one machine
    store = meet()
    try:
        result = body(store, rank, size, say, *args)
        messages.put((rank, "done", result))
    except BaseException:  # whatever it is, the one who started the ranks is told
        messages.put((rank, "failed", traceback.format_exc()))
