"""All properties of a schedule, in order, as one report."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from latecomer.verify.core.bits import same_bits
from latecomer.verify.core.bounds import Optimality, claims, lower_bound, optimality
from latecomer.verify.core.programs import deadlock_free, programs
from latecomer.verify.core.schedule import Schedule
from latecomer.verify.core.semantics import exactly_once
from latecomer.verify.core.structure import absence, hazards, ports, staging, well_formed
from latecomer.verify.core.verdict import Report, Result, Verdict, overall, unknown

Decide = Callable[[Schedule], Result]

PROPERTIES: dict[str, Decide] = {
    "ports": ports,
    "absence": absence,
    "exactly_once": exactly_once,
    "same_bits": same_bits,
    "hazards": hazards,
    "deadlock_free": lambda schedule: deadlock_free(programs(schedule)),
}
"""Properties 2 to 7 of a well formed schedule, by name."""


def check(schedule: Schedule, more: Mapping[str, Decide] | None = None) -> Report:
    """Decide every property of ``schedule``; never raises for a bad schedule.

    Args:
        schedule: what to check; nothing in its ``meta`` is believed.
        more: further properties to decide, by name (:mod:`latecomer.verify.symbolic` has one).
    """
    results = {"well_formed": well_formed(schedule)}
    is_well_formed = results["well_formed"].verdict is Verdict.PROVED
    optimal: Optimality = False
    if is_well_formed:
        deciders = PROPERTIES | dict(more or {})
        for name, decide in deciders.items():
            results[name] = decide(schedule)
        if overall(result.verdict for result in results.values()) is not Verdict.REFUTED:
            optimal = optimality(schedule)
        results["claims"] = claims(schedule, optimal)
    else:
        # the other checks take indices for granted
        meaningless = unknown("the schedule is not well formed")
        results |= dict.fromkeys([*PROPERTIES, "claims"], meaningless)

    return Report(
        kind=schedule.kind,
        ranks=schedule.ranks,
        chunks=schedule.chunks,
        rounds=schedule.rounds,
        completion_rounds=schedule.completion_rounds,
        lower_bound=lower_bound(schedule) if is_well_formed else 0,
        optimal=optimal,
        staging=staging(schedule) if is_well_formed else 0,
        results=results,
    )
