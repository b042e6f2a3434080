"""A watchman that knows when a wait has been long enough.

Waits have no time-out of their own. When the oldest one has lasted ``limit_s`` the watchman asks
the others where they stand, and gives up or grants more time (``runtime.blame.patience_s``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from runtime.blame import Position, Waiting, patience_s

TICKS = 20
"""The watchman looks this often within ``limit_s``."""
ASK_SHARE = 0.8
"""Of the time for asking around: to find out who is silent. The rest is for the alarm."""


class Watchman:
    """Looks after the waits of one rank, on a thread of its own.

    Args:
        rank, size: place in the group.
        limit_s: how long a rank may keep others waiting.
        ask_s: time for asking around before giving up.
        waiting: what this rank waits for, and since when (``time.monotonic()``), if it does.
        survey: asks all ranks where they stand, within so many seconds; those that are silent are
            missing.
        give_up: is called when a wait must end, with what was noticed and the seconds left for
            asking again.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        limit_s: float,
        ask_s: float,
        *,
        waiting: Callable[[], tuple[Waiting, float] | None],
        survey: Callable[[float], Mapping[int, Position]],
        give_up: Callable[[str, float], None],
    ) -> None:
        self._rank, self._size, self._limit_s, self._ask_s = rank, size, limit_s, ask_s
        self._waiting, self._survey, self._give_up = waiting, survey, give_up
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="latecomer-watchman", daemon=True)
        self._thread.start()

    def end(self, timeout_s: float) -> None:
        """End the watch."""
        self._over.set()
        self._thread.join(timeout_s)

    def _watch(self) -> None:
        granted_s = 0.0
        while not self._over.wait(self._limit_s / TICKS):
            wait, began_s = self._waiting(), time.monotonic()
            if wait is None or began_s < max(wait[1] + self._limit_s, granted_s):
                continue
            positions = self._survey(ASK_SHARE * self._ask_s)
            if self._over.is_set() or self._waiting() != wait:
                continue
            more_s = 0.0
            if len(positions) == self._size:
                more_s = patience_s(positions, self._rank, self._limit_s)
            now_s = time.monotonic()
            if more_s <= 0:
                noticed = f"rank {self._rank} {wait[0]} for more than {self._limit_s:.3g} s"
                self._give_up(noticed, max(self._ask_s - (now_s - began_s), 0.0))
                return
            granted_s = now_s + more_s
