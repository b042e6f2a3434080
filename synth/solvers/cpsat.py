"""The CP-SAT backend (Google OR-tools), and how CP-SAT is set up wherever it is asked."""

from __future__ import annotations

from ortools.sat.python import cp_model

from latecomer.synth.solvers.interrupt import interruptible
from latecomer.synth.solvers.model import Exhausted, Found, Model, Outcome, Undecided


def set_up(seed: int, time_limit_s: float | None, workers: int = 1) -> cp_model.CpSolver:
    """A solver that leaves SIGINT to us; with one worker equal seeds give equal answers."""
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = seed
    if time_limit_s is not None:
        solver.parameters.max_time_in_seconds = time_limit_s
    # Ctrl-C is ours to handle: see latecomer.synth.solvers.interrupt.
    solver.parameters.catch_sigint_signal = False
    return solver


def solve(model: Model, seed: int, work: float, time_limit_s: float | None) -> Outcome:
    """Decide ``model`` with so much work: CP-SAT's deterministic time, about a second a unit."""
    problem = cp_model.CpModel()
    positive = [problem.new_bool_var("") for _ in range(model.variables)]
    literal: dict[int, cp_model.LiteralT] = dict(enumerate(positive, 1))
    literal |= {-v: x.negated() for v, x in enumerate(positive, 1)}
    for clause in model.clauses:
        problem.add_bool_or([literal[x] for x in clause])
    for literals in model.at_most_one:
        problem.add_at_most_one([literal[x] for x in literals])
    for count, literals in model.at_least:
        problem.add(cp_model.LinearExpr.sum([literal[x] for x in literals]) >= count)
    solver = set_up(seed, time_limit_s)
    solver.parameters.max_deterministic_time = work
    status = interruptible(lambda: solver.solve(problem), solver.stop_search)
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Found(frozenset(v for v, x in enumerate(positive, 1) if solver.boolean_value(x)))
    if status == cp_model.INFEASIBLE:
        return Exhausted()
    if status == cp_model.UNKNOWN:
        return Undecided(f"no answer within {work:.3g} of work")
    raise AssertionError(f"CP-SAT: {solver.status_name(status)} {problem.validate()}")
