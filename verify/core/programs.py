"""Property 7: no deadlock when every rank runs its own transfers in its own order.

There is no global clock: a rank starts its next step when its own transfers of this one are done.
A *program* is what one rank does: steps, each a group of transfers posted together; the next step
is posted when all of the group are complete. Sends are rendezvous: a transfer completes when both
ends have posted it. The runtime executes exactly ``by_round(schedule)``: one step per round in
which the rank takes part, its sends and receives posted together (it posts receives even earlier,
which can only complete more).

``deadlock_free`` takes any programs, so that other orders (sends first, hand-written ones) can be
judged too; ``sends_first`` is the classic mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from verify.core.schedule import Schedule
from verify.core.verdict import PROVED, Counterexample, Result, locate, refuted

Program = list[tuple[int, ...]]
"""One rank's steps, each a group of transfer indices (into ``schedule.table``)."""


def by_round(schedule: Schedule) -> list[Program]:
    """For each rank, its transfers grouped by round, in order."""
    table = schedule.table
    programs: list[Program] = [[] for _ in range(schedule.ranks)]
    if not len(table):
        return programs
    rank, index = np.concatenate([table.src, table.dst]), np.tile(np.arange(len(table)), 2)
    order = np.lexsort([index, rank])
    rank, index = rank[order], index[order]
    changes = (np.diff(rank) != 0) | (np.diff(table.round[index]) != 0)
    begins = np.flatnonzero(np.append(True, changes))
    ends = [*begins[1:].tolist(), len(index)]
    ordered = index.tolist()
    for owner, begin, end in zip(rank[begins].tolist(), begins.tolist(), ends, strict=True):
        programs[owner].append(tuple(ordered[begin:end]))
    return programs


def sends_first(schedule: Schedule) -> list[Program]:
    """Each round's sends, waited for one by one, and only then its receives."""
    table = schedule.table
    return [
        [
            (index,)
            for step in program
            for index in sorted(step, key=lambda i: (int(table.src[i]) != rank, i))
        ]
        for rank, program in enumerate(by_round(schedule))
    ]


def deadlock_free(
    schedule: Schedule,
    order: Callable[[Schedule], Sequence[Program]] = by_round,
) -> Result:
    """Property 7: run the programs to the end, or name the ranks that wait for each other.

    Posting and completing never disables anything, so one run decides: if it stops early, every
    run stops there.
    """
    programs = order(schedule)
    src, dst = schedule.table.src.tolist(), schedule.table.dst.tolist()
    at = [-1] * len(programs)  # the step a rank has posted
    open_ = [0] * len(programs)  # transfers of it that are not complete
    posted = bytearray(len(src))  # how many ends of a transfer are posted
    ready = list(range(len(programs)))
    while ready:
        rank = ready.pop()
        at[rank] += 1
        if at[rank] == len(programs[rank]):
            continue
        step = programs[rank][at[rank]]
        open_[rank] = len(step)
        for index in step:
            posted[index] += 1
            if posted[index] == 2:
                for end in (src[index], dst[index]):
                    open_[end] -= 1
                    if open_[end] == 0:
                        ready.append(end)
        if not step:
            ready.append(rank)
    stuck = [rank for rank, program in enumerate(programs) if at[rank] < len(program)]
    if not stuck:
        return PROVED
    return _wait_cycle(schedule, programs, at, posted, stuck)


def _wait_cycle(
    schedule: Schedule,
    programs: Sequence[Program],
    at: list[int],
    posted: bytearray,
    stuck: list[int],
) -> Result:
    """Follow who waits for whom from a stuck rank until a rank repeats (or has nothing left)."""
    table = schedule.table
    path: list[int] = []
    waits: list[int] = []
    rank = stuck[0]
    while rank not in path and at[rank] < len(programs[rank]):
        path.append(rank)
        index = next(i for i in programs[rank][at[rank]] if posted[i] < 2)
        waits.append(index)
        src, dst = int(table.src[index]), int(table.dst[index])
        rank = dst if rank == src else src
    begin = path.index(rank) if rank in path else 0
    cycle, cause = path[begin:], waits[begin:]
    if rank in path:
        found = "wait cycle " + " -> ".join(f"rank {r}" for r in [*cycle, rank])
    else:
        found = f"rank {cycle[-1]} waits for rank {rank}, which has finished"
    place = locate(schedule, cause[0])
    return refuted(
        Counterexample(
            property="deadlock_free",
            phase=place.phase,
            round=place.round,
            rank=cycle[0],
            chunk=place.chunk,
            expected="every rank's program to run to its end",
            found=found,
            transfers=tuple(locate(schedule, index) for index in cause),
        )
    )
