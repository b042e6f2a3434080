"""Property 4: every contribution reaches every rank exactly once.

A value counts how often each rank's contribution is in it: a vector in N^n. AllReduce starts with
the unit vector e_r at every chunk of rank r and must end with the all-ones vector everywhere. This
is exact for every commutative monoid, hence for every sum of exact numbers; stale data can't hide,
because it would bring its own count along.

Chunks are processed in blocks that fit into ``BLOCK_BYTES``. Counts saturate at 2: a count above
one never comes back to one, except by being overwritten. So two bits are enough for each.
"""

from __future__ import annotations

import numpy as np

from latecomer.verify.core.interpreter import Algebra, Values, run
from latecomer.verify.core.schedule import IntArray, Schedule
from latecomer.verify.core.verdict import PROVED, Counterexample, Result, refuted

BLOCK_BYTES = 2**24
"""For the counts of a block; a chunk of 16,384 ranks alone takes four times as much."""


class Counts(Algebra):
    """For each contribution two bits, eight to a byte: [0] it is there, [1] more than once."""

    def initial(self, ranks: int, low: int, high: int) -> Values:
        """Each rank holds its own contribution once."""
        counts = np.zeros((ranks, high - low, 2, -(-ranks // 8)), np.uint8)
        counts[range(ranks), :, 0, np.arange(ranks) // 8] = 128 >> np.arange(ranks)[:, None] % 8
        return counts

    def added(self, kept: Values, moved: Values, index: IntArray) -> Values:
        """What is in one of both is there; what is in both is there more than once."""
        total: Values = kept | moved
        total[:, 1] |= kept[:, 0] & moved[:, 0]
        return total


def exactly_once(schedule: Schedule) -> Result:
    """Property 4; the first wrong (chunk, rank) when it fails.

    Work grows with transfers times ranks; memory is bounded by ``BLOCK_BYTES`` and ranks².
    """
    n = schedule.ranks
    k = schedule.chunks
    right = np.packbits([[1] * n, [0] * n], axis=1)  # all are there, none more than once
    width = max(1, BLOCK_BYTES // (n * right.size))
    blocks = [(low, min(k, low + width)) for low in range(0, k, width)]

    # A right schedule moves each chunk 2(n - 1) times: until some rank first knows all, n - 1
    # transfers join the contributions, and each other rank needs one more. A chunk with fewer is
    # wrong whatever the others do, and looking at it alone keeps absurd inputs cheap.
    moves = np.bincount(schedule.table.chunk, minlength=k)
    least_moved = int(np.argmin(moves))
    if moves[least_moved] < 2 * (n - 1):
        blocks = [(least_moved, least_moved + 1)]

    for low, high in blocks:
        counts = run(schedule, Counts(), low, high)
        for chunk in range(low, high):
            wrong_ranks = np.flatnonzero((counts[:, chunk - low] != right).any((1, 2)))
            if len(wrong_ranks):
                rank = int(wrong_ranks[0])
                return _miscounted(rank, chunk, counts[rank, chunk - low], n)
    return PROVED


def _miscounted(rank: int, chunk: int, bits: Values, ranks: int) -> Result:
    """A refutation: the first contribution that is not once in what ``rank`` holds of ``chunk``.

    Args:
        rank, chunk: where; ``bits`` (as in ``Counts``): what is there, at the end.
        ranks: how many there are.
    """
    counts = np.unpackbits(bits, axis=1, count=ranks).sum(0)  # 2 stands for two or more
    contribution = int((counts != 1).argmax())
    return refuted(
        Counterexample(
            property="exactly_once",
            rank=rank,
            chunk=chunk,
            contribution=contribution,
            expected=f"the contribution of rank {contribution} once",
            found="at least 2 times" if counts[contribution] else "0 times",
        )
    )
