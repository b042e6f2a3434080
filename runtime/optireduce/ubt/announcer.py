"""The short datagrams of a rank: credits, ends, and that a stage is over.

Everything that travels may be lost, these too. A credit is cumulative, so that the next one makes
up for it, and is repeated on a clock until its data comes; "all is sent" goes out several times;
that a stage is over is said again whenever something for it arrives. Pure: datagrams go to
``outbox``.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from runtime.optireduce.options import Options
from runtime.optireduce.ubt.bound import Expectation
from runtime.optireduce.ubt.codec import Codec
from runtime.optireduce.ubt.exchange import Exchange
from runtime.optireduce.ubt.incast import Incast
from runtime.optireduce.ubt.sender import Flow
from runtime.optireduce.ubt.wire import Type

REPEAT_S = 0.005
"""A credit is repeated after so long, then twice as long, ..."""
REPEAT_MOST_S = 0.05
REPEATS_IN_BOUND = 10
"""... but at least so often in t_B: a credit that got lost must not cost the rest of a stage."""


class Announcer:
    """Writes what a rank has to say.

    Args:
        bound_s: t_B.

    Attributes:
        outbox: (peer, datagram), to be sent in this order.
    """

    def __init__(
        self,
        options: Options,
        codec: Codec,
        incast: Incast,
        expected: Sequence[Expectation],
        bound_s: float,
    ) -> None:
        self._options, self._codec = options, codec
        self._incast, self._expected = incast, expected
        self._most_s = min(REPEAT_MOST_S, max(REPEAT_S, bound_s / REPEATS_IN_BOUND))
        self._ends: list[tuple[float, int, Flow]] = []
        self.outbox: deque[tuple[int, bytes]] = deque()

    def enter(self, exchange: Exchange, now_s: float) -> None:
        """This rank has entered an operation: grant everyone a window."""
        for peer in exchange.stages[0].senders:
            self.credit(exchange, 0, peer)
        exchange.repeat_s = now_s + REPEAT_S

    def heard(self, exchange: Exchange, stage: int, peer: int) -> None:
        """Data has come: grant more when a quarter of the window has passed since the last time."""
        expected = exchange.stages[stage].senders[peer]
        if expected.passed >= exchange.credited.get((stage, peer), 0) and not expected.complete:
            self.credit(exchange, stage, peer)

    def credit(self, exchange: Exchange, stage: int, peer: int) -> None:
        """Say what has passed, and how much may be underway."""
        window = self._incast.window_bytes // self._incast.announced
        window = max(1, window // self._options.datagram_bytes)
        passed = exchange.stages[stage].senders[peer].passed
        exchange.credited[stage, peer] = passed + max(1, window // 4)
        self._say(Type.CREDIT, stage, peer, exchange.operation, offset=passed, length=window)

    def over(self, stage: int, peer: int, operation: int, flags: int) -> None:
        """Nothing more is taken of this stage (``OVER``), or operation (``GONE``)."""
        self._say(Type.CREDIT, stage, peer, operation, flags=flags)

    def all_sent(self, flow: Flow, now_s: float) -> None:
        """A flow has sent everything; said ``end_copies`` times."""
        self._end(flow, self._options.end_copies, now_s)

    def poll(self, now_s: float) -> None:
        """Say again what is due."""
        for due in [end for end in self._ends if end[0] <= now_s]:
            self._ends.remove(due)
            self._end(due[2], due[1], now_s)

    def repeat(self, exchange: Exchange, now_s: float) -> None:
        """Grant again, where that is due, what is still to come."""
        if now_s < exchange.repeat_s:
            return
        exchange.repeats = min(exchange.repeats + 1, 16)
        exchange.repeat_s = now_s + min(self._most_s, REPEAT_S * 2**exchange.repeats)
        for number, stage in enumerate(exchange.stages):
            for peer, expected in stage.senders.items():
                if stage.end is None and not expected.complete and (not number or expected.passed):
                    self.credit(exchange, number, peer)

    @property
    def wake_s(self) -> float:
        """When :meth:`poll` has something to do."""
        return min((end[0] for end in self._ends), default=math.inf)

    def _end(self, flow: Flow, copies: int, now_s: float) -> None:
        if copies:
            self._say(Type.END, flow.stage, flow.peer, flow.operation)
            if copies > 1:
                self._ends.append((now_s + REPEAT_S, copies - 1, flow))

    def _say(
        self,
        kind: Type,
        stage: int,
        peer: int,
        operation: int,
        *,
        offset: int = 0,
        length: int = 0,
        flags: int = 0,
    ) -> None:
        data = self._codec.control(
            kind,
            stage,
            peer,
            operation,
            offset=offset,
            length=length,
            flags=flags,
            incast=self._incast.announced,
            expected_us=int(self._expected[stage].own_s * 1e6),
        )
        self.outbox.append((peer, data))
