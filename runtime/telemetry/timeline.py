"""A record of what happened when: arrivals, rounds, completions, for tables and pictures."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from runtime.work import AllReduceWork, Observer


@dataclass(frozen=True)
class Span:
    """One round of one operation on this rank; times are ``time.monotonic()`` seconds."""

    operation: int
    phase: str
    round: int
    began_s: float
    ended_s: float


@dataclass
class Timeline(Observer):
    """An observer that remembers.

    Attributes:
        spans: rounds, in order of their end; kept for the operations in ``watched`` only.
        arrived_s, done_s: by operation number, when this rank entered it and had its result.
        watched: operation numbers whose rounds are recorded.
    """

    watched: range = range(0)
    spans: list[Span] = field(default_factory=list)
    arrived_s: dict[int, float] = field(default_factory=dict)
    done_s: dict[int, float] = field(default_factory=dict)
    _begun: dict[tuple[int, str, int], float] = field(default_factory=dict)

    def step_begins(self, operation: int, phase: str, round: int) -> None:
        """Remember when a watched round begins."""
        if operation in self.watched:
            self._begun[operation, phase, round] = time.monotonic()

    def step_ends(self, operation: int, phase: str, round: int) -> None:
        """Remember a watched round."""
        if operation in self.watched:
            began = self._begun.pop((operation, phase, round))
            self.spans.append(Span(operation, phase, round, began, time.monotonic()))

    def done(self, operation: AllReduceWork) -> None:
        """Remember arrival and completion."""
        self.arrived_s[operation.number] = operation.arrived_s
        self.done_s[operation.number] = operation.done_s
