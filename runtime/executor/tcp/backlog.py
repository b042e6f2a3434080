"""How full this rank's port is: bytes handed to the kernel that have not arrived yet.

What the kernel holds leaves in the order in which it was handed over, or shares the port; it can't
be overtaken by bytes that are needed sooner. So the kernel gets no more than keeps the port busy
until the engine looks again: ``HELD_S`` seconds at the rate at which bytes have been arriving (the
rate is measured while there is a backlog, over ``MEASURE_S`` at least). Measured and simulated on
eight ports of 200 Mbit/s: with a limit on each connection instead, several transfers share a port
and the completion takes a tenth longer.
"""

from __future__ import annotations

import time
from collections.abc import Collection

from runtime.executor.tcp.connection import Connection

HELD_S = 0.005  # five looks of the engine, which looks at least every LOOK_S while it holds back
LOOK_S = 0.001
MEASURE_S = 0.02
MOST = 4 * 1024 * 1024  # bytes


class SendBacklog:
    """The backlog of all links of a rank together; ``least`` bytes are always allowed."""

    def __init__(self, links: Collection[Connection], least: int) -> None:
        self._links, self._least = links, least
        self._arrived = 0  # bytes, at the last look
        self._limit = least
        self._looked_s = 0.0
        self._since = (0.0, 0)  # since when there has been a backlog, and what had arrived then

    def full(self) -> bool:
        """No more should be handed over now."""
        taken = sum(link.handed_over for link in self._links)
        if taken - self._arrived < self._limit:
            return False
        self._look(taken)
        return taken - self._arrived >= self._limit

    def _look(self, taken: int) -> None:
        """Ask the kernel what has arrived; learn the rate if there was a backlog all the time."""
        self._arrived = taken - sum(link.unacknowledged() for link in self._links)
        now = time.monotonic()
        passed_s = now - self._since[0]
        if now - self._looked_s > HELD_S:
            self._since = now, self._arrived
        elif passed_s >= MEASURE_S:
            rate = (self._arrived - self._since[1]) / passed_s
            self._limit = min(max(int(rate * HELD_S), self._least), MOST)
            self._since = now, self._arrived
        self._looked_s = now
