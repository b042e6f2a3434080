"""UBT on one rank, without sockets or bytes: events and the clock in, messages and buckets out.

Below it data is put in its place, and the rest decoded: two events come of that, ``Placed`` and
``Control``. What of the own shard has come from all is reduced and broadcast; credits go out as
data comes in. What belongs to an operation that is over is answered by saying so.
"""

from __future__ import annotations

import itertools
import math
from collections import deque

import numpy as np

from latecomer.runtime.optireduce.options import KIB, Options
from latecomer.runtime.optireduce.udp.adaptive import CompletionEstimator, Incast
from latecomer.runtime.optireduce.udp.bucket import Bucket
from latecomer.runtime.optireduce.udp.events import (
    GONE,
    OVER,
    Burst,
    Control,
    Placed,
    ShardPlacer,
    Type,
    UbtEvent,
    UbtMessage,
)
from latecomer.runtime.optireduce.udp.sender import AckSender, BurstSender, ShardSend

RUN = 16  # datagrams of the own shard that are reduced together, if more are to come,
RUN_BYTES = 22 * KIB  # but no more than so many bytes, where datagrams are large
BURSTS = 32  # handed over together at most: one call to the compiled path writes and sends them
STALLS_IN_BOUND = 10  # a sender notices a stall after so small a part of t_B at the latest
LOOK_S = 0.01  # the clock is looked at so often while a bucket is open: a pause shows by it


