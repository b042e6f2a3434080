"""An observer that remembers the rounds of chosen operations, and nothing of the others."""

from __future__ import annotations

import time

from runtime.telemetry.timeline import Span
from runtime.work import Observer


class Rounds(Observer):
    """Rounds of the operations in ``watched``.

    Attributes:
        watched: operation numbers; may be set at any time.
        spans: in the order of their end; ``time.monotonic()``.
    """

    def __init__(self) -> None:
        self.watched = range(0)
        self.spans: list[Span] = []
        self._begun: dict[tuple[int, str, int], float] = {}

    def step_begins(self, operation: int, phase: str, round: int) -> None:
        """Note when a watched round begins."""
        if operation in self.watched:
            self._begun[operation, phase, round] = time.monotonic()

    def step_ends(self, operation: int, phase: str, round: int) -> None:
        """Remember a watched round."""
        began_s = self._begun.pop((operation, phase, round), None)
        if began_s is not None:
            self.spans.append(Span(operation, phase, round, began_s, time.monotonic()))
