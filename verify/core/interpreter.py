"""What a collective schedule does, over any algebra: the one place that says what a transfer means.

The state has a value for each (rank, chunk). All transfers of a round read the state at its start;
``copy`` overwrites, ``reduce`` adds. Several reduces into one place of a round (incast) are added
one after another in the order of the file, and the runtime does so. Chunks do not interact: any
range of them can be run by itself.

An :class:`Algebra` says what values are: counts of contributions prove that sums are right, trees
of additions that bits are equal, histories explain a fault, and texts ask an SMT solver.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from latecomer.verify.core.schedule import IntArray, Schedule

Values = NDArray[Any]
"""Values along the first axis; further axes belong to the algebra."""


class Algebra(ABC):
    """What values are; ``index`` names the transfers, by their place in ``schedule.table``."""

    @abstractmethod
    def initial(self, ranks: int, low: int, high: int) -> Values:
        """The values [rank, chunk - low, ...] that the ranks hold at first."""

    @abstractmethod
    def added(self, kept: Values, moved: Values, index: IntArray) -> Values:
        """What reduces of ``moved`` leave where ``kept`` was."""

    def copied(self, moved: Values, index: IntArray) -> Values:
        """What copies of ``moved`` leave."""
        return moved


def run(schedule: Schedule, algebra: Algebra, low: int, high: int) -> Values:
    """The values [rank, chunk - low, ...] at the end, for the chunks low .. high-1."""
    table = schedule.table
    width = high - low
    state = algebra.initial(schedule.ranks, low, high)
    held = state.reshape(schedule.ranks * width, *state.shape[2:])
    for transfers in table.rounds_of(low, high):
        chunk = table.chunk[transfers] - low
        source = table.src[transfers] * width + chunk
        target = table.dst[transfers] * width + chunk

        # What is read at the start of the round, once however many transfers read it.
        sources, read_at = np.unique(source, return_inverse=True)
        at_start = held[sources]

        for turn in table.by_turn(transfers):
            reduce = table.reduce[transfers[turn]]
            copies = turn[~reduce]
            reduces = turn[reduce]
            if len(copies):
                moved = at_start[read_at[copies]]
                held[target[copies]] = algebra.copied(moved, transfers[copies])
            if len(reduces):
                into = target[reduces]
                moved = at_start[read_at[reduces]]
                held[into] = algebra.added(held[into], moved, transfers[reduces])
    return state
