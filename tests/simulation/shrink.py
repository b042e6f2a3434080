"""The ways in which a plan can be made smaller."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import msgspec

from tests.simulation.plan import Cut, Fault, Kill, Plan, Stop

CALM: dict[str, Any] = {
    "lost": 0.0,
    "doubled": 0.0,
    "delayed": 0.0,
    "short": 0.0,
    "pause": 0.0,
    "switch": 0.0,
    "window": 1,
    "waits": -1,
    "buffer": 262_144,
}


def smaller(plan: Plan) -> Iterator[Plan]:
    """Plans with less in them, the most promising ones first."""
    for index in range(len(plan.faults)):
        faults = plan.faults[:index] + plan.faults[index + 1 :]
        yield msgspec.structs.replace(plan, faults=faults)
    if plan.ranks > 2:
        yield from _without_last_rank(plan)
    half = len(plan.sizes) // 2
    if half:
        yield msgspec.structs.replace(plan, sizes=plan.sizes[:half])
        yield msgspec.structs.replace(plan, sizes=plan.sizes[half:])
    for index in range(len(plan.sizes) if len(plan.sizes) > 1 else 0):
        sizes = plan.sizes[:index] + plan.sizes[index + 1 :]
        yield msgspec.structs.replace(plan, sizes=sizes)
    for name, calm in CALM.items():
        if getattr(plan, name) != calm:
            yield msgspec.structs.replace(plan, **{name: calm})
    if any(plan.drifts):
        yield msgspec.structs.replace(plan, drifts=(0.0,) * plan.ranks)
    for name in plan.bent:
        bent = {other: number for other, number in plan.bent.items() if other != name}
        yield msgspec.structs.replace(plan, bent=bent)
    if any(plan.lateness_s):
        yield msgspec.structs.replace(plan, lateness_s=(0.0,) * plan.ranks)
    if len(plan.schedules) > 1:
        yield msgspec.structs.replace(plan, schedules=plan.schedules[:1])


def _without_last_rank(plan: Plan) -> Iterator[Plan]:
    ranks = plan.ranks - 1
    faults = [_without(fault, ranks) for fault in plan.faults]
    yield msgspec.structs.replace(
        plan,
        ranks=ranks,
        lateness_s=plan.lateness_s[:ranks],
        drifts=plan.drifts[:ranks],
        faults=tuple(itertools.chain.from_iterable(faults)),
    )


def _without(fault: Fault, rank: int) -> tuple[Fault, ...]:
    """The fault in a job without this rank; none if nothing is left of it."""
    if isinstance(fault, Kill | Stop) and fault.rank == rank:
        return ()
    if isinstance(fault, Cut):
        senders = tuple(sender for sender in fault.senders if sender != rank)
        receivers = tuple(receiver for receiver in fault.receivers if receiver != rank)
        smaller = msgspec.structs.replace(fault, senders=senders, receivers=receivers)
        return (smaller,) if senders and receivers else ()
    return (fault,)
