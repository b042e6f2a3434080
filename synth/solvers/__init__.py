"""Solvers behind one interface: ``Model`` in, ``Found``, ``Exhausted`` or ``Undecided`` out."""

from synth.solvers.model import (
    SOLVERS,
    Exhausted,
    Found,
    Model,
    Outcome,
    SolverName,
    Undecided,
    require_search,
    solve,
)

__all__ = [
    "SOLVERS",
    "Exhausted",
    "Found",
    "Model",
    "Outcome",
    "SolverName",
    "Undecided",
    "require_search",
    "solve",
]
