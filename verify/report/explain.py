"""Why a contribution is missing or counted twice, or sums differ: the few transfers that matter.

One chunk and one contribution are followed through the schedule with exact counts. Every value
remembers the transfer that made it, so the fault can be walked back to where it arose:

    counted twice   the reduce at which two values met that both held the contribution, and the
                    way it took into each of them
    missing         the last transfer into the rank, and the ways the contribution took at all
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verify.core.bits import final_trees
from verify.core.interpreter import Algebra, Values, run
from verify.core.schedule import IntArray, Schedule
from verify.core.verdict import SHOWN, Counterexample, LocatedTransfer, locate

SHOWN_CHARACTERS = 160


@dataclass(frozen=True, eq=False)
class _Value:
    """What a rank holds: ``count`` of the contribution, and how this value came about."""

    count: int
    transfer: int | None = None
    moved: _Value | None = None  # what the transfer carried
    kept: _Value | None = None  # what it was added to (reduce only)


@dataclass
class _Histories(Algebra):
    """Values that remember how they came about, for one contribution."""

    contribution: int

    def initial(self, ranks: int, low: int, high: int) -> Values:
        values = [_Value(int(rank == self.contribution)) for rank in range(ranks)]
        return np.array([values] * (high - low), object).T.copy()

    def copied(self, moved: Values, index: IntArray) -> Values:
        made = [_Value(m.count, i, m) for m, i in zip(moved, index.tolist(), strict=True)]
        return np.array(made, object)

    def added(self, kept: Values, moved: Values, index: IntArray) -> Values:
        each = zip(kept, moved, index.tolist(), strict=True)
        return np.array([_Value(k.count + m.count, i, m, k) for k, m, i in each], object)


def explained(schedule: Schedule, found: Counterexample) -> Counterexample:
    """What the core found, with why: where a wrong count arose, and the transfers that matter."""
    if found.rank is None or found.chunk is None:
        return found
    if found.contribution is not None:
        return explain(schedule, found.rank, found.chunk, found.contribution)
    if found.property == "same_bits":
        return _two_sums(schedule, found.rank, found.chunk)
    return found


def _two_sums(schedule: Schedule, rank: int, chunk: int) -> Counterexample:
    """The sums that rank 0 and ``rank`` end with, and what was last written there."""
    trees, ends, low = final_trees(schedule)
    table = schedule.table
    operands = list(trees.sums)
    held = ends[:, chunk - low].tolist()
    written = np.flatnonzero((table.chunk == chunk) & ((table.dst == rank) | (table.dst == 0)))
    places = tuple(locate(schedule, int(i)) for i in written[-4:])
    return Counterexample(
        property="same_bits",
        phase=places[-1].phase if places else None,
        round=places[-1].round if places else None,
        rank=rank,
        chunk=chunk,
        expected=f"the sum that rank 0 ends with: {_sum(held[0], operands, schedule.ranks)}",
        found=_sum(held[rank], operands, schedule.ranks),
        transfers=places,
    )


def _sum(tree: int, operands: list[tuple[int, int]], ranks: int) -> str:
    """The tree as a sum of ``x0`` .. ``x(n-1)``, cut where it gets long."""
    parts: list[str] = []
    pending: list[int | str] = [tree]
    length = 0
    while pending and length < SHOWN_CHARACTERS:
        item = pending.pop()
        if isinstance(item, int) and item >= ranks:
            left, right = operands[item - ranks]
            pending += [")", right, " + ", left, "("]
        else:
            parts.append(item if isinstance(item, str) else f"x{item}")
            length += len(parts[-1])
    return "".join(parts) + (" ..." if pending else "")


def explain(schedule: Schedule, rank: int, chunk: int, contribution: int) -> Counterexample:
    """Describe why ``rank`` ends without exactly one ``contribution`` in ``chunk``."""
    final = run(schedule, _Histories(contribution), chunk, chunk + 1)[:, 0].tolist()
    value = final[rank]
    assert value.count != 1
    if value.count == 0:
        return _missing(schedule, final, rank, chunk, contribution)
    return _twice(schedule, value, rank, chunk, contribution)


def _twice(
    schedule: Schedule, value: _Value, rank: int, chunk: int, contribution: int
) -> Counterexample:
    total = value.count
    after = 0
    while True:
        assert value.moved is not None
        holders = [v for v in (value.moved, value.kept) if v is not None and v.count]
        double = next((v for v in holders if v.count > 1), None)
        if double is None:
            break
        value = double
        after = after + 1
    assert value.transfer is not None
    ways = {value.transfer}
    for holder in holders:
        ways.update(_way(holder))
    place = locate(schedule, value.transfer)
    spread = f", and rank {rank} ends with {total}" if after or place.dst != rank else ""
    return Counterexample(
        property="exactly_once",
        phase=place.phase,
        round=place.round,
        rank=place.dst,
        chunk=chunk,
        expected=f"the contribution of rank {contribution} once",
        found=f"it is added to a sum that already holds it{spread}",
        transfers=_shown(schedule, ways),
    )


def _missing(
    schedule: Schedule, final: list[_Value], rank: int, chunk: int, contribution: int
) -> Counterexample:
    last = final[rank].transfer
    matter = set() if last is None else {last}
    for value in final:
        if value.count:
            matter.update(_way(value))
    place = None if last is None else locate(schedule, last)
    holders = [str(r) for r, value in enumerate(final) if value.count]
    found = "it never arrives" if last is None else "the last transfer into it does not bring it"
    ends = f"; it ends at rank(s) {', '.join(holders[:8])}" if holders else "; nobody ends with it"
    return Counterexample(
        property="exactly_once",
        phase=place.phase if place else None,
        round=place.round if place else None,
        rank=rank,
        chunk=chunk,
        expected=f"the contribution of rank {contribution} once",
        found=found + ends,
        transfers=_shown(schedule, matter),
    )


def _way(value: _Value) -> list[int]:
    """The transfers that brought the contribution into ``value`` (one way, newest first)."""
    way: list[int] = []
    while value.transfer is not None:
        assert value.moved is not None
        if value.moved.count:
            way.append(value.transfer)
            value = value.moved
        else:
            assert value.kept is not None
            value = value.kept
    return way


def _shown(schedule: Schedule, indices: set[int]) -> tuple[LocatedTransfer, ...]:
    """At most ``SHOWN`` transfers, the latest ones where there are more."""
    return tuple(locate(schedule, index) for index in sorted(indices)[-SHOWN:])
