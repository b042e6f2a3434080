"""Senders to receivers: the assignment of greatest weight, which each round of a list is."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# So that the assignment of greatest weight has as many useful transfers as there can be.
USEFUL = 10**7
"""The weight of any useful transfer; priorities are far below it."""


def assignment(weight: NDArray[np.int64]) -> list[int]:
    """For each sender its receiver, with the greatest sum of weights (0 stands for no transfer)."""
    from ortools.graph.python.linear_sum_assignment import SimpleLinearSumAssignment

    n = len(weight)
    left, right = np.divmod(np.arange(n * n), n)
    solver = SimpleLinearSumAssignment()
    # The solver looks for the least cost, and for a receiver for every sender.
    solver.add_arcs_with_cost(left, right, weight.max() - weight.ravel())
    if solver.solve() != SimpleLinearSumAssignment.OPTIMAL:
        raise AssertionError("a complete bipartite graph has an assignment")
    return [solver.right_mate(sender) for sender in range(n)]
