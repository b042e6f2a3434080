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

from latecomer.verify.core.bits import final_trees
from latecomer.verify.core.interpreter import Algebra, Values, run
from latecomer.verify.core.schedule import IntArray, Schedule
from latecomer.verify.core.verdict import SHOWN, Counterexample, LocatedTransfer, locate

SHOWN_CHARACTERS = 160
"""Of a sum in a counterexample; a wrong schedule's can be of any length."""


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
        copies = [
            _Value(count=value.count, transfer=transfer, moved=value)
            for value, transfer in zip(moved, index.tolist(), strict=True)
        ]
        return np.array(copies, object)

    def added(self, kept: Values, moved: Values, index: IntArray) -> Values:
        sums = [
            _Value(held.count + added.count, transfer=transfer, moved=added, kept=held)
            for held, added, transfer in zip(kept, moved, index.tolist(), strict=True)
        ]
        return np.array(sums, object)


def explained(schedule: Schedule, counterexample: Counterexample) -> Counterexample:
    """What the core found, with why: where a wrong count arose, and the transfers that matter."""
    rank = counterexample.rank
    chunk = counterexample.chunk
    if rank is None or chunk is None:
        return counterexample
    if counterexample.contribution is not None:
        return explain(schedule, rank, chunk, counterexample.contribution)
    if counterexample.property == "same_bits":
        return _two_sums(schedule, rank, chunk)
    return counterexample


def _two_sums(schedule: Schedule, rank: int, chunk: int) -> Counterexample:
    """The sums that rank 0 and ``rank`` end with, and what was last written there."""
    trees, ends, low = final_trees(schedule)
    table = schedule.table
    operands = list(trees.sums)
    held = ends[:, chunk - low].tolist()

    into_either = (table.dst == rank) | (table.dst == 0)
    written = np.flatnonzero((table.chunk == chunk) & into_either)
    transfers = tuple(locate(schedule, int(index)) for index in written[-4:])
    last = transfers[-1] if transfers else None
    return Counterexample(
        property="same_bits",
        phase=last.phase if last else None,
        round=last.round if last else None,
        rank=rank,
        chunk=chunk,
        expected=f"the sum that rank 0 ends with: {_sum(held[0], operands, schedule.ranks)}",
        found=_sum(held[rank], operands, schedule.ranks),
        transfers=transfers,
    )


def _sum(tree: int, operands: list[tuple[int, int]], ranks: int) -> str:
    """The tree as a sum of ``x0`` .. ``x(n-1)``, cut where it gets long.

    With a stack in place of recursion: a wrong schedule's tree can have 2**rounds leaves.
    """
    text = ""
    pending: list[int | str] = [tree]
    while pending and len(text) < SHOWN_CHARACTERS:
        item = pending.pop()
        if isinstance(item, str):
            text += item
        elif item < ranks:
            text += f"x{item}"
        else:
            first, second = operands[item - ranks]
            pending += [")", second, " + ", first, "("]  # the last is taken first
    return f"{text} ..." if pending else text


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
    """Walk back from ``value`` to the reduce whose two operands held the contribution once each."""
    doubling = value
    while True:
        assert doubling.moved is not None
        holders = [
            operand
            for operand in (doubling.moved, doubling.kept)
            if operand is not None and operand.count
        ]
        earlier = next((operand for operand in holders if operand.count > 1), None)
        if earlier is None:
            break
        doubling = earlier

    assert doubling.transfer is not None
    transfers = {doubling.transfer}
    for holder in holders:
        transfers.update(_transfers_of(holder))

    fault = locate(schedule, doubling.transfer)
    found = "it is added to a sum that already holds it"
    if doubling is not value or fault.dst != rank:
        found += f", and rank {rank} ends with {value.count}"
    return Counterexample(
        property="exactly_once",
        phase=fault.phase,
        round=fault.round,
        rank=fault.dst,
        chunk=chunk,
        expected=f"the contribution of rank {contribution} once",
        found=found,
        transfers=_shown(schedule, transfers),
    )


def _missing(
    schedule: Schedule, final: list[_Value], rank: int, chunk: int, contribution: int
) -> Counterexample:
    """Show the last transfer into ``rank``, and how the contribution came to where it ends."""
    transfers = set()
    holders = []
    for holder, value in enumerate(final):
        if value.count:
            holders.append(str(holder))
            transfers.update(_transfers_of(value))

    last = None
    found = "it never arrives"
    last_index = final[rank].transfer
    if last_index is not None:
        last = locate(schedule, last_index)
        found = "the last transfer into it does not bring it"
        transfers.add(last_index)

    if holders:
        found += f"; it ends at rank(s) {', '.join(holders[:8])}"
    else:
        found += "; nobody ends with it"
    return Counterexample(
        property="exactly_once",
        phase=last.phase if last else None,
        round=last.round if last else None,
        rank=rank,
        chunk=chunk,
        expected=f"the contribution of rank {contribution} once",
        found=found,
        transfers=_shown(schedule, transfers),
    )


def _transfers_of(value: _Value) -> list[int]:
    """The transfers that brought the contribution into ``value`` (one way, newest first)."""
    transfers: list[int] = []
    while value.transfer is not None:
        assert value.moved is not None
        if value.moved.count:
            transfers.append(value.transfer)
            value = value.moved
        else:
            assert value.kept is not None
            value = value.kept
    return transfers


def _shown(schedule: Schedule, indices: set[int]) -> tuple[LocatedTransfer, ...]:
    """At most ``SHOWN`` transfers, the latest ones where there are more."""
    return tuple(locate(schedule, index) for index in sorted(indices)[-SHOWN:])
