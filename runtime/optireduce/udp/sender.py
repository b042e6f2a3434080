"""What a rank sends: which datagrams of its shards to whom and when, and short ones about the rest.

Shards are served by operation and stage, to as many peers at a time as the smallest incast
announced (dynamic incast, OptiReduce section 3.2.3), in turn, a burst each; no more is underway to
a peer than its window, and no faster than its pacer allows. Nothing is sent twice. A credit tells
how far what was sent has left the network, lost or not; when none has come for a while, part of
what is underway counts as lost and sending goes on.

Deviation: the source sends without credits. Unpaced bursts overflow any socket's buffer, and the
first credit of an operation doubles as the sign that the receiver is there. Before it no more than
a first grant is sent, which the receiver keeps (``EarlyBuffer``). Short datagrams cost as much
processor time as a burst, so they are few: no credits where the window holds the whole shard, and
"all is sent" only some time after the marks that say so. Silent peers get credits repeated.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from latecomer.runtime.optireduce.options import Options
from latecomer.runtime.optireduce.udp.adaptive import CompletionEstimator, Incast, Pacer
from latecomer.runtime.optireduce.udp.bucket import Bucket
from latecomer.runtime.optireduce.udp.events import (
    GONE,
    OVER,
    Control,
    DatagramHeader,
    ShardKey,
    Type,
)

STALLS_MOST = 4  # silence must be twice as long for each stall in a row, up to so many doublings
MARKED = 8  # datagrams at least are marked as a shard's last: a mark must not hang on one
REPEATS_IN_BOUND = 10  # of a credit in t_B: one that got lost must not cost the rest of a stage
REPEAT_S = 0.005  # between two of them at least,
REPEAT_MOST_S = 0.05  # and at most


@dataclass(eq=False)
class ShardSend:
    """One shard, of ``count`` datagrams, on its way to one peer."""

    peer: int
    stage: int
    operation: int
    count: int
    order: tuple[int, int, int]  # the smaller goes first: (number of the bucket, stage, place)
    ready: deque[tuple[int, int]] = field(default_factory=deque)  # runs (first, past the last)
    sent: int = 0
    passed: int = 0  # of those sent, known to have left the network
    window: int = 0  # may be underway
    entered: bool = False  # the peer has entered the operation
    stalls: int = 0
    progress_s: float = -math.inf
    bursts: deque[tuple[int, float]] = field(default_factory=deque)

    @property
    def key(self) -> ShardKey:
        """By which it is found."""
        return self.operation, self.stage, self.peer

    @property
    def room(self) -> int:
        """How many datagrams may be sent now, as far as the window is concerned."""
        return self.window - (self.sent - self.passed)

    def offer(self, first: int, stop: int) -> None:
        """Datagrams ``first`` to ``stop`` - 1 are there to be sent."""
        if self.ready and self.ready[-1][1] == first:
            first, _ = self.ready.pop()
        self.ready.append((first, stop))

    def marks_from(self, first: int, count: int, last_share: float) -> int:
        """Of so many datagrams that go together, from which number on they are marked.

        Only if they end the shard: one that waits for credit must not look like a lossy network.
        """
        left = self.count - self.sent
        if count < left:
            return first + count
        return first + max(0, left - max(MARKED, int(self.count * last_share)))


class BurstSender:
    """All shards that one rank sends, and its pacers."""

    def __init__(self, options: Options, rank: int, world_size: int) -> None:
        self._options = options
        self.pacers = {peer: Pacer(options) for peer in range(world_size) if peer != rank}
        self.shards: dict[ShardKey, ShardSend] = {}  # those that are not over
        self._grant = max(1, options.grant_bytes // options.datagram_bytes)
        self.windows = dict.fromkeys(self.pacers, self._grant)  # as the receivers announced them

    def add(self, shard: ShardSend) -> None:
        """A shard that will be sent, as soon as something of it is ready."""
        self.shards[shard.key] = shard
        shard.window = self._grant

    def finish(self, shard: ShardSend) -> None:
        """Everything is sent, or the peer wants no more."""
        self.shards.pop(shard.key, None)

    def enter(self, shard: ShardSend, now_s: float) -> None:
        """The first sign that the peer has: it takes what it said last, or a first grant."""
        shard.entered = True
        shard.progress_s = now_s
        shard.bursts.clear()  # how long they took says when the peer came
        shard.window = self.windows[shard.peer]

    def credit(self, shard: ShardSend, passed: int, now_s: float) -> None:
        """The receiver has seen something of the burst that ends at ``passed``."""
        # It says how far, and not how much more: so the next one makes up for one that was lost.
        shard.window = self.windows[shard.peer]
        passed = min(passed, shard.sent)
        if passed > shard.passed:
            shard.passed = passed
            shard.progress_s = now_s
            shard.stalls = 0
            sent_s = math.inf
            while shard.bursts and shard.bursts[0][0] <= passed:
                sent_s = shard.bursts.popleft()[1]
            self.pacers[shard.peer].answered(now_s - sent_s)

    def next(self, now_s: float, incast: int, most: int) -> tuple[ShardSend, int, int] | float:
        """(shard, first datagram, how many, ``most`` at most) to send; else when to ask again."""
        wake_s = math.inf
        chosen = None
        for shard in self._active(incast):
            pacer = self.pacers[shard.peer]
            if shard.room <= 0:
                stall_s = shard.progress_s + pacer.stall_s * 2**shard.stalls
                if now_s < stall_s:
                    wake_s = min(wake_s, stall_s)
                    continue
                self._stalled(shard, now_s)
            if pacer.next_s > now_s:
                wake_s = min(wake_s, pacer.next_s)
            elif chosen is None or pacer.next_s < self.pacers[chosen.peer].next_s:
                chosen = shard  # whose pace would have let it go first: they take turns
        if chosen is None:
            return wake_s
        first, stop = chosen.ready[0]
        return chosen, first, min(stop - first, chosen.room, most)

    def sent(self, shard: ShardSend, count: int, now_s: float) -> None:
        """``count`` datagrams of ``shard`` are on their way."""
        first, stop = shard.ready.popleft()
        if first + count < stop:
            shard.ready.appendleft((first + count, stop))
        shard.sent += count
        shard.bursts.append((shard.sent, now_s))
        shard.progress_s = now_s
        self.pacers[shard.peer].sent(count * self._options.datagram_bytes, now_s)

    def _stalled(self, shard: ShardSend, now_s: float) -> None:
        """Nothing came back: so much of what is underway counts as lost that a grant has room."""
        if not shard.stalls:  # the further ones in a row wait longer, that is enough
            self.pacers[shard.peer].stalled()
        shard.stalls = min(shard.stalls + 1, STALLS_MOST)
        shard.passed = shard.sent - max(0, shard.window - self._grant)
        shard.progress_s = now_s

    def _active(self, incast: int) -> list[ShardSend]:
        """Those that have a place: the first of each peer, for so many peers."""
        first: dict[int, ShardSend] = {}
        waiting = [s for s in self.shards.values() if s.ready and (s.entered or s.room > 0)]
        for shard in sorted(waiting, key=lambda shard: shard.order):
            first.setdefault(shard.peer, shard)
        return list(first.values())[:incast]


class AckSender:
    """Puts what a rank has to announce into ``outbox``."""

    def __init__(
        self, options: Options, incast: Incast, estimators: list[CompletionEstimator]
    ) -> None:
        self._end_copies = options.end_copies
        self._incast = incast
        self._estimators = estimators
        self._least_s = REPEAT_S  # between two ends, and from an entry to the first repeated credit
        self._most_s = REPEAT_S  # between two repeated credits
        self._ends: dict[ShardKey, tuple[float, int]] = {}  # when due, how many more
        self.outbox: deque[Control] = deque()

    def set_bound(self, bound_s: float) -> None:
        """t_B, which says how often to repeat."""
        self._most_s = min(REPEAT_MOST_S, max(REPEAT_S, bound_s / REPEATS_IN_BOUND))
        self._least_s = max(REPEAT_S, self._most_s / 2)

    def header(self, stage: int, peer: int, operation: int) -> DatagramHeader:
        """Of data: with what this rank announces."""
        return DatagramHeader(
            stage=stage,
            receiver=peer,
            operation=operation,
            incast=self._incast.own,
            expected_us=self._expected_us(stage),
        )

    def over(self, operation: int, stage: int, peer: int, *, gone: bool = False) -> None:
        """Nothing more is taken of a stage (``gone``: of the operation)."""
        self._send(Type.CREDIT, operation, stage, peer, flags=OVER | GONE if gone else OVER)

    def enter(self, bucket: Bucket, now_s: float) -> None:
        """This rank has entered an operation: grant everyone a window, good for both stages."""
        for peer in bucket.stages[0].senders:
            self._credit(bucket, 0, peer)
            self._grant(bucket, 1, peer)
        bucket.repeat_s = now_s + self._least_s

    def received(self, bucket: Bucket, stage: int, peer: int) -> None:
        """Data has come: grant more when a third of the window has passed since the last time."""
        progress = bucket.stages[stage].senders[peer]
        if progress.passed >= progress.credit_at:
            self._credit(bucket, stage, peer)

    def all_sent(self, shard: ShardSend, now_s: float) -> None:
        """Of a shard; its marks have said so, so this comes a little later."""
        if self._end_copies:
            self._ends[shard.key] = now_s + self._least_s, self._end_copies

    def follows(self, shard: ShardSend) -> None:
        """The second stage to a peer has begun: it says that the first is sent."""
        self._ends.pop((shard.operation, 0, shard.peer), None)

    def get_timer(self) -> float:
        """When :meth:`handle_timer` has something to do."""
        return min((due_s for due_s, _ in self._ends.values()), default=math.inf)

    def handle_timer(self, now_s: float) -> None:
        """Repeat the ends that are due."""
        for key, (due_s, copies) in list(self._ends.items()):
            if due_s <= now_s:
                operation, stage, peer = key
                self._send(Type.END, operation, stage, peer)
                self._ends[key] = now_s + self._least_s, copies - 1
                if copies == 1:
                    del self._ends[key]

    def repeat(self, bucket: Bucket, now_s: float) -> None:
        """Where that is due, grant again to those that have sent nothing since the last time."""
        if now_s < bucket.repeat_s:
            return
        bucket.repeat_s = now_s + self._most_s
        for number, stage in enumerate(bucket.stages):
            for peer, progress in stage.senders.items():
                silent = progress.passed == progress.repeated
                progress.repeated = progress.passed
                begun = number == 0 or progress.passed
                if stage.end is None and silent and begun and not progress.complete:
                    self._credit(bucket, number, peer)

    def _credit(self, bucket: Bucket, stage: int, peer: int) -> None:
        window = self._grant(bucket, stage, peer)
        passed = bucket.stages[stage].senders[peer].passed
        self._send(Type.CREDIT, bucket.operation, stage, peer, passed=passed, window=window)

    def _grant(self, bucket: Bucket, stage: int, peer: int) -> int:
        """The window; sets when the next credit is due: never if all has room in it."""
        window = self._incast.window
        progress = bucket.stages[stage].senders[peer]
        if not progress.passed and window >= progress.count:
            progress.credit_at = math.inf
        else:
            progress.credit_at = progress.passed + max(1, window // 3)
        return window

    def _send(
        self,
        kind: Type,
        operation: int,
        stage: int,
        peer: int,
        *,
        passed: int = 0,
        window: int = 0,
        flags: int = 0,
    ) -> None:
        self.outbox.append(
            Control(
                type=kind,
                stage=stage,
                peer=peer,
                operation=operation,
                passed=passed,
                window=window,
                flags=flags,
                incast=self._incast.own,
                expected_us=self._expected_us(stage),
            )
        )

    def _expected_us(self, stage: int) -> int:
        return int(self._estimators[stage].own_s * 1e6)
