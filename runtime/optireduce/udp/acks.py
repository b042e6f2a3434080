"""The short datagrams of a rank: credits, ends, and that a stage is over.

They cost as much processor time as a burst does, so they are few: none where the window holds the
whole shard, and "all is sent" only some time after the marks that say the same. These may be lost,
too. A credit is cumulative, so that the next one makes up for it, and is repeated to peers that are
silent; that a stage is over is sent again whenever something for it arrives.
"""

from __future__ import annotations

import math
from collections import deque

from runtime.optireduce.bucket import Bucket
from runtime.optireduce.options import Options
from runtime.optireduce.udp.adaptive import CompletionEstimator, Incast
from runtime.optireduce.udp.datagram import Codec, Header, Type
from runtime.optireduce.udp.sender import ShardSend

REPEATS_IN_BOUND = 10  # of a credit: one that got lost must not cost the rest of a stage
REPEAT_S, REPEAT_MOST_S = 0.005, 0.05  # but it takes so long at least, and at most


class AckSender:
    """Writes what a rank has to announce to ``outbox``: (peer, datagram)."""

    def __init__(
        self, options: Options, codec: Codec, incast: Incast, estimators: list[CompletionEstimator]
    ) -> None:
        self._options, self._codec = options, codec
        self._incast, self._estimators = incast, estimators
        self._least_s = self._most_s = REPEAT_S
        self._ends: list[tuple[float, int, ShardSend]] = []
        self.outbox: deque[tuple[int, bytes]] = deque()

    def set_bound(self, bound_s: float) -> None:
        """t_B, which says how often to repeat."""
        self._most_s = min(REPEAT_MOST_S, max(REPEAT_S, bound_s / REPEATS_IN_BOUND))
        self._least_s = max(REPEAT_S, self._most_s / 2)

    def header(self, stage: int, peer: int, operation: int) -> Header:
        """Of a datagram: with what this rank announces."""
        expected_us = int(self._estimators[stage].own_s * 1e6)
        return Header(stage, peer, operation, self._incast.own, expected_us)

    def enter(self, bucket: Bucket, now_s: float) -> None:
        """This rank has entered an operation: grant everyone a window, good for both stages."""
        for peer in bucket.stages[0].senders:
            self._credit(bucket, 0, peer)
            self._grant(bucket, 1, peer)
        bucket.repeat_s = now_s + self._least_s

    def received(self, bucket: Bucket, stage: int, peer: int) -> None:
        """Data has come: grant more when a third of the window has passed since the last time."""
        bitmap = bucket.stages[stage].senders[peer]
        if bitmap.passed >= bitmap.credit_at:
            self._credit(bucket, stage, peer)

    def over(self, stage: int, peer: int, operation: int, flags: int) -> None:
        """Nothing more is taken of this stage (``OVER``), or operation (``GONE``)."""
        self._send(Type.CREDIT, stage, peer, operation, flags=flags)

    def all_sent(self, shard: ShardSend, now_s: float) -> None:
        """Of a shard; its marks have said so, so this comes a little later."""
        if self._options.end_copies:
            self._ends.append((now_s + self._least_s, self._options.end_copies, shard))

    def follows(self, shard: ShardSend) -> None:
        """The second stage to a peer has begun: it says that the first is sent."""
        first = shard.operation, 0, shard.peer
        self._ends = [e for e in self._ends if (e[2].operation, e[2].stage, e[2].peer) != first]

    def get_timer(self) -> float:
        """When :meth:`handle_timer` has something to do."""
        return min((due_s for due_s, _, _ in self._ends), default=math.inf)

    def handle_timer(self, now_s: float) -> None:
        """Repeat the ends that are due."""
        for due in [end for end in self._ends if end[0] <= now_s]:
            self._ends.remove(due)
            _, copies, shard = due
            self._send(Type.END, shard.stage, shard.peer, shard.operation)
            if copies > 1:
                self._ends.append((now_s + self._least_s, copies - 1, shard))

    def repeat(self, bucket: Bucket, now_s: float) -> None:
        """Where that is due, grant again to those that have sent nothing since the last time."""
        if now_s < bucket.repeat_s:
            return
        bucket.repeat_s = now_s + self._most_s
        for number, stage in enumerate(bucket.stages):
            for peer, bitmap in stage.senders.items():
                silent, bitmap.repeated = bitmap.passed == bitmap.repeated, bitmap.passed
                begun = number == 0 or bitmap.passed
                if stage.end is None and silent and begun and not bitmap.complete:
                    self._credit(bucket, number, peer)

    def _credit(self, bucket: Bucket, stage: int, peer: int) -> None:
        """Say what has passed, and how much may be underway."""
        window = self._grant(bucket, stage, peer)
        passed = bucket.stages[stage].senders[peer].passed
        self._send(Type.CREDIT, stage, peer, bucket.operation, offset=passed, length=window)

    def _grant(self, bucket: Bucket, stage: int, peer: int) -> int:
        """The window; sets when the next credit is due: never if all has room in it."""
        window, bitmap = self._incast.window, bucket.stages[stage].senders[peer]
        fits = not bitmap.passed and window >= bitmap.count
        bitmap.credit_at = math.inf if fits else bitmap.passed + max(1, window // 3)
        return window

    def _send(self, kind: Type, stage: int, peer: int, operation: int, **fields: int) -> None:
        header = self.header(stage, peer, operation)
        self.outbox.append((peer, self._codec.control(kind, header, **fields)))
