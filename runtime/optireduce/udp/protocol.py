"""UBT on one rank, without sockets: datagrams and the clock in, datagrams and events out.

A batch that was read goes to the stage it belongs to and its payload to its place; what of the own
shard has come from all is reduced and broadcast; credits go out as data comes in. What belongs to
an operation that is over is answered by saying so.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter, deque
from typing import Any, NamedTuple

import numpy as np

from runtime.optireduce.options import KIB, Options
from runtime.optireduce.udp.adaptive import CompletionEstimator, Incast
from runtime.optireduce.udp.bucket import Bucket
from runtime.optireduce.udp.datagram import GONE, OVER, Batch, Bytes, Codec, Type, is_before
from runtime.optireduce.udp.reassembly import EarlyBuffer
from runtime.optireduce.udp.sender import AckSender, BurstSender, ShardSend

RUN = 16  # of the own shard that are reduced together, if more are to come
RUN_BYTES = 22 * KIB
BURSTS = 32  # written together at most
STALLS_IN_BOUND = 10  # a sender notices a stall after so small a part of t_B at the latest
LOOK_S = 0.01  # the clock is looked at so often while a bucket is open: a pause shows by it


class Outgoing(NamedTuple):
    """Datagrams for a peer: of a shard (``Codec.burst``), or a short one, uint8 [1, bytes]."""

    peer: int
    rows: Any
    shard: ShardSend | None = None


class UdpProtocol:
    """One rank's UBT; one call to the kernel takes ``together`` datagrams at most.

    ``buckets`` has those that are open, by operation; ``dropped`` counts datagrams by kind, and
    ``dropped_from`` by sender and kind, where it is known.
    """

    def __init__(self, options: Options, codec: Codec, bound_s: float, together: int = 1) -> None:
        self.options = options
        self.codec = codec
        self.peers = [r for r in range(codec.world_size) if r != codec.rank]
        self.sender = BurstSender(options, codec.rank, codec.world_size)
        self.estimators = [CompletionEstimator(options, bound_s) for _ in (0, 1)]
        self.incast = Incast(options, len(self.peers), self.sender.pacers.values())
        self.acks = AckSender(options, codec, self.incast, self.estimators)
        self.dropped = Counter[str]()
        self.dropped_from = Counter[tuple[int, str]]()
        self.buckets: dict[int, Bucket] = {}
        self._newest: int | None = None
        self._early = EarlyBuffer()
        self._over = deque[Bucket]()
        self._together = together
        self._bursts = 1
        self._run = max(1, min(RUN, RUN_BYTES // options.payload_bytes))
        self._burst_ends = (np.arange(BURSTS * options.burst) // options.burst + 1) * options.burst
        self._written: tuple[ShardSend, Any] | None = None
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
        self.buckets[bucket.operation], self._newest = bucket, bucket.operation
        self.codec.expect(bucket.operation, bucket.places())
        self.acks.enter(bucket, now_s)
        for peer, stage in itertools.product(self.peers, (0, 1)):
            if count := -(-len(bucket.source(stage, peer)) // self.options.payload_bytes):
                order = bucket.number, stage, (peer - self.codec.rank) % self.codec.world_size
                self.sender.add(shard := ShardSend(peer, stage, bucket.operation, count, order))
                if stage == 0:
                    shard.offer(0, count)
        for batch in self._early.take(bucket.operation):
            self._receive(batch, now_s)

    def receive_datagrams(self, rows: Bytes, now_s: float) -> int:
        """What came in, uint8 [datagrams, bytes of each]; how many of them are data."""
        count = 0
        for batch in self.codec.read(rows, self.dropped):
            self._receive(batch, now_s)
            if batch.type is Type.DATA:
                count += batch.placed[0] if batch.placed else len(batch.offsets)
        return count

    def datagrams_to_send(self, now_s: float, *, data: bool = True) -> Outgoing | None:
        """What must go out next (short ones only, or ``data``, too); :meth:`sent` reports on it."""
        if self.acks.outbox:
            peer, short = self.acks.outbox[0]
            return Outgoing(peer, np.frombuffer(short, np.uint8)[None])
        if not data:
            return None
        if self._written is None or self._written[0].key not in self.sender.shards:
            most = self._bursts * self.options.burst
            step = self.sender.next(now_s, self.incast.allowed, most)
            if isinstance(step, float):
                self._send_s = step
                return None
            self._written = step[0], self._write(*step)
        shard, rows = self._written
        return Outgoing(shard.peer, rows, shard)

    def sent(self, out: Outgoing, count: int, now_s: float) -> None:
        """``count`` datagrams of ``out`` are on their way; the rest comes again later."""
        whole = count == len(out.rows)
        self._send_s = now_s if whole else math.inf  # else the owner knows when there is room
        if out.shard is None:
            if whole:
                self.acks.outbox.popleft()
            return
        self._bursts = min(BURSTS, 2 * self._bursts) if whole else 1
        if not count:  # it stays written
            return
        self._written = None
        if out.shard.stage == 1 and not out.shard.sent:
            self.acks.follows(out.shard)
        self.sender.sent(out.shard, count, now_s)
        if out.shard.sent == out.shard.count:
            self.sender.finish(out.shard)
            self.acks.all_sent(out.shard, now_s)
            self.buckets[out.shard.operation].due_s = 0.0

    def get_timer(self) -> float:
        """When :meth:`handle_timer` or :meth:`datagrams_to_send` has something to do."""
        due_s = [self._look_s, *(b.due_s for b in self.buckets.values())] if self.buckets else []
        return min([self._send_s, self.acks.get_timer(), *due_s])

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
        for bucket in [b for b in self.buckets.values() if b.due_s <= now_s]:
            for number, stage in enumerate(bucket.stages):
                grace_s = self.estimators[number].grace_s(stage.elapsed_s)
                if stage.end is None and stage.handle_timer(now_s, grace_s, socket_empty):
                    self._end_stage(bucket, number, now_s)
                if stage.end is None:
                    break
            last = bucket.stages[1]
            pending = [s for s in self.sender.shards.values() if s.operation == bucket.operation]
            if last.end and (not pending or now_s >= last.hard_s):
                del self.buckets[bucket.operation]
                for shard in pending:
                    self.sender.finish(shard)
                self._over.append(bucket)
                continue
            self.acks.repeat(bucket, now_s)
            times = [bucket.repeat_s, last.hard_s] if socket_empty else [now_s]
            times += [stage.deadline_s for stage in bucket.stages if stage.end is None][:1]
            bucket.due_s = min(times)
        self.acks.handle_timer(now_s)

    def next_event(self) -> Bucket | None:
        """The next bucket that is over: nothing of it is received or sent any more."""
        return self._over.popleft() if self._over else None

    def _write(self, shard: ShardSend, first: int, count: int) -> Any:
        last = first + (count - 1) // self._together * self._together  # the last call's
        marks_from = max(last, shard.marks_from(first, count, self.options.last_share))
        source = self.buckets[shard.operation].source(shard.stage, shard.peer)
        header = self.acks.header(shard.stage, shard.peer, shard.operation)
        passed = shard.sent + np.minimum(self._burst_ends[:count], count)
        return self.codec.burst(count, source, first, marks_from, header, passed)

    def _receive(self, batch: Batch, now_s: float) -> None:
        sender = batch.sender
        if (bucket := self.buckets.get(batch.operation)) is None:
            self._receive_other(batch, now_s)
            return
        bucket.due_s = 0.0
        self.incast.announced(sender, batch.incast)
        self.estimators[batch.stage].announced(sender, batch.expected_us / 1e6)
        if batch.type is Type.CREDIT and batch.lengths[-1]:
            self.sender.windows[sender] = int(batch.lengths[-1])
        if sender in bucket.stages[0].absent:
            for number, stage in enumerate(bucket.stages):
                stage.enter(sender, now_s)
                if shard := self.sender.shards.get((bucket.operation, number, sender)):
                    self.sender.enter(shard, now_s)
        if batch.type is Type.DATA:
            self._receive_data(bucket, batch, now_s)
        elif batch.type is Type.END:
            bucket.stages[batch.stage].all_sent(sender, now_s)
        else:
            self._receive_credit(bucket, batch, now_s)

    def _receive_data(self, bucket: Bucket, batch: Batch, now_s: float) -> None:
        stage = bucket.stages[batch.stage]
        sender = batch.sender
        rows, numbers, count = stage.take(batch, now_s, functools.partial(self._drop, sender))
        if count and batch.placed is None:
            bucket.place(batch.stage, sender, batch.payload[rows], numbers)
        if stage.end is not None:
            self.estimators[batch.stage].late(bucket.operation, len(batch.offsets), now_s)
            self.acks.send(Type.CREDIT, bucket.operation, batch.stage, sender, flags=OVER)
            return
        bitmap = stage.senders[sender]
        bitmap.passed = max(bitmap.passed, min(batch.passed, bitmap.count))
        self.acks.received(bucket, batch.stage, sender)
        if batch.stage == 0:
            bucket.fresh += count
            if bucket.fresh >= self._run * len(self.peers):
                self._broadcast(bucket, self._run)
        else:  # a sender begins with its second stage to a peer when its first is sent
            bucket.stages[0].all_sent(sender, now_s)

    def _receive_credit(self, bucket: Bucket, batch: Batch, now_s: float) -> None:
        flags = int(batch.flags[-1])
        sender = batch.sender
        if flags & GONE:
            for stage in bucket.stages:
                stage.all_sent(sender, now_s)
        shard = self.sender.shards.get((bucket.operation, batch.stage, sender))
        if shard is not None and flags & (OVER | GONE):
            self.sender.finish(shard)
        elif shard is not None:
            self.sender.credit(shard, max(batch.offsets.tolist()), now_s)

    def _receive_other(self, batch: Batch, now_s: float) -> None:
        """Something of an operation that is not open here."""
        if self._newest is None or is_before(self._newest, batch.operation):
            if not self._early.keep(batch):
                self._drop(batch.sender, "early", len(batch.offsets))
            return
        if batch.type is Type.DATA:
            self._drop(batch.sender, "stale", len(batch.offsets))
            self.estimators[batch.stage].late(batch.operation, len(batch.offsets), now_s)
        if batch.type is not Type.END and not int(batch.flags[-1]) & OVER:
            place = batch.operation, batch.stage, batch.sender
            self.acks.send(Type.CREDIT, *place, flags=OVER | GONE)

    def _broadcast(self, bucket: Bucket, least: int) -> None:
        """Reduce what is there in runs of at least so many datagrams, and queue it for all."""
        shards = [s for s in self.sender.shards.values() if s.key[:2] == (bucket.operation, 1)]
        for first, stop in bucket.reduce_runs(least):
            for shard in shards:
                shard.offer(first, stop)

    def _end_stage(self, bucket: Bucket, number: int, now_s: float) -> None:
        stage = bucket.stages[number]
        self.codec.expect(bucket.operation, bucket.places())
        self.estimators[number].ended(stage, bucket.operation, now_s)
        self.incast.ended(stage)
        if number == 0:
            bucket.stages[1].began_s = now_s
            self._broadcast(bucket, 1)
        for peer, bitmap in stage.senders.items():
            if not bitmap.complete:
                self.acks.send(Type.CREDIT, bucket.operation, number, peer, flags=OVER)

    def _drop(self, sender: int, kind: str, count: int) -> None:
        self.dropped[kind] += count
        self.dropped_from[sender, kind] += count
