"""The solvers by name, and how far a search may go with one of them.

Which method makes a schedule must not depend on how busy a machine is. So a question may take a
certain amount of *work*, which solvers count in their own steps, and no clock decides unless the
user sets one. One unit of work takes very roughly a second.
"""

from __future__ import annotations

import time
from typing import Literal

from latecomer.synth.solvers.model import Model, Outcome, Undecided
from latecomer.verify.errors import ArgumentError

SolverName = Literal["z3", "cp-sat"]
SOLVERS: tuple[SolverName, ...] = ("z3", "cp-sat")
MOST_EFFORT = 1000


def solve(
    model: Model, solver: SolverName, *, seed: int, work: float, time_limit_s: float | None = None
) -> Outcome:
    """Ask a solver; equal arguments give equal answers, unless a time limit cuts one short.

    A KeyboardInterrupt stops the solver and is passed on.
    """
    if solver == "z3":
        from latecomer.synth.solvers import z3 as backend
    else:
        from latecomer.synth.solvers import cpsat as backend  # type: ignore[no-redef]
    return backend.solve(model, seed, work, time_limit_s)


def require_search(seed: int, time_limit_s: float | None, solver: str) -> None:
    """Raise ArgumentError if one of them is out of its range."""
    if not 0 <= seed < 2**31:
        raise ArgumentError("--seed", seed, f"must be in 0..{2**31 - 1}")
    if time_limit_s is not None and not 0 < time_limit_s < float("inf"):
        raise ArgumentError("--time-limit", time_limit_s, "must be a positive number of seconds")
    if solver not in SOLVERS:
        raise ArgumentError("--solver", solver, f"must be one of {', '.join(SOLVERS)}")


class Solving:
    """The solver, the seed and the limits of one search.

    Args:
        solver: ``z3`` or ``cp-sat``.
        seed: of all that is random, 0 .. 2**31 - 1.
        effort: so many times the usual work.
        time_limit_s: seconds from now, for everything together; None: no clock. With one, what
            comes out depends on the speed of the machine.

    Raises:
        ArgumentError: one of them is out of its range.
    """

    def __init__(
        self, solver: SolverName, seed: int, effort: float, time_limit_s: float | None
    ) -> None:
        require_search(seed, time_limit_s, solver)
        if not 0 < effort <= MOST_EFFORT:
            raise ArgumentError("--effort", effort, f"must be above 0, at most {MOST_EFFORT}")
        self.solver = solver
        self.seed = seed
        self.effort = effort
        self.time_limit_s = time_limit_s
        self.until = float("inf") if time_limit_s is None else time.monotonic() + time_limit_s

    @property
    def over(self) -> bool:
        """Whether the user's time limit is reached."""
        return time.monotonic() > self.until

    @property
    def left_s(self) -> float | None:
        """Seconds until then; None without a limit."""
        return None if self.time_limit_s is None else max(1e-3, self.until - time.monotonic())

    def ask(self, model: Model, work: float) -> Outcome:
        """Put a question to the solver that may take ``work``, times the effort."""
        if self.over:
            return Undecided("the time limit is reached")
        work *= self.effort
        return solve(model, self.solver, seed=self.seed, work=work, time_limit_s=self.left_s)
