"""Who hangs: a rank whose host or GPU gets no further says where it is, and so do all others.

A GPU that waits in a kernel says nothing, and neither does the host that waits for it. So each rank
has a thread that looks whether the rank has taken a step lately. The ranks that wait for somebody
have taken more steps than the one they wait for; a process that was stopped says nothing at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from latecomer.runtime.host import host
from latecomer.runtime.network.processes import Say
from latecomer.runtime.selftest.device.rank import RankContext

LOOKS = 20  # within the limit


class Stuck(msgspec.Struct, frozen=True):
    """What a rank says when it has taken no step for too long."""

    rank: int
    steps: int
    doing: str


@contextmanager
def watched(context: RankContext, say: Say, limit_s: float) -> Iterator[None]:
    """Inside, :class:`Stuck` is said when this rank takes no step for ``limit_s`` seconds."""
    over = host.Event()

    def watch() -> None:
        while not over.wait(limit_s / LOOKS):
            if host.monotonic() - context.since_s > limit_s:
                say(Stuck(context.rank, context.steps, context.doing))  # again and again

    host.Thread(target=watch, name="latecomer-selftest-watch", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def name_hanging(stuck_ranks: dict[int, Stuck], world_size: int) -> str:
    """Who is to be named, and what for, by what the ranks that hang have said."""
    silent_ranks = [rank for rank in range(world_size) if rank not in stuck_ranks]
    if silent_ranks:
        names = ", ".join(map(str, silent_ranks))
        doings = sorted({stuck.doing for stuck in stuck_ranks.values()})
        return f"rank(s) {names}: no sign of life, while others hang ({'; '.join(doings)})"

    fewest_steps = min(stuck.steps for stuck in stuck_ranks.values())
    behind = [stuck for stuck in stuck_ranks.values() if stuck.steps == fewest_steps]
    if len(behind) == world_size:
        return f"all ranks hang at the same step: each {stuck_ranks[0].doing}"
    return "; ".join(f"rank {stuck.rank}: hangs, it {stuck.doing}" for stuck in behind)