class UdpProtocol:
    """One rank's UBT; one call to the kernel takes ``together`` datagrams at most.

    ``placer`` is told what may be placed; ``buckets`` has those that are open, by operation.
    """

    def __init__(
        self,
        options: Options,
        rank: int,
        world_size: int,
        bound_s: float,
        placer: ShardPlacer,
        together: int = 1,
    ) -> None:
        self.options = options
        self.rank = rank
        self.world_size = world_size
        self.peers = [peer for peer in range(world_size) if peer != rank]
        self.sender = BurstSender(options, rank, world_size)
        self.estimators = [CompletionEstimator(options, bound_s) for _ in range(2)]
        self.incast = Incast(options, len(self.peers), self.sender.pacers.values())
        self.acks = AckSender(options, self.incast, self.estimators)
        self.buckets: dict[int, Bucket] = {}
        self._placer = placer
        self._over = deque[Bucket]()
        self._together = together
        self._bursts = 1  # handed over together now: twice as many as the kernel took the last time
        self._run = max(1, min(RUN, RUN_BYTES // options.payload_bytes))
        numbers = np.arange(BURSTS * options.burst)
        self._burst_ends = (numbers // options.burst + 1) * options.burst
        self._pending: tuple[ShardSend, Burst] | None = None  # given out, and not reported on
        self._send_s = math.inf
        self._look_s = 0.0
        self.set_bound(bound_s)

    def set_bound(self, bound_s: float) -> None:
        """From now on t_B is this, for operations that are opened later."""
        self.bound_s = bound_s
        for pacer in self.sender.pacers.values():
            pacer.stall_most_s = bound_s / STALLS_IN_BOUND
        self.acks.set_bound(bound_s)
        for estimator in self.estimators:
            estimator.bound_s = bound_s

    def open(self, bucket: Bucket, now_s: float) -> None:
        """Enter an operation: tell the peers, and queue the sends."""
        bucket.open(now_s, self.bound_s)
        self.buckets[bucket.operation] = bucket
        early_events = self._placer.open(bucket.operation, bucket.expected())
        self.acks.enter(bucket, now_s)

        for peer, stage in itertools.product(self.peers, (0, 1)):
            count = -(-len(bucket.source(stage, peer)) // self.options.payload_bytes)
            if not count:
                continue
            # not all ranks begin with the same peer
            order = (bucket.number, stage, (peer - self.rank) % self.world_size)
            shard = ShardSend(peer, stage, bucket.operation, count, order)
            self.sender.add(shard)
            if stage == 0:
                shard.offer(0, count)

        for event in early_events:
            self.receive_message(event, now_s)

    def receive_message(self, event: UbtEvent, now_s: float) -> None:
        """Data was placed, or a control datagram has come."""
        bucket = self.buckets.get(event.operation)
        if bucket is None:
            self._receive_too_late(event, now_s)
            return
        peer = event.peer
        self.incast.announced(peer, event.incast)
        self.estimators[event.stage].announced(peer, event.expected_us / 1e6)
        if isinstance(event, Control) and event.type is Type.CREDIT and event.window:
            self.sender.windows[peer] = event.window
        if peer in bucket.stages[0].absent:
            self._entered(bucket, peer, now_s)

        if isinstance(event, Placed):
            self._receive_placed(bucket, event, now_s)
        elif event.type is Type.END:
            bucket.stages[event.stage].all_sent(peer, now_s)
            bucket.due_s = 0.0
        else:
            self._receive_credit(bucket, event, now_s)

    def message_to_send(self, now_s: float, *, data: bool = True) -> UbtMessage | None:
        """What must go out next (control, or ``data``, too); :meth:`sent` reports on it."""
        if self.acks.outbox:
            return self.acks.outbox[0]
        if not data:
            return None
        if self._pending is None or self._pending[0].key not in self.sender.shards:
            most = self._bursts * self.options.burst
            step = self.sender.next(now_s, self.incast.allowed, most)
            if isinstance(step, float):
                self._send_s = step
                return None
            shard, first, count = step
            self._pending = shard, self._burst(shard, first, count)
        return self._pending[1]

    def sent(self, message: UbtMessage, count: int, now_s: float) -> None:
        """``count`` datagrams of a message are on their way; the others come again later."""
        all_sent = count == message.datagrams
        self._send_s = now_s if all_sent else math.inf  # else the owner knows when there is room
        if isinstance(message, Control):
            if all_sent:
                self.acks.outbox.popleft()
            return
        taken = self._bursts if all_sent else count // self.options.burst
        self._bursts = max(1, min(BURSTS, 2 * taken))
        if not count:  # the same one comes again
            return
        assert self._pending is not None
        shard = self._pending[0]
        self._pending = None
        if shard.stage == 1 and not shard.sent:
            self.acks.follows(shard)
        self.sender.sent(shard, count, now_s)
        if shard.sent == shard.count:
            self.sender.finish(shard)
            self.acks.all_sent(shard, now_s)
            self.buckets[shard.operation].due_s = 0.0

    def get_timer(self) -> float:
        """When :meth:`handle_timer` or :meth:`message_to_send` has something to do."""
        due_s = [self._send_s, self.acks.get_timer()]
        if self.buckets:
            due_s.append(self._look_s)
            due_s += [bucket.due_s for bucket in self.buckets.values()]
        return min(due_s)

    @property
    def due_bytes(self) -> int:
        """How many bytes must come for the next stage to be complete."""
        lost = [
            stage.lost
            for bucket in self.buckets.values()
            for stage in bucket.stages
            if stage.end is None and stage.lost
        ]
        return min(lost, default=0) * self.options.datagram_bytes

    def paused(self, by_s: float) -> None:
        """This rank did not run for so long, though it wanted to: that counts against nobody."""
        for bucket in self.buckets.values():
            for stage in bucket.stages:
                stage.extend(by_s)
        for shard in self.sender.shards.values():
            shard.progress_s += by_s

    def handle_timer(self, now_s: float, *, socket_empty: bool) -> None:
        """Move the clock on; ``socket_empty``: what had come by then has been received."""
        self._look_s = now_s + LOOK_S
        due_buckets = [bucket for bucket in self.buckets.values() if bucket.due_s <= now_s]
        for bucket in due_buckets:
            self._end_stages(bucket, now_s, socket_empty)
            last = bucket.stages[1]
            pending = [s for s in self.sender.shards.values() if s.operation == bucket.operation]
            # the others may still wait for what this rank has to send, up to the bound
            if last.end and (not pending or now_s >= last.hard_s):
                del self.buckets[bucket.operation]
                for shard in pending:
                    self.sender.finish(shard)
                self._over.append(bucket)
                continue
            self.acks.repeat(bucket, now_s)
            bucket.due_s = _due_s(bucket, now_s, socket_empty)
        self.acks.handle_timer(now_s)

    def next_event(self) -> Bucket | None:
        """The next bucket that is over: nothing of it is received or sent any more."""
        return self._over.popleft() if self._over else None

    def _burst(self, shard: ShardSend, first: int, count: int) -> Burst:
        # a mark says that all is sent: only what goes with the last call to the kernel may have one
        last_call = first + (count - 1) // self._together * self._together
        marks_from = max(last_call, shard.marks_from(first, count, self.options.last_share))
        return Burst(
            header=self.acks.header(shard.stage, shard.peer, shard.operation),
            source=self.buckets[shard.operation].source(shard.stage, shard.peer),
            first=first,
            marks_from=marks_from,
            passed=shard.sent + np.minimum(self._burst_ends[:count], count),
        )

    def _entered(self, bucket: Bucket, peer: int, now_s: float) -> None:
        """The first sign that a peer has entered an operation."""
        bucket.due_s = 0.0
        for number, stage in enumerate(bucket.stages):
            stage.enter(peer, now_s)
            if shard := self.sender.shards.get((bucket.operation, number, peer)):
                self.sender.enter(shard, now_s)

    def _receive_placed(self, bucket: Bucket, event: Placed, now_s: float) -> None:
        stage = bucket.stages[event.stage]
        peer = event.peer
        if stage.end is not None:
            self.estimators[event.stage].late(bucket.operation, event.datagrams, now_s)
            self.acks.over(bucket.operation, event.stage, peer)
            return
        stage.placed(peer, event.fresh, marked=event.marked, now_s=now_s)
        if not stage.lost or stage.senders[peer].marked:  # else it does not end by this
            bucket.due_s = 0.0
        # datagrams overtake each other, and a wrong one may claim more than there are
        progress = stage.senders[peer]
        progress.passed = max(progress.passed, min(event.passed, progress.count))
        self.acks.received(bucket, event.stage, peer)
        if event.stage == 0:
            bucket.fresh += event.fresh
            if bucket.fresh >= self._run * len(self.peers):
                self._broadcast(bucket, self._run)
        elif not bucket.stages[0].senders[peer].marked:
            # a sender begins with its second stage to a peer when its first is sent
            bucket.stages[0].all_sent(peer, now_s)
            bucket.due_s = 0.0

    def _receive_credit(self, bucket: Bucket, credit: Control, now_s: float) -> None:
        if credit.flags & GONE:
            for stage in bucket.stages:
                stage.all_sent(credit.peer, now_s)
            bucket.due_s = 0.0
        shard = self.sender.shards.get((bucket.operation, credit.stage, credit.peer))
        if shard is None:
            return
        if credit.flags & (OVER | GONE):
            self.sender.finish(shard)
            bucket.due_s = 0.0
        else:
            self.sender.credit(shard, credit.passed, now_s)

    def _receive_too_late(self, event: UbtEvent, now_s: float) -> None:
        """Something of an operation that is over here: say so, unless it asks for nothing."""
        if isinstance(event, Placed):
            self.estimators[event.stage].late(event.operation, event.datagrams, now_s)
        elif event.type is Type.END or event.flags & OVER:
            return
        self.acks.over(event.operation, event.stage, event.peer, gone=True)

    def _broadcast(self, bucket: Bucket, least: int) -> None:
        """Reduce what is there in runs of at least so many datagrams, and queue it for all."""
        shards = [
            shard
            for shard in self.sender.shards.values()
            if shard.operation == bucket.operation and shard.stage == 1
        ]
        for first, stop in bucket.reduce_runs(least):
            for shard in shards:
                shard.offer(first, stop)

    def _end_stages(self, bucket: Bucket, now_s: float, socket_empty: bool) -> None:
        """End the stages of a bucket that are over: the first, and then perhaps the second."""
        for number, stage in enumerate(bucket.stages):
            grace_s = self.estimators[number].grace_s(stage.elapsed_s)
            if stage.end is None and stage.handle_timer(now_s, grace_s, socket_empty):
                self._end_stage(bucket, number, now_s)
            if stage.end is None:
                return

    def _end_stage(self, bucket: Bucket, number: int, now_s: float) -> None:
        stage = bucket.stages[number]
        self._placer.close(bucket.operation, number)
        self.estimators[number].ended(stage, bucket.operation, now_s)
        self.incast.ended(stage)
        if number == 0:
            bucket.stages[1].began_s = now_s
            self._broadcast(bucket, 1)
        for peer, progress in stage.senders.items():
            if not progress.complete:
                self.acks.over(bucket.operation, number, peer)


def _due_s(bucket: Bucket, now_s: float, socket_empty: bool) -> float:
    """When the timers of a bucket have something to do, if nothing comes for it."""
    times_s = [bucket.repeat_s, bucket.stages[1].hard_s] if socket_empty else [now_s]
    open_stages = [stage for stage in bucket.stages if stage.end is None]
    if open_stages:  # the second one does not end before the first
        times_s.append(open_stages[0].deadline_s)
    return min(times_s)
