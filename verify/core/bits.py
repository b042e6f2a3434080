"""Property 5: all ranks end with the same bits, in floating point too.

IEEE addition commutes but does not associate, so two ranks hold equal bits for certain when their
values come from the same expression tree, up to swapping the two operands of an addition. Every
tree gets a number: rank r's own data is tree r, and the sum of trees a and b is a new number for
the unordered pair {a, b}. Equal numbers mean equal trees (hash-consing).
"""

from __future__ import annotations

import numpy as np

from latecomer.verify.core.interpreter import Algebra, Values, run
from latecomer.verify.core.schedule import IntArray, Schedule
from latecomer.verify.core.verdict import PROVED, Counterexample, Result, refuted


class TreeNumbers(Algebra):
    """The numbers of expression trees; 0 .. n-1 are the ranks' own data.

    Attributes:
        sums: the numbers of the two operands, for the trees n, n + 1, ... in this order.
    """

    def __init__(self) -> None:
        self.sums: dict[tuple[int, int], int] = {}

    def initial(self, ranks: int, low: int, high: int) -> Values:
        """Each rank holds its own data."""
        self._ranks = ranks
        return np.repeat(np.arange(ranks), high - low).reshape(ranks, high - low)

    def added(self, kept: Values, moved: Values, index: IntArray) -> Values:
        """The numbers of the sums; a new sum gets the next one."""
        # the smaller number first: a pair has no order
        smaller = np.minimum(kept, moved).tolist()
        larger = np.maximum(kept, moved).tolist()
        pairs = zip(smaller, larger, strict=True)
        n = self._ranks
        sums = self.sums
        return np.array([sums.setdefault(pair, n + len(sums)) for pair in pairs])


def final_trees(schedule: Schedule) -> tuple[TreeNumbers, Values, int]:
    """The trees that are held at the end, by rank and chunk - low, their numbering, and low."""
    low = 0
    high = schedule.chunks

    # All ranks but one have to receive a chunk. A chunk that moves less often differs whatever the
    # others do, and looking at it alone keeps absurd inputs cheap.
    moves = np.bincount(schedule.table.chunk, minlength=schedule.chunks)
    least_moved = int(np.argmin(moves))
    if moves[least_moved] < schedule.ranks - 1:
        low = least_moved
        high = least_moved + 1

    trees = TreeNumbers()
    return trees, run(schedule, trees, low, high), low


def same_bits(schedule: Schedule) -> Result:
    """Property 5; a rank that ends with another sum than rank 0 when it fails."""
    _, held, low = final_trees(schedule)
    differing = held != held[0]
    rank, column = divmod(int(differing.argmax()), held.shape[1])
    if not differing[rank, column]:
        return PROVED

    return refuted(
        Counterexample(
            property="same_bits",
            rank=rank,
            chunk=low + column,
            expected="the sum that rank 0 ends with",
            found="another sum, or the same in another order",
        )
    )
