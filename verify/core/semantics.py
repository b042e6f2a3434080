"""Property 4: every contribution reaches every rank exactly once.

A value counts how often each rank's contribution is in it: a vector in N^n. AllReduce starts with
the unit vector e_r at every chunk of rank r and must end with the all-ones vector everywhere. This
is exact for every commutative monoid, hence for every sum of exact numbers; stale data can't hide,
because it would bring its own count along.

Chunks are processed in blocks that fit into ``BLOCK_BYTES``. Counts saturate at 255: a count above
one never comes back to one, except by being overwritten.
"""

from __future__ import annotations

import numpy as np

from verify.core.interpreter import Algebra, Values, run
from verify.core.schedule import IntArray, Schedule
from verify.core.verdict import PROVED, Counterexample, Result, refuted

BLOCK_BYTES = 2**27
SATURATED = 255


class Counts(Algebra):
    """Vectors of counts, ``uint8``, one for each contribution."""

    def initial(self, ranks: int, low: int, high: int) -> Values:
        """Each rank holds its own contribution once."""
        counts = np.zeros((ranks, high - low, ranks), np.uint8)
        counts[np.arange(ranks), :, np.arange(ranks)] = 1
        return counts

    def added(self, kept: Values, moved: Values, index: IntArray) -> Values:
        """The sums, cut at ``SATURATED``."""
        total: Values = kept + moved
        total[total < moved] = SATURATED  # it wrapped around
        return total


def exactly_once(schedule: Schedule) -> Result:
    """Property 4; the first wrong (chunk, rank) when it fails.

    Work grows with transfers times ranks; memory is bounded by ``BLOCK_BYTES`` and ranks².
    """
    n, k = schedule.ranks, schedule.chunks
    # A right schedule moves each chunk 2(n - 1) times: until some rank first knows all, n - 1
    # transfers join the contributions, and each other rank needs one more. A chunk with fewer is
    # wrong whatever the rest does, and looking at it first keeps absurd inputs cheap.
    moves = np.bincount(schedule.table.chunk, minlength=k)
    scarce = int(np.argmin(moves))
    width = max(1, BLOCK_BYTES // (n * n))
    blocks = [(low, min(k, low + width)) for low in range(0, k, width)]
    for low, high in [(scarce, scarce + 1)] if moves[scarce] < 2 * (n - 1) else blocks:
        counts = run(schedule, Counts(), low, high)
        for chunk in range(low, high):
            wrong = counts[:, chunk - low] != 1
            rank, contribution = divmod(int(wrong.argmax()), n)
            if wrong[rank, contribution]:
                number = int(counts[rank, chunk - low, contribution])
                return refuted(
                    Counterexample(
                        property="exactly_once",
                        rank=rank,
                        chunk=chunk,
                        contribution=contribution,
                        expected=f"the contribution of rank {contribution} once",
                        found=f"{'at least ' if number == SATURATED else ''}{number} times",
                    )
                )
    return PROVED
