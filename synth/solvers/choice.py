"""The solvers by name, and what a search with one of them is asked for."""

from __future__ import annotations

from typing import Literal

from synth.solvers.model import Model, Outcome
from verify.errors import ArgumentError

SolverName = Literal["cp-sat", "z3"]
SOLVERS: tuple[SolverName, ...] = ("cp-sat", "z3")


def solve(model: Model, solver: SolverName, *, seed: int, time_limit_s: float) -> Outcome:
    """Ask a solver; equal model, solver and seed give an equal answer unless the time runs out.

    A KeyboardInterrupt stops the solver and is passed on.
    """
    if solver == "z3":
        from synth.solvers import z3 as backend
    else:
        from synth.solvers import cpsat as backend  # type: ignore[no-redef]
    return backend.solve(model, seed, time_limit_s)


def require_search(seed: int, time_limit_s: float, solver: str) -> None:
    """Raise ArgumentError if one of them is out of its range."""
    if not 0 <= seed < 2**31:
        raise ArgumentError("--seed", seed, f"must be in 0..{2**31 - 1}")
    if not 0 < time_limit_s < float("inf"):
        raise ArgumentError("--time-limit", time_limit_s, "must be a positive number of seconds")
    if solver not in SOLVERS:
        raise ArgumentError("--solver", solver, f"must be one of {', '.join(SOLVERS)}")
