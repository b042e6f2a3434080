"""The optimum by CP-SAT, started from the best schedule known and never worse than it.

The solver knows that schedule's makespan and the closed-form bound, so it looks only for what is
better, and may stop at once where it meets the bound. Stopped by the clock or by Ctrl-C it answers
with the best so far.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from ortools.sat.python import cp_model

from latecomer.synth.pipeline.evaluate import makespan
from latecomer.synth.pipeline.model import PipelineModel, unit_of
from latecomer.synth.pipeline.problem import Orders, Problem, Starts
from latecomer.synth.solvers.cpsat import set_up
from latecomer.synth.solvers.interrupt import interruptible

# CP-SAT computes in 64 bits.
LONGEST = 2**40
"""Longest makespan asked of the solver, in units of the model."""
INTERRUPTED = "interrupted"
MARGIN = 1e-6
"""What the solver's bound, a float, may be off."""


@dataclass(frozen=True)
class Solved:
    """What the solver found.

    Attributes:
        starts: the better schedule; None if nothing better than the hint was found.
        makespan, bound: in ticks; no schedule is below the bound.
        note: why it stopped, in words.
        improvements: (seconds, makespan) of every better schedule, in turn.
    """

    starts: Starts | None
    makespan: int
    bound: int
    note: str
    improvements: tuple[tuple[float, int], ...] = ()


def solve(
    problem: Problem,
    hint: Orders,
    *,
    time_limit_s: float,
    seed: int = 0,
    workers: int = 1,
    better: Callable[[int, int], None] = lambda makespan, bound: None,
) -> Solved:
    """Look for a shorter schedule.

    Args:
        problem: what is asked.
        hint: right orders of split backwards, within memory.
        time_limit_s, seed, workers: of the solver.
        better: is told makespan and bound, in ticks, whenever a better schedule is found.
    """
    hinted = makespan(problem, hint)
    unit = unit_of(problem)
    bound = problem.closed_form
    if hinted // unit > LONGEST:
        return Solved(None, hinted, bound, "times are too long and fine for the solver")

    # The makespan is a multiple of the unit, so the bound is rounded up to one.
    model = PipelineModel(problem, hint, bound=-(-bound // unit), longest=hinted // unit)
    solver = set_up(seed, time_limit_s, workers)
    solutions = _Solutions(model, better)
    try:
        status = interruptible(lambda: solver.solve(model.model, solutions), solver.stop_search)
        note = "searched everything"
        if status != cp_model.OPTIMAL:
            note = f"stopped after {time_limit_s:g} s"
    except KeyboardInterrupt:
        status = cp_model.UNKNOWN
        note = INTERRUPTED
    # The hint is a solution, so there is one.
    assert status in (cp_model.OPTIMAL, cp_model.FEASIBLE, cp_model.UNKNOWN), (
        f"CP-SAT: {solver.status_name(status)} {model.model.validate()}"
    )

    proved = max(bound, solutions.bound)
    if status != cp_model.UNKNOWN:
        proved = max(proved, math.ceil(solver.best_objective_bound - MARGIN) * unit)
    best = solutions.improvements[-1][1] if solutions.improvements else hinted
    return Solved(
        starts=solutions.best if best < hinted else None,
        makespan=best,
        bound=min(best, proved),
        note=note,
        improvements=tuple(solutions.improvements),
    )


class _Solutions(cp_model.CpSolverSolutionCallback):
    """Keeps the best solution and bound, also where the search is stopped."""

    def __init__(self, model: PipelineModel, better: Callable[[int, int], None]) -> None:
        super().__init__()
        self.model = model
        self.better = better
        self.best: Starts | None = None
        self.bound = 0
        self.improvements: list[tuple[float, int]] = []
        self.began_s = time.monotonic()

    def on_solution_callback(self) -> None:
        """A better schedule."""
        unit = self.model.unit
        self.best = Starts(
            actions={action: self.value(x) * unit for action, x in self.model.start.items()},
            messages={action: self.value(x) * unit for action, x in self.model.sent.items()},
        )
        length = round(self.objective_value) * unit
        self.bound = max(self.bound, math.ceil(self.best_objective_bound - MARGIN) * unit)
        self.improvements.append((time.monotonic() - self.began_s, length))
        self.better(length, self.bound)
