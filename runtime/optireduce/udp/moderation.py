"""How long datagrams are let gather before the next look at the socket, as cards do (NAPI).

A look costs about the same whatever it finds, so on a slow port looks are few and find much: after
two in a row that found few, the next one waits until the port has brought enough, by the rate that
was measured. It never waits for more than is still due, nor so long that what the kernel has to
send might run out: both would leave the port idle.

A pure state machine: times and bytes go in, a time comes out.
"""

from __future__ import annotations

import math

from latecomer.runtime.optireduce.options import KIB

GATHERED_BYTES = 100_000
"""Are waited for. As many may wait to be sent when the kernel asks for more (``send_buffer_bytes``,
of which it counts twice as much, and tells that half is free): so no port runs idle meanwhile."""
FEW_BYTES = 184 * KIB
"""Of data found at one look, below which the next one waits for more: what a look costs in Python
hardly depends on how much it finds. Bytes, not datagrams: of large ones a few are enough."""
LEAST_S = 0.0002  # a shorter pause saves little: falling asleep and waking up take as long
MOST_S = 0.002  # a longer one is seen in the time of an operation
GAP_S = 0.004  # between two looks, after which nothing is known of when what is found has come
MEASURED_S = 0.001  # over so long a rate is measured: frames come in batches
KEPT = 7 / 8  # of a high rate from one measurement to the next, so slowly is it forgotten


class Moderator:
    """Paces one rank's looks at its socket."""

    def __init__(self) -> None:
        self._looked_s = -math.inf
        self._found_few = 0  # looks in a row
        # of this measurement
        self._seconds = 0.0
        self._received = 0  # bytes
        self._sent = 0  # bytes
        # bytes per second, of late: the most, since a peer that computes does not say what a port
        # can do
        self._received_rate = 0.0
        self._sent_rate = 0.0

    def looked(self, received: int, sent: int, now_s: float) -> None:
        """A look has found so many bytes of data, and so many went out with it."""
        self._found_few = self._found_few + 1 if 0 < received < FEW_BYTES else 0
        passed_s = now_s - self._looked_s
        self._looked_s = now_s
        if passed_s > GAP_S:
            return
        self._seconds += passed_s
        self._received += received
        self._sent += sent
        if self._seconds >= MEASURED_S:
            self._received_rate = max(KEPT * self._received_rate, self._received / self._seconds)
            self._sent_rate = max(KEPT * self._sent_rate, self._sent / self._seconds)
            self._seconds = 0.0
            self._received = 0
            self._sent = 0

    @property
    def is_called_for(self) -> bool:
        """Whether the next look is to wait."""
        return self._found_few >= 2 and self._received_rate > 0

    def pause_s(self, due: int) -> float:
        """How long it waits, if at all; ``due``: bytes that end the next stage."""
        if not self.is_called_for:
            return 0.0
        gathered_s = GATHERED_BYTES / max(self._received_rate, self._sent_rate)
        due_s = due / self._received_rate
        pause_s = min(gathered_s, due_s, MOST_S)
        return pause_s if pause_s >= LEAST_S else 0.0
