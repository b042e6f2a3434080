"""What every search requires of its seed, its time limit and its solver."""

from __future__ import annotations

from synth.solvers import SOLVERS
from verify.errors import ArgumentError


def require_search(seed: int, time_limit_s: float, solver: str) -> None:
    """Raise ArgumentError if one of them is out of its range."""
    if not 0 <= seed < 2**31:
        raise ArgumentError("--seed", seed, f"must be in 0..{2**31 - 1}")
    if not 0 < time_limit_s < float("inf"):
        raise ArgumentError("--time-limit", time_limit_s, "must be a positive number of seconds")
    if solver not in SOLVERS:
        raise ArgumentError("--solver", solver, f"must be one of {', '.join(SOLVERS)}")
