"""One order for several scenarios by CP-SAT: as many models as scenarios, and one order for all.

Each scenario has start times of its own (``synth.pipeline.model``). For any two actions of a rank
whose order is open, one literal says which comes first, in all scenarios alike. Of two actions of a
stage only these are open: F, I or W of a microbatch against a later kind of an earlier microbatch.

Only for one stage per rank and links without occupancy: the order of messages, which is free here
in each scenario, would else have to be common, too. It scales badly; ``PAIRS`` is what is tried.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction

from ortools.sat.python import cp_model

from synth.pipeline.cpsat import MARGIN
from synth.pipeline.evaluate import makespan
from synth.pipeline.model import Model, unit_of
from synth.pipeline.problem import Orders, Problem, Starts
from synth.pipeline.timed import compute_only
from synth.solvers.cpsat import set_up
from synth.solvers.interrupt import interruptible
from verify.pipeline.schedule import Action, Kind

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
    parts = [
        Model(problem, hint, -(-bound // unit_of(problem)), most, into=model)
        for problem, bound, most in zip(
            problems, bounds, _most(problems, weights, bounds, hint), strict=True
        )
    ]
    _one_order(model, parts)
    each = [
        Fraction(part.unit, part.problem.costs.ticks) * (1 if weights is None else weights[i])
        for i, part in enumerate(parts)
    ]
    scale = math.lcm(*(factor.denominator for factor in each))
    values = [
        int(factor * scale) * part.objective for factor, part in zip(each, parts, strict=True)
    ]
    if weights is None:
        high = max(int(f * scale) * part.most for f, part in zip(each, parts, strict=True))
        value = model.new_int_var(0, high, "")
        for term in values:
            model.add(value >= term)
        model.minimize(value)
    else:
        model.minimize(cp_model.LinearExpr.sum(values))
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
    first = parts[0]
    begin = {action: solver.value(x) * first.unit for action, x in first.start.items()}
    return compute_only(first.problem, Starts(begin, {})), bound, False


def _most(
    problems: Sequence[Problem],
    weights: Sequence[Fraction] | None,
    bounds: Sequence[int],
    hint: Orders,
) -> list[int]:
    """Per scenario the longest makespan with which the objective can still be that of the hint."""
    ticks = [problem.costs.ticks for problem in problems]
    times = [Fraction(makespan(p, hint), t) for p, t in zip(problems, ticks, strict=True)]
    if weights is None:
        allowed = [max(times)] * len(times)
    else:
        spare = sum(
            (w * (time - Fraction(low, t)) for w, time, low, t in
             zip(weights, times, bounds, ticks, strict=True)), Fraction(0),
        )  # fmt: skip
        allowed = [
            Fraction(low, t) + spare / w for w, low, t in zip(weights, bounds, ticks, strict=True)
        ]
    return [
        math.floor(time * t) // unit_of(problem)
        for time, t, problem in zip(allowed, ticks, problems, strict=True)
    ]


def _one_order(model: cp_model.CpModel, parts: Sequence[Model]) -> None:
    problem = parts[0].problem
    known = parts[0].known
    for stage in range(problem.stages):
        for kind, other_kind in itertools.combinations(KINDS, 2):
            for m, earlier in itertools.combinations(range(problem.microbatches - 1, -1, -1), 2):
                one = Action(stage, kind, m)
                other = Action(stage, other_kind, earlier)
                first = model.new_bool_var("")
                model.add_hint(first, known[one] < known[other])
                for part in parts:
                    part.in_turn(one, other, first)
                    part.in_turn(other, one, first.negated())
