"""UBT on one rank, without sockets: datagrams and the clock in, datagrams and events out.

It ties the state machines together: a batch that was read goes to the stage it belongs to and its
payload to its place; what of the own shard has come from all is reduced and broadcast; credits go
out as data comes in; flows are told what the peers grant; stages are polled. What belongs to an
operation that is over is answered by saying so.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from runtime.optireduce.options import Options
from runtime.optireduce.udp.acks import AckSender
from runtime.optireduce.udp.bound import CompletionEstimator
from runtime.optireduce.udp.codec import Codec
from runtime.optireduce.udp.datagram import GONE, OVER, Batch, Type, is_before
from runtime.optireduce.udp.early import EarlyBuffer
from runtime.optireduce.udp.exchange import Exchange
from runtime.optireduce.udp.incast import Incast
from runtime.optireduce.udp.reassembly import StageReceiver
from runtime.optireduce.udp.sender import Sender, ShardSend

RUN = 16
"""Datagrams of the own shard that are reduced and broadcast together, if there are more to come."""
MARKED = 8
"""So many datagrams at least are marked as a flow's last: a mark must not hang on one datagram."""
STALLS_IN_BOUND = 10
"""A sender notices a stall after so small a part of t_B at the latest."""


class Ended(NamedTuple):
    """A stage is over (0, 1), or (2) the operation: nothing is received or sent any more."""

    exchange: Exchange
    stage: int


