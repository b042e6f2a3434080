"""What the lanes of this rank wait for, and a watchman that knows when it has been long enough.

Gloo can't look again after a wait that timed out, it closes all connections. So waits have no
time-out of their own: the watchman asks the others where they stand when a wait has lasted
``limit_s``, and gives up or grants more time (``runtime.blame.patience_s``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from runtime.blame import Position, Waiting, patience_s

TICKS = 20
"""The watchman looks this often within ``limit_s``."""


class Waits:
    """The wait of each lane, if it waits, and when this rank last moved.

    Args:
        lanes: how many.
    """

    def __init__(self, lanes: int) -> None:
        self._waits: list[tuple[Waiting, float] | None] = [None] * lanes
        self._moved_s = time.monotonic()
        self._over = threading.Event()

    def note(self, lane: int, waiting: Waiting | None) -> None:
        """A lane begins a wait, or (``None``) ends it."""
        now = time.monotonic()
        self._waits[lane] = None if waiting is None else (waiting, now)
        if waiting is None:
            self._moved_s = now

    def moved(self) -> None:
        """This rank got on without a wait."""
        self._moved_s = time.monotonic()

    @property
    def oldest(self) -> Waiting | None:
        """The wait in the oldest operation."""
        waits = [wait[0] for wait in self._waits if wait is not None]
        return min(waits, key=lambda waiting: waiting.operation, default=None)

    @property
    def idle_s(self) -> float:
        """Seconds since this rank last moved."""
        return time.monotonic() - self._moved_s

    def watch(
        self,
        rank: int,
        limit_s: float,
        survey: Callable[[], Mapping[int, Position]],
        size: int,
        give_up: Callable[[str], None],
    ) -> None:
        """The watchman's round, on a thread of its own until :meth:`end`.

        Args:
            rank: the own.
            limit_s: how long a rank may keep others waiting.
            survey: asks all ranks where they stand; those that are silent are missing.
            size: number of ranks.
            give_up: is called, with what was noticed, when a wait must end.
        """
        granted_s = 0.0
        while not self._over.wait(limit_s / TICKS):
            wait = self._longest()
            if wait is None or time.monotonic() < max(wait[1] + limit_s, granted_s):
                continue
            positions = survey()
            if self._longest() is not wait:
                continue
            more_s = patience_s(positions, rank, limit_s) if len(positions) == size else 0.0
            if more_s <= 0:
                give_up(f"rank {rank} {wait[0]} for more than {limit_s:.3g} s")
                return
            granted_s = time.monotonic() + more_s

    def end(self) -> None:
        """End the watchman's round."""
        self._over.set()

    def _longest(self) -> tuple[Waiting, float] | None:
        waits = [wait for wait in self._waits if wait is not None]
        return min(waits, key=lambda wait: wait[1], default=None)
