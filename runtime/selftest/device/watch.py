"""Who hangs: a rank whose host or GPU gets no further says where it is, and so do all others.

A GPU that waits in a kernel says nothing, and neither does the host that waits for it. So each rank
has a thread that looks whether the rank has taken a step lately. The ranks that wait for somebody
have taken more steps than the one they wait for; a process that was stopped says nothing at all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from runtime.network.processes import Say
from runtime.selftest.device.place import Place

LOOKS = 20  # within the limit


class Stuck(msgspec.Struct, frozen=True):
    """What a rank says when it has taken no step for too long."""

    rank: int
    steps: int
    doing: str


@contextmanager
def watched(place: Place, say: Say, limit_s: float) -> Iterator[None]:
    """Inside, :class:`Stuck` is said when this rank takes no step for ``limit_s`` seconds."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(limit_s / LOOKS):
            if time.monotonic() - place.since_s > limit_s:
                say(Stuck(place.rank, place.steps, place.doing))  # again and again

    threading.Thread(target=look, name="latecomer-selftest-watch", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def behind(said: dict[int, Stuck], size: int) -> str:
    """Who is to be named, and what for, by what the ranks that hang have said."""
    silent = [rank for rank in range(size) if rank not in said]
    if silent:
        names = ", ".join(map(str, silent))
        others = sorted({one.doing for one in said.values()})
        return f"rank(s) {names}: no sign of life, while others hang ({'; '.join(others)})"
    least = min(one.steps for one in said.values())
    if all(one.steps == least for one in said.values()):
        return f"all ranks hang at the same step: each {said[0].doing}"
    named = [one for one in said.values() if one.steps == least]
    return "; ".join(f"rank {one.rank}: hangs, it {one.doing}" for one in named)
