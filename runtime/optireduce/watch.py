"""Tells a rank that is dead from one that computes, or that the network keeps apart.

UBT itself never waits longer than its bound. But a rank of which nothing is heard is asked, over
the control plane (``runtime.health.protocol``), where it stands: one that does not answer for
``dead_s`` is dead or stopped, and all ranks give up with an error that names it; so they do when it
says that it broke. One that answers is waited for, or done without, as the options say.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from runtime.health.old_protocol import HealthProtocol
from verify.errors import LatecomerError

TICK_S = 0.25
CONFIRM_SHARE = 0.25
"""Of ``dead_s``: once more, for the verdict that all ranks are told."""


class Watch:
    """Looks at the suspects from a thread of its own.

    Args:
        board: to ask on.
        suspects: the ranks of which nothing is heard now.
        give_up: is called with the error when there is a verdict.
        dead_s: how long a rank may be silent on the board.
    """

    def __init__(
        self,
        board: HealthProtocol,
        suspects: Callable[[], Iterable[int]],
        give_up: Callable[[LatecomerError], None],
        dead_s: float,
    ) -> None:
        self._board, self._suspects, self._give_up = board, suspects, give_up
        self._dead_s = dead_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="latecomer-ubt-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._over.set()

    def _run(self) -> None:
        try:
            self._watch()
        except Exception as error:  # without it a dead rank would be nobody's business
            self._give_up(LatecomerError(f"rank {self._board.rank} broke its watch, {error!r}"))

    def _watch(self) -> None:
        while not self._over.wait(TICK_S):
            suspects = set(self._suspects())
            if not suspects:
                continue
            positions = self._board.survey(self._dead_s)
            bad = [r for r in suspects if r not in positions or positions[r].broken]
            if self._over.is_set() or not bad:
                continue
            names = ", ".join(map(str, sorted(bad)))
            noticed = f"rank {self._board.rank} heard nothing from rank(s) {names}"
            self._give_up(self._board.diagnose(noticed, self._dead_s * CONFIRM_SHARE))
            return
