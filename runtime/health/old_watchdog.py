"""A watchman that knows when a wait has been long enough.

Waits have no time-out of their own. When the oldest one has lasted ``limit_s`` the watchman asks
the others where they stand, and gives up or grants more time
(``runtime.health.diagnosis.patience_s``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from runtime.health.diagnosis import RankStatus, WaitFor, patience_s

TICKS = 20
"""The watchman looks this often within ``limit_s``."""
ASK_SHARE = 0.8
"""Of the time for asking around: to find out who is silent. The rest is for the alarm."""


class Watchdog:
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
        elsewhere_s: since when this rank waits for a collective that runs natively, if it does.
        find_silent: asks all ranks for a sign of life, and gives up if some give none.

    Attributes:
        limit_s, ask_s: may be changed at any time.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        limit_s: float,
        ask_s: float,
        *,
        waiting: Callable[[], tuple[WaitFor, float] | None],
        survey: Callable[[float], Mapping[int, RankStatus]],
        give_up: Callable[[str, float], None],
        elsewhere_s: Callable[[], float | None],
        find_silent: Callable[[str], object],
    ) -> None:
        self._rank, self._size, self.limit_s, self.ask_s = rank, size, limit_s, ask_s
        self._waiting, self._survey, self._give_up = waiting, survey, give_up
        self._elsewhere_s, self._find_silent = elsewhere_s, find_silent
        self._looked: float | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="latecomer-watchman", daemon=True)
        self._thread.start()

    def end(self, timeout_s: float) -> None:
        """End the watch."""
        self._over.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            self._watch()
        except Exception as error:  # without it no wait would ever end
            self._give_up(f"rank {self._rank} broke its watchman, {error!r}", self.ask_s)

    def _watch(self) -> None:
        granted_s = 0.0
        while not self._over.wait(self.limit_s / TICKS):
            limit_s, ask_s = self.limit_s, self.ask_s
            wait, began_s = self._waiting(), time.monotonic()
            self._look_elsewhere(began_s, limit_s)
            if wait is None or began_s < max(wait[1] + limit_s, granted_s):
                continue
            positions = self._survey(ASK_SHARE * ask_s)
            if self._over.is_set() or self._waiting() != wait:
                continue
            more_s = 0.0
            if len(positions) == self._size:
                more_s = patience_s(positions, self._rank, limit_s)
            now_s = time.monotonic()
            if more_s <= 0:
                noticed = f"rank {self._rank} {wait[0]} for more than {limit_s:.3g} s"
                self._give_up(noticed, max(ask_s - (now_s - began_s), 0.0))
                return
            granted_s = now_s + more_s

    def _look_elsewhere(self, now_s: float, limit_s: float) -> None:
        """Once in each wait for a native collective that has lasted for the limit."""
        since_s = self._elsewhere_s()
        if since_s is None or since_s == self._looked or now_s < since_s + limit_s:
            return
        self._looked = since_s
        self._find_silent(f"rank {self._rank} waits for a collective for more than {limit_s:.3g} s")
