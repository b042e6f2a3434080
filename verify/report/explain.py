"""Why a contribution is missing or counted twice: the few transfers that matter.

One chunk and one contribution are followed through the schedule with exact counts. Every value
remembers the transfer that made it, so the fault can be walked back to where it arose:

    counted twice   the reduce at which two values met that both held the contribution, and the
                    way it took into each of them
    missing         the last transfer into the rank, and the ways the contribution took at all
"""

from __future__ import annotations

from dataclasses import dataclass

from verify.core.schedule import Schedule
from verify.core.verdict import SHOWN, Counterexample, LocatedTransfer, locate


@dataclass(frozen=True, eq=False)
class _Value:
    """What a rank holds: ``count`` of the contribution, and how this value came about."""

    count: int
    transfer: int | None = None
    moved: _Value | None = None  # what the transfer carried
    kept: _Value | None = None  # what it was added to (reduce only)


def explain(schedule: Schedule, rank: int, chunk: int, contribution: int) -> Counterexample:
    """Describe why ``rank`` ends without exactly one ``contribution`` in ``chunk``."""
    final = _follow(schedule, chunk, contribution)
    value = final[rank]
    assert value.count != 1
    if value.count == 0:
        return _missing(schedule, final, rank, chunk, contribution)
    return _twice(schedule, value, rank, chunk, contribution)


def _follow(schedule: Schedule, chunk: int, contribution: int) -> list[_Value]:
    state = [_Value(int(rank == contribution)) for rank in range(schedule.ranks)]
    table = schedule.table
    for transfers in table.rounds_of(chunk, chunk + 1):
        carried = [state[table.src[i]] for i in transfers]  # all read the start of the round
        for i, moved in zip(map(int, transfers), carried, strict=True):
            dst = table.dst[i]
            if table.reduce[i]:
                kept = state[dst]
                state[dst] = _Value(kept.count + moved.count, i, moved, kept)
            else:
                state[dst] = _Value(moved.count, i, moved)
    return state


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
        value, after = double, after + 1
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