class Protocol:
    """One rank's UBT.

    Args:
        codec: writes the datagrams.
        bound_s: t_B.
    """

    def __init__(self, options: Options, codec: Codec, bound_s: float) -> None:
        self.options, self.codec = options, codec
        self.peers = [r for r in range(codec.size) if r != codec.rank]
        self.sender = Sender(options, codec.rank, codec.size)
        self.expected = (
            CompletionEstimator(options, bound_s),
            CompletionEstimator(options, bound_s),
        )
        self.incast = Incast(options, len(self.peers))
        self.announcer = AckSender(options, codec, self.incast, self.expected)
        self.outbox = self.announcer.outbox
        self.counts: Counter[str] = Counter()
        self.by_sender: Counter[tuple[int, str]] = Counter()
        self.open_exchanges: dict[int, Exchange] = {}
        self._newest: int | None = None
        self._early = EarlyBuffer()
        self.bind(bound_s)

    def bind(self, bound_s: float) -> None:
        """From now on t_B is this, for operations that are opened later."""
        self.bound_s = bound_s
        self.sender.stalls_by(bound_s / STALLS_IN_BOUND)
        self.announcer.bind(bound_s)
        for expected in self.expected:
            expected.most_s = bound_s

    def open(self, exchange: Exchange, now_s: float) -> None:
        """Enter an operation: tell the peers, and queue the sends."""
        own = len(exchange.shards[self.codec.rank])
        sizes = (
            dict.fromkeys(self.peers, own),
            {peer: len(exchange.shards[peer]) for peer in self.peers},
        )
        exchange.stages = tuple(
            StageReceiver(
                sizes[i], exchange.payload, now_s, self.options.absence_s, self.bound_s * (i + 1)
            )
            for i in (0, 1)
        )
        self.open_exchanges[exchange.operation] = exchange
        self._newest = exchange.operation
        self.announcer.enter(exchange, now_s)
        rank, size = self.codec.rank, self.codec.size
        for place in range(1, size):
            peer = (rank + place) % size
            for stage in (0, 1):
                order = (exchange.number, stage, place)
                length = len(exchange.source(stage, peer))
                flow = ShardSend(peer, stage, exchange.operation, length, exchange.payload, order)
                if not flow.over:
                    self.sender.add(flow)
                    if stage == 0:
                        flow.offer(0, flow.count)
        for batch in self._early.take(exchange.operation):
            self.hear(batch, now_s)

    def hear(self, batch: Batch, now_s: float) -> None:
        """Datagrams have arrived."""
        exchange = self.open_exchanges.get(batch.operation)
        if exchange is None:
            self._stranger(batch, now_s)
            return
        sender = batch.sender
        self.incast.told(sender, batch.incast)
        self.expected[batch.stage].told(sender, batch.expected_us / 1e6)
        if batch.type is Type.CREDIT and batch.lengths[-1]:
            self.sender.told(sender, int(batch.lengths[-1]))
        if sender not in exchange.entered:
            self._enter(exchange, sender, now_s)
        if batch.type is Type.DATA:
            self._data(exchange, batch, now_s)
        elif batch.type is Type.END:
            exchange.stages[batch.stage].all_sent(sender, now_s)
        else:
            self._credited(exchange, batch, now_s)

    def poll(self, now_s: float, empty: bool) -> Iterator[Ended]:
        """Move the clock on; what has ended. ``empty``: the socket has just been found so."""
        for exchange in list(self.open_exchanges.values()):
            for number, stage in enumerate(exchange.stages):
                grace_s = self.expected[number].grace_s(stage.elapsed_s)
                if stage.end is None and stage.poll(now_s, grace_s, empty):
                    self._over(exchange, number, now_s)
                    yield Ended(exchange, number)
                if stage.end is None:
                    break
            if self._done(exchange, now_s):
                del self.open_exchanges[exchange.operation]
                self.sender.drop(exchange.operation)
                yield Ended(exchange, 2)
            else:
                self.announcer.repeat(exchange, now_s)
        self.announcer.poll(now_s)

    def burst(self, now_s: float, bursts: int = 1) -> tuple[ShardSend, int, int] | float:
        """What to send next, or when to ask again; :meth:`sent` reports it done.

        Args:
            bursts: so many at most, to one peer.
        """
        return self.sender.next(now_s, self.incast.allowed, bursts)

    def sent(self, flow: ShardSend, count: int, now_s: float) -> None:
        """``count`` datagrams of ``flow`` are on their way."""
        if flow.stage == 1 and not flow.sent:
            self.announcer.follows(flow)
        self.sender.took(flow, count, now_s)
        if flow.sent == flow.count:
            self.sender.finish(flow)
            self.announcer.all_sent(flow, now_s)

    def wake_s(self) -> float:
        """When :meth:`poll` has something to do, if nothing arrives."""
        times = [self.announcer.wake_s]
        for exchange in self.open_exchanges.values():
            times += [exchange.repeat_s, exchange.stages[1].hard_s]
            times += [stage.deadline_s for stage in exchange.stages if stage.end is None][:1]
        return min(times, default=math.inf)

    def marks_from(self, flow: ShardSend, first: int, count: int) -> int:
        """Datagrams from this number on are marked: the flow's last percentile, at least eight.

        Only among those that end the flow: a mark means that all is sent. A sender that still
        waits for credit must not look like a network that loses.

        Args:
            first: the number of the datagram that is sent next.
            count: how many are sent with it.
        """
        left = flow.count - flow.sent
        if count < left:
            return first + count
        return first + max(0, left - max(MARKED, int(flow.count * self.options.last_share)))

    def _enter(self, exchange: Exchange, sender: int, now_s: float) -> None:
        """The first sign that a peer has entered the operation."""
        exchange.entered.add(sender)
        for stage in (0, 1):
            exchange.stages[stage].enter(sender, now_s)
            if flow := self.sender.flow(exchange.operation, stage, sender):
                self.sender.enter(flow, now_s)

    def _data(self, exchange: Exchange, batch: Batch, now_s: float) -> None:
        stage, sender = exchange.stages[batch.stage], batch.sender
        drop = functools.partial(self._drop, sender)
        rows, numbers, count = stage.take(
            sender, batch.offsets, batch.lengths, batch.flags, now_s, drop
        )
        if count:
            exchange.place(batch.stage, sender, batch.payload[rows], numbers)
        if stage.end is not None:
            self.expected[batch.stage].late(exchange.operation, len(batch.offsets), now_s)
            self.announcer.over(batch.stage, sender, exchange.operation, OVER)
            return
        expected = stage.senders[sender]
        expected.passed = max(expected.passed, min(batch.passed, expected.count))
        self.announcer.heard(exchange, batch.stage, sender)
        if batch.stage == 0:
            exchange.fresh += count
            if exchange.fresh >= RUN * len(self.peers):
                self._broadcast(exchange, RUN)
        else:  # a sender begins with its second stage to a peer when its first is sent
            exchange.stages[0].all_sent(sender, now_s)

    def _broadcast(self, exchange: Exchange, least: int) -> None:
        """Reduce what is there in runs of at least so many datagrams, and queue it for all."""
        flows = [self.sender.flow(exchange.operation, 1, peer) for peer in self.peers]
        for first, stop in exchange.runs(least):
            for flow in flows:
                if flow is not None:
                    flow.offer(first, stop)

    def _credited(self, exchange: Exchange, batch: Batch, now_s: float) -> None:
        flags, stage, sender = int(batch.flags[-1]), batch.stage, batch.sender
        if flags & GONE:
            for receiving in exchange.stages:
                receiving.all_sent(sender, now_s)
        flow = self.sender.flow(exchange.operation, stage, sender)
        if flow is None:
            return
        if flags & (OVER | GONE):
            self.sender.finish(flow)
            return
        self.sender.credit(flow, int(batch.offsets.max()), now_s)

    def _over(self, exchange: Exchange, number: int, now_s: float) -> None:
        stage = exchange.stages[number]
        self.expected[number].ended(stage, exchange.operation, now_s)
        self.incast.ended(stage)
        if number == 0:
            exchange.stages[1].begin(now_s)
            self._broadcast(exchange, 1)
        for peer, expected in stage.senders.items():
            if not expected.complete:
                self.announcer.over(number, peer, exchange.operation, OVER)

    def _done(self, exchange: Exchange, now_s: float) -> bool:
        first, second = exchange.stages
        if first.end is None or second.end is None:
            return False
        waiting = any(self.sender.pending(exchange.operation))
        return not waiting or now_s >= second.hard_s

    def _stranger(self, batch: Batch, now_s: float) -> None:
        """Something of an operation that is not open here."""
        newest = self._newest
        if newest is None or is_before(newest, batch.operation):
            if not self._early.keep(batch):
                self._drop(batch.sender, "early", len(batch.offsets))
            return
        if batch.type is Type.DATA:
            self._drop(batch.sender, "stale", len(batch.offsets))
            self.expected[batch.stage].late(batch.operation, len(batch.offsets), now_s)
        if batch.type is not Type.END and not int(batch.flags[-1]) & OVER:
            self.announcer.over(batch.stage, batch.sender, batch.operation, OVER | GONE)

    def _drop(self, sender: int, kind: str, count: int) -> None:
        self.counts[kind] += count
        self.by_sender[sender, kind] += count
