"""Decide every property of a program, for every interleaving and every size that is meant."""

from __future__ import annotations

from collections.abc import Mapping

from verify.asynchronous.connections import connections_match, signals_match
from verify.asynchronous.deadlock import Freedom, deadlock_free
from verify.asynchronous.model import Program
from verify.asynchronous.order import Flat, Run
from verify.asynchronous.races import race_free
from verify.asynchronous.sizes import Sizes
from verify.asynchronous.values import right_values
from verify.core.verdict import PROVED, Result, Verdict, unknown


def check(
    program: Program, sizes: Sizes | None = None, found: Mapping[str, Result] | None = None
) -> tuple[dict[str, Result], Freedom]:
    """Check one program.

    Args:
        program: what runs.
        sizes: the sizes meant; None where messages are not split.
        found: what its reader has found out already, by property (``bounds``, and whatever can't
            be said in a program); where it is refuted the program's own check is not asked.

    Returns:
        Property -> result, in the order of the checks, and what deadlock depends on.
    """
    flat = Flat(program)
    found = dict(found or {})
    results = {
        "connections_match": found.get("connections_match") or connections_match(flat, sizes),
        "signals_match": signals_match(flat),
        "bounds": found.get("bounds", PROVED),
    }
    results["deadlock_free"], freedom = deadlock_free(flat, sizes)
    broken = [name for name, result in results.items() if result.verdict is Verdict.REFUTED]
    apart = [name for name in broken if name != "deadlock_free"]
    if apart or not freedom.unlimited:
        reason = f"{(apart or broken)[0]} is refuted, so there is no result to speak of"
        results["race_free"] = results["right_values"] = unknown(reason)
        return results, freedom
    results["race_free"], runs = race_free(flat, sizes)
    results["right_values"] = found.get("right_values") or _values(results["race_free"], runs)
    return results, freedom


def _values(race_free: Result, runs: list[Run]) -> Result:
    """The first wrong result of an execution; else, without races, that all are right."""
    for run in runs:
        result = right_values(run)
        if result.verdict is Verdict.REFUTED:
            return result
    if race_free.verdict is Verdict.PROVED:
        return PROVED
    return unknown("the result depends on the interleaving")
