"""Decide every property of a program, for every interleaving and every size that is meant."""

from __future__ import annotations

from collections.abc import Mapping

from latecomer.verify.asynchronous.connections import connections_match, signals_match
from latecomer.verify.asynchronous.deadlock import Freedom, deadlock_free
from latecomer.verify.asynchronous.model import BlockProgram
from latecomer.verify.asynchronous.order import FlatProgram, Run
from latecomer.verify.asynchronous.races import race_free
from latecomer.verify.asynchronous.sizes import Sizes
from latecomer.verify.asynchronous.values import right_values
from latecomer.verify.core.verdict import PROVED, Result, Verdict, unknown


def check(
    program: BlockProgram,
    sizes: Sizes | None = None,
    refutations: Mapping[str, Result] | None = None,
) -> tuple[dict[str, Result], Freedom]:
    """Check one program.

    Args:
        program: what runs.
        sizes: the sizes meant; None where messages are not split.
        refutations: what its reader has refuted already, by property (``bounds``, and whatever
            can't be said in a program); the program's own check is not asked then.

    Returns:
        Property -> result, in the order of the checks, and what deadlock depends on.
    """
    flat = FlatProgram(program)
    refutations = refutations or {}
    connections = refutations.get("connections_match") or connections_match(flat, sizes)
    results = {
        "connections_match": connections,
        "signals_match": signals_match(flat),
        "bounds": refutations.get("bounds", PROVED),
    }
    results["deadlock_free"], freedom = deadlock_free(flat, sizes)

    # Races and values are about executions that end. If only slots are lacking, there are some:
    # at smaller sizes, or with FIFOs without bound.
    refuted = [name for name, result in results.items() if result.verdict is Verdict.REFUTED]
    others_refuted = [name for name in refuted if name != "deadlock_free"]
    if others_refuted or not freedom.unlimited:
        first_refuted = (others_refuted or refuted)[0]
        reason = f"{first_refuted} is refuted, so there is no result to speak of"
        results["race_free"] = unknown(reason)
        results["right_values"] = unknown(reason)
        return results, freedom

    results["race_free"], runs = race_free(flat, sizes)
    values = refutations.get("right_values") or _values_of(runs, results["race_free"])
    results["right_values"] = values
    return results, freedom


def _values_of(runs: list[Run], race_free: Result) -> Result:
    """The first wrong result of an execution; else, without races, that all are right."""
    for run in runs:
        result = right_values(run)
        if result.verdict is Verdict.REFUTED:
            return result
    if race_free.verdict is Verdict.PROVED:
        return PROVED
    return unknown("the result depends on the interleaving")
