"""The short datagrams of a rank: credits, ends, and that a stage is over.

They cost as much processor time as a burst does, so they are few: none where the window holds the
whole shard, and "all is sent" only some time after the marks that say the same. Everything
that travels may be lost, these too. A credit is cumulative, so that the next one makes up for it,
and is repeated to whom nothing is heard of; "all is sent" goes out twice; that a stage is over is
said again whenever something for it arrives. Pure: datagrams go to ``outbox``.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from runtime.optireduce.options import Options
from runtime.optireduce.udp.bound import CompletionEstimator
from runtime.optireduce.udp.codec import Codec
from runtime.optireduce.udp.datagram import Type
from runtime.optireduce.udp.exchange import Exchange
from runtime.optireduce.udp.incast import Incast
from runtime.optireduce.udp.sender import ShardSend

REPEATS_IN_BOUND = 10
"""So often in t_B a credit is repeated: one that got lost must not cost the rest of a stage."""
REPEAT_S = 0.005
REPEAT_MOST_S = 0.05
"""But it takes so long at least, and at most."""


class AckSender:
    """Writes what a rank has to say.

    Attributes:
        outbox: (peer, datagram), to be sent in this order.
    """

    def __init__(
        self,
        options: Options,
        codec: Codec,
        incast: Incast,
        expected: Sequence[CompletionEstimator],
    ) -> None:
        self._options, self._codec = options, codec
        self._incast, self._expected = incast, expected
        self._least_s = self._most_s = REPEAT_S
        self._ends: list[tuple[float, int, ShardSend]] = []
        self.outbox: deque[tuple[int, bytes]] = deque()

    def bind(self, bound_s: float) -> None:
        """t_B, which says how often to repeat."""
        self._most_s = min(REPEAT_MOST_S, max(REPEAT_S, bound_s / REPEATS_IN_BOUND))
        self._least_s = max(REPEAT_S, self._most_s / 2)

    def enter(self, exchange: Exchange, now_s: float) -> None:
        """This rank has entered an operation: grant everyone a window, good for both stages."""
        for peer in exchange.stages[0].senders:
            self.credit(exchange, 0, peer)
            self._note(exchange, 1, peer)
        exchange.repeat_s = now_s + self._least_s

    def heard(self, exchange: Exchange, stage: int, peer: int) -> None:
        """Data has come: grant more when a third of the window has passed since the last time."""
        if exchange.stages[stage].senders[peer].passed >= exchange.credited[stage, peer]:
            self.credit(exchange, stage, peer)

    def credit(self, exchange: Exchange, stage: int, peer: int) -> None:
        """Say what has passed, and how much may be underway."""
        passed = exchange.stages[stage].senders[peer].passed
        window = self._note(exchange, stage, peer)
        self._say(Type.CREDIT, stage, peer, exchange.operation, offset=passed, length=window)

    def over(self, stage: int, peer: int, operation: int, flags: int) -> None:
        """Nothing more is taken of this stage (``OVER``), or operation (``GONE``)."""
        self._say(Type.CREDIT, stage, peer, operation, flags=flags)

    def all_sent(self, flow: ShardSend, now_s: float) -> None:
        """A flow has sent everything; its marks have said so, so this comes a little later."""
        if self._options.end_copies:
            self._ends.append((now_s + self._least_s, self._options.end_copies, flow))

    def follows(self, flow: ShardSend) -> None:
        """The second stage to a peer has begun: it says that the first is sent."""
        name = flow.operation, 0, flow.peer
        self._ends = [
            end for end in self._ends if (end[2].operation, end[2].stage, end[2].peer) != name
        ]

    def poll(self, now_s: float) -> None:
        """Say again what is due."""
        for due in [end for end in self._ends if end[0] <= now_s]:
            self._ends.remove(due)
            _, copies, flow = due
            self._say(Type.END, flow.stage, flow.peer, flow.operation)
            if copies > 1:
                self._ends.append((now_s + self._least_s, copies - 1, flow))

    def repeat(self, exchange: Exchange, now_s: float) -> None:
        """Where that is due, grant again to those that have sent nothing since the last time."""
        if now_s < exchange.repeat_s:
            return
        exchange.repeat_s = now_s + self._most_s
        for number, stage in enumerate(exchange.stages):
            for peer, expected in stage.senders.items():
                silent = expected.passed == exchange.repeated.get((number, peer), 0)
                exchange.repeated[number, peer] = expected.passed
                begun = number == 0 or expected.passed
                if stage.end is None and silent and begun and not expected.complete:
                    self.credit(exchange, number, peer)

    @property
    def wake_s(self) -> float:
        """When :meth:`poll` has something to do."""
        return min((end[0] for end in self._ends), default=math.inf)

    def _note(self, exchange: Exchange, stage: int, peer: int) -> int:
        """The window; from where on the next credit is due: never if all has room in it.

        Else to the end of the shard, as the last one that is needed may come late.
        """
        window = self._incast.window_bytes // self._incast.announced
        window = max(1, window // self._options.datagram_bytes)
        expected = exchange.stages[stage].senders[peer]
        due = expected.passed + max(1, window // 3)
        fits = not expected.passed and window >= expected.count
        exchange.credited[stage, peer] = math.inf if fits else due
        return window

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
