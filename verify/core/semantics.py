"""Property 4: every contribution reaches every rank exactly once.

The state holds, for each (rank r, chunk c), how often each rank's contribution is in r's copy of
c: a vector in N^n. AllReduce starts with the unit vector e_r at every chunk of rank r and must end
with the all-ones vector everywhere. All transfers of a round read the state at its start; ``copy``
overwrites, ``reduce`` adds. This is exact for every commutative monoid, hence for every sum of
exact numbers; stale data can't hide, because it would bring its own count along.

Chunks do not interact, so they are processed in blocks that fit into ``BLOCK_BYTES``. Counts
saturate at 255: a count above one never comes back to one, except by being overwritten.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from verify.core.schedule import Schedule
from verify.core.verdict import PROVED, Result, refuted
from verify.report.explain import explain

BLOCK_BYTES = 2**27
SATURATED = 255

Counts = NDArray[np.uint8]


def exactly_once(schedule: Schedule) -> Result:
    """Property 4, with the smallest wrong (chunk, rank) traced back when it fails.

    Work grows with transfers times ranks; memory is bounded by ``BLOCK_BYTES`` and ranks².
    """
    n, k = schedule.ranks, schedule.chunks
    # A right schedule moves each chunk 2(n - 1) times: until some rank first knows all, n - 1
    # transfers join the contributions, and each other rank needs one more. A chunk with fewer is
    # wrong whatever the rest does, and looking at it first keeps absurd inputs cheap.
    moves = np.bincount(schedule.table.chunk, minlength=k)
    scarce = int(np.argmin(moves))
    if moves[scarce] < 2 * (n - 1):
        wrong = _first_wrong(schedule, scarce, scarce + 1)
        assert wrong is not None
        return refuted(explain(schedule, *wrong))
    width = max(1, BLOCK_BYTES // (n * n))
    for low in range(0, k, width):
        wrong = _first_wrong(schedule, low, min(k, low + width))
        if wrong is not None:
            return refuted(explain(schedule, *wrong))
    return PROVED


def _first_wrong(schedule: Schedule, low: int, high: int) -> tuple[int, int, int] | None:
    """The first (rank, chunk, contribution) whose final count is not one, in chunks low..high-1."""
    counts = final_counts(schedule, low, high)
    for chunk in range(high - low):
        wrong = counts[:, chunk] != 1
        rank, contribution = divmod(int(wrong.argmax()), schedule.ranks)
        if wrong[rank, contribution]:
            return rank, low + chunk, contribution
    return None


def final_counts(schedule: Schedule, low: int, high: int) -> Counts:
    """Counts [rank, chunk - low, contribution] at the end, for chunks low..high-1."""
    table, n = schedule.table, schedule.ranks
    counts: Counts = np.zeros((n, high - low, n), np.uint8)
    counts[np.arange(n), :, np.arange(n)] = 1
    for transfers in schedule.table.rounds_of(low, high):
        dst, chunk = table.dst[transfers], table.chunk[transfers] - low
        reduce = table.reduce[transfers]
        # What is read at the start of the round, each cell once however many transfers read it.
        cells, cell = np.unique(table.src[transfers] * (high - low) + chunk, return_inverse=True)
        at_start = counts[cells // (high - low), cells % (high - low)]
        for group in table.by_turn(transfers):
            plain, adding = group[~reduce[group]], group[reduce[group]]
            counts[dst[plain], chunk[plain]] = at_start[cell[plain]]
            moving = at_start[cell[adding]]
            total = counts[dst[adding], chunk[adding]] + moving
            total[total < moving] = SATURATED  # it wrapped around
            counts[dst[adding], chunk[adding]] = total
    return counts
