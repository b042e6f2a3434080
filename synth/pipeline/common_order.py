"""One order for several scenarios by CP-SAT: as many models as scenarios, and one order for all.

Each scenario has start times of its own (``latecomer.synth.pipeline.model``). For any two actions
of a rank whose order is open, one literal says which comes first, in all scenarios alike. Of two
actions of a stage only these are open: F, I or W of a microbatch against a later kind of an earlier
microbatch.

Only for one stage per rank and links without occupancy: the order of messages, which is free here
in each scenario, would else have to be common, too. It scales badly; ``PAIRS`` is what is tried.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction

from ortools.sat.python import cp_model

from latecomer.synth.pipeline.cpsat import MARGIN
from latecomer.synth.pipeline.evaluate import makespan
from latecomer.synth.pipeline.model import PipelineModel, unit_of
from latecomer.synth.pipeline.problem import Orders, Problem, Starts
from latecomer.synth.pipeline.timed import compute_only
from latecomer.synth.solvers.cpsat import set_up
from latecomer.synth.solvers.interrupt import interruptible
from latecomer.verify.pipeline.schedule import Action, Kind

PAIRS = 8000
"""Literals times scenarios up to which the solver is asked."""
KINDS: tuple[Kind, ...] = ("F", "I", "W")


def suits(problems: Sequence[Problem]) -> bool:
    """Whether the solver can be asked for these scenarios."""
    n = problems[0].microbatches
    stages = problems[0].stages
    pairs = 3 * n * (n - 1) // 2 * stages * len(problems)
    held = any(occupancy for problem in problems for _, occupancy, _ in problem.between)
    return problems[0].virtual == 1 and not held and pairs <= PAIRS


def solve(
    problems: Sequence[Problem],
    weights: Sequence[Fraction] | None,
    bounds: Sequence[int],
    hint: Orders,
    *,
    time_limit_s: float,
    seed: int,
    workers: int,
) -> tuple[Orders, Fraction, bool]:
    """(orders, lower bound on the objective, whether Ctrl-C ended it).

    Args:
        problems: the scenarios; ``suits`` holds.
        weights: those of the mean, adding up to 1; None for the worst case.
        bounds: on the makespan of each scenario, in ticks.
        hint: right orders of split backwards; what is returned is no worse.
    """
    model = cp_model.CpModel()
    longest = _longest(problems, weights, bounds, hint)
    parts = []
    for problem, bound_ticks, longest_units in zip(problems, bounds, longest, strict=True):
        bound_units = -(-bound_ticks // unit_of(problem))
        parts.append(PipelineModel(problem, hint, bound_units, longest_units, into=model))
    _one_order(model, parts)
    scale = _minimize(model, parts, weights)

    solver = set_up(seed, time_limit_s, workers)
    try:
        status = interruptible(lambda: solver.solve(model), solver.stop_search)
    except KeyboardInterrupt:
        return hint, Fraction(0), True
    assert status in (cp_model.OPTIMAL, cp_model.FEASIBLE, cp_model.UNKNOWN), (
        f"CP-SAT: {solver.status_name(status)} {model.validate()}"
    )
    bound = Fraction(math.ceil(solver.best_objective_bound - MARGIN), scale)
    if status == cp_model.UNKNOWN:
        return hint, bound, False
    part = parts[0]
    begin = {action: solver.value(x) * part.unit for action, x in part.start.items()}
    return compute_only(part.problem, Starts(begin, {})), bound, False


def _minimize(
    model: cp_model.CpModel, parts: Sequence[PipelineModel], weights: Sequence[Fraction] | None
) -> int:
    """Give the model its objective, in whole numbers; so many of them are one unit of time."""
    factors = [Fraction(part.unit, part.problem.costs.ticks) for part in parts]
    if weights is not None:
        factors = [factor * weight for factor, weight in zip(factors, weights, strict=True)]
    scale = math.lcm(*(factor.denominator for factor in factors))
    whole_factors = [int(factor * scale) for factor in factors]
    terms = [factor * part.objective for factor, part in zip(whole_factors, parts, strict=True)]

    if weights is None:
        highest = max(
            factor * part.longest for factor, part in zip(whole_factors, parts, strict=True)
        )
        worst = model.new_int_var(0, highest, "")
        for term in terms:
            model.add(worst >= term)
        model.minimize(worst)
    else:
        model.minimize(cp_model.LinearExpr.sum(terms))
    return scale


def _longest(
    problems: Sequence[Problem],
    weights: Sequence[Fraction] | None,
    bounds: Sequence[int],
    hint: Orders,
) -> list[int]:
    """Per scenario the longest makespan with which the objective can still be that of the hint."""
    times = [Fraction(makespan(problem, hint), problem.costs.ticks) for problem in problems]
    if weights is None:
        allowed = [max(times)] * len(times)
    else:
        lowest = [
            Fraction(bound, problem.costs.ticks)
            for bound, problem in zip(bounds, problems, strict=True)
        ]
        # one scenario may take what all others save, if these are at their bounds
        spare = Fraction(0)
        for weight, time, low in zip(weights, times, lowest, strict=True):
            spare += weight * (time - low)
        allowed = [low + spare / weight for weight, low in zip(weights, lowest, strict=True)]

    return [
        math.floor(time * problem.costs.ticks) // unit_of(problem)
        for time, problem in zip(allowed, problems, strict=True)
    ]


def _one_order(model: cp_model.CpModel, parts: Sequence[PipelineModel]) -> None:
    """Of any two actions whose order is open the same one comes first in all scenarios."""
    problem = parts[0].problem
    hinted = parts[0].hinted
    latest_first = range(problem.microbatches - 1, -1, -1)
    for stage in range(problem.stages):
        for kind, later_kind in itertools.combinations(KINDS, 2):
            for microbatch, earlier in itertools.combinations(latest_first, 2):
                ahead = Action(stage, kind, microbatch)
                behind = Action(stage, later_kind, earlier)
                ahead_is_first = model.new_bool_var("")
                model.add_hint(ahead_is_first, hinted[ahead] < hinted[behind])
                for part in parts:
                    part.in_turn(ahead, behind, ahead_is_first)
                    part.in_turn(behind, ahead, ahead_is_first.negated())
