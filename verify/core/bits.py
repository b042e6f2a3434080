"""Property 5: all ranks end with the same bits, in floating point too.

IEEE addition commutes but does not associate, so two ranks hold equal bits for certain when their
values come from the same expression tree, up to swapping the two operands of an addition. Every
tree gets a number: rank r's own data is tree r, and the sum of trees a and b is a new number for
the unordered pair {a, b}. Equal numbers mean equal trees (hash-consing).
"""

from __future__ import annotations

import numpy as np

from verify.core.interpreter import Algebra, Values, run
from verify.core.schedule import IntArray, Schedule
from verify.core.verdict import PROVED, Counterexample, Result, locate, refuted

SHOWN_CHARACTERS = 160


class Trees(Algebra):
    """The numbering of expression trees; the first n numbers are the ranks' own data."""

    def __init__(self) -> None:
        self._ranks = 0
        self._number: dict[tuple[int, int], int] = {}
        self._operands: list[tuple[int, int]] = []

    def initial(self, ranks: int, low: int, high: int) -> Values:
        """Each rank holds its own data."""
        self._ranks = ranks
        return np.repeat(np.arange(ranks), high - low).reshape(ranks, high - low)

    def added(self, kept: Values, moved: Values, index: IntArray) -> Values:
        """The numbers of the sums; a new sum gets the next one."""
        low, high = np.minimum(kept, moved).tolist(), np.maximum(kept, moved).tolist()
        return np.array([self._sum(pair) for pair in zip(low, high, strict=True)])

    def _sum(self, pair: tuple[int, int]) -> int:
        number = self._number.get(pair)
        if number is None:
            number = self._number[pair] = self._ranks + len(self._operands)
            self._operands.append(pair)
        return number

    def text(self, tree: int) -> str:
        """The tree as a sum of ``x0`` .. ``x(n-1)``, cut where it gets long."""
        parts: list[str] = []
        pending: list[int | str] = [tree]
        length = 0
        while pending and length < SHOWN_CHARACTERS:
            item = pending.pop()
            if isinstance(item, str):
                parts.append(item)
            elif item < self._ranks:
                parts.append(f"x{item}")
            else:
                left, right = self._operands[item - self._ranks]
                pending += [")", right, " + ", left, "("]
                continue
            length += len(parts[-1])
        return "".join(parts) + (" ..." if pending else "")


def same_bits(schedule: Schedule) -> Result:
    """Property 5, with two ranks and their two sums when it fails."""
    table, n, k = schedule.table, schedule.ranks, schedule.chunks
    trees = Trees()
    # All ranks but one have to receive a chunk. One that moves less often differs whatever the
    # rest does, and looking at it first keeps absurd inputs cheap.
    moves = np.bincount(table.chunk, minlength=k)
    scarce = int(np.argmin(moves))
    low, high = (scarce, scarce + 1) if moves[scarce] < n - 1 else (0, k)
    held = run(schedule, trees, low, high)
    differing = held != held[0]
    rank, column = divmod(int(differing.argmax()), high - low)
    if not differing[rank, column]:
        return PROVED
    chunk = low + column
    written = np.flatnonzero((table.chunk == chunk) & ((table.dst == rank) | (table.dst == 0)))
    last = locate(schedule, int(written[-1])) if len(written) else None
    return refuted(
        Counterexample(
            property="same_bits",
            phase=last.phase if last else None,
            round=last.round if last else None,
            rank=rank,
            chunk=chunk,
            expected=f"the sum that rank 0 ends with: {trees.text(int(held[0, column]))}",
            found=trees.text(int(held[rank, column])),
            transfers=tuple(locate(schedule, int(i)) for i in written[-4:]),
        )
    )
