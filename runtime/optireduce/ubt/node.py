"""UBT on one rank, without sockets: datagrams and the clock in, datagrams and events out.

It ties the state machines together: a batch that was read goes to the stage it belongs to and its
payload to its place; credits go out as data comes in; flows are told what the peers grant; stages
are polled. Everything that travels may be lost: a credit is repeated until its data comes, and what
belongs to an operation that is over is answered by saying so.
"""

from __future__ import annotations

import functools
import math
from collections import Counter, deque
from collections.abc import Iterator
from typing import NamedTuple

from runtime.optireduce.options import Options
from runtime.optireduce.ubt.bound import Expectation
from runtime.optireduce.ubt.exchange import Exchange
from runtime.optireduce.ubt.incast import Incast
from runtime.optireduce.ubt.receiver import Stage
from runtime.optireduce.ubt.sender import Flow, Sender
from runtime.optireduce.ubt.wire import GONE, OVER, Batch, Codec, Type, is_before

REPEAT_S = 0.005
"""A credit is repeated after so long, then twice as long, ..."""
REPEAT_MOST_S = 0.05
REPEATS_IN_BOUND = 10
"""... but at least so often in t_B: a credit that got lost must not cost the rest of a stage."""


def clock_us(now_s: float) -> int:
    """A clock as on the wire: microseconds that wrap, never 0 (which means none)."""
    return int(now_s * 1e6) % 2**32 or 1


class Ended(NamedTuple):
    """A stage is over (0, 1), or (2) the operation: nothing is received or sent any more."""

    exchange: Exchange
    stage: int


class Node:
    """One rank's UBT.

    Args:
        codec: writes the datagrams.
        bound_s: t_B.
    """

    def __init__(self, options: Options, codec: Codec, bound_s: float) -> None:
        self.options, self.codec, self.bound_s = options, codec, bound_s
        self.peers = [r for r in range(codec.size) if r != codec.rank]
        self.sender = Sender(options, codec.rank, codec.size)
        self.expected = (Expectation(options, bound_s), Expectation(options, bound_s))
        self.incast = Incast(options, len(self.peers))
        self.counts: Counter[str] = Counter()
        self.by_sender: Counter[tuple[int, str]] = Counter()
        self.outbox: deque[tuple[int, bytes]] = deque()
        self.open_exchanges: dict[int, Exchange] = {}
        self._newest: int | None = None
        self._ends: list[tuple[float, int, Flow]] = []

    def open(self, exchange: Exchange, now_s: float) -> None:
        """Enter an operation: tell the peers, and queue the first stage's sends."""
        own = len(exchange.shards[self.codec.rank])
        sizes = (
            dict.fromkeys(self.peers, own),
            {peer: len(exchange.shards[peer]) for peer in self.peers},
        )
        exchange.stages = tuple(
            Stage(sizes[i], exchange.payload, now_s, self.options.absence_s, self.bound_s * (i + 1))
            for i in (0, 1)
        )
        self.open_exchanges[exchange.operation] = exchange
        self._newest = exchange.operation
        for peer in self.peers:
            self._credit(exchange, 0, peer)
        exchange.repeat_s = now_s + REPEAT_S
        self._send(exchange, 0)

    def broadcast(self, exchange: Exchange, now_s: float) -> None:
        """The own shard is reduced: queue the second stage's sends."""
        exchange.sending = True
        if exchange.operation in self.open_exchanges:
            self._send(exchange, 1)
            for peer in exchange.entered:
                if flow := self.sender.flow(exchange.operation, 1, peer):
                    self.sender.enter(flow, now_s)

    def hear(self, batch: Batch, now_s: float) -> None:
        """Datagrams have arrived."""
        exchange = self.open_exchanges.get(batch.operation)
        if exchange is None:
            self._stranger(batch)
            return
        sender = batch.sender
        self.incast.told(sender, batch.incast)
        self.expected[batch.stage].told(sender, batch.expected_us / 1e6)
        if sender not in exchange.entered:
            exchange.entered.add(sender)
            for stage in (0, 1):
                exchange.stages[stage].enter(sender, now_s)
                if flow := self.sender.flow(batch.operation, stage, sender):
                    self.sender.enter(flow, now_s)
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
                if stage.end is None and stage.poll(now_s, self.expected[number].grace_s, empty):
                    self._over(exchange, number, now_s)
                    yield Ended(exchange, number)
                if stage.end is None:
                    break
            if self._done(exchange, now_s):
                del self.open_exchanges[exchange.operation]
                self.sender.drop(exchange.operation)
                yield Ended(exchange, 2)
            elif now_s >= exchange.repeat_s:
                self._repeat(exchange, now_s)
        for due in [end for end in self._ends if end[0] <= now_s]:
            self._ends.remove(due)
            self._end(due[2], due[1], now_s)

    def burst(self, now_s: float) -> tuple[Flow, int, int] | float:
        """What to send next, or when to ask again; :meth:`sent` reports it done."""
        return self.sender.next(now_s, self.incast.allowed)

    def sent(self, flow: Flow, count: int, now_s: float) -> None:
        """``count`` datagrams of ``flow`` are on their way."""
        self.sender.took(flow, count, now_s)
        if flow.sent == flow.count:
            self.sender.finish(flow)
            self._end(flow, self.options.end_copies, now_s)

    def wake_s(self) -> float:
        """When :meth:`poll` has something to do, if nothing arrives."""
        times = [end[0] for end in self._ends]
        for exchange in self.open_exchanges.values():
            times += [exchange.repeat_s, exchange.stages[1].hard_s]
            times += [stage.deadline_s for stage in exchange.stages if stage.end is None][:1]
        return min(times, default=math.inf)

    def marks_from(self, flow: Flow) -> int:
        """Datagrams from this number on are the flow's last percentile: at least one."""
        return min(flow.count - 1, flow.count - int(flow.count * self.options.last_share))

    def _data(self, exchange: Exchange, batch: Batch, now_s: float) -> None:
        stage, sender = exchange.stages[batch.stage], batch.sender
        drop = functools.partial(self._drop, sender)
        rows, numbers, count = stage.take(
            sender, batch.offsets, batch.lengths, batch.flags, now_s, drop
        )
        if count:
            exchange.place(batch.stage, sender, batch.payload[rows], numbers)
        if stage.end is not None:
            self._say_over(batch, OVER)
            return
        furthest = stage.senders[sender].furthest
        due = exchange.credited.get((batch.stage, sender), 0)
        if furthest * exchange.payload >= due and not stage.senders[sender].complete:
            self._credit(exchange, batch.stage, sender, batch.sent_us)

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
        if batch.sent_us:
            rtt_s = ((clock_us(now_s) - batch.sent_us) % 2**32) / 1e6
            self.sender.pacers[sender].answered(rtt_s)
        self.sender.credit(flow, int(batch.offsets.max()), now_s)

    def _credit(self, exchange: Exchange, stage: int, peer: int, answers_us: int = 0) -> None:
        """Grant more; credits are sent again once a quarter of the window has come."""
        window = self.incast.window_bytes // self.incast.announced
        furthest = exchange.stages[stage].senders[peer].furthest * exchange.payload
        exchange.credited[stage, peer] = furthest + window // 4
        self._control(
            Type.CREDIT,
            stage,
            peer,
            exchange.operation,
            offset=furthest + window,
            sent_us=answers_us,
        )

    def _repeat(self, exchange: Exchange, now_s: float) -> None:
        exchange.repeats += 1
        most_s = min(REPEAT_MOST_S, max(REPEAT_S, self.bound_s / REPEATS_IN_BOUND))
        exchange.repeat_s = now_s + min(most_s, REPEAT_S * 2**exchange.repeats)
        for number, stage in enumerate(exchange.stages):
            if stage.end is not None:
                continue
            for peer, expected in stage.senders.items():
                if not expected.complete and (number == 0 or expected.furthest):
                    self._credit(exchange, number, peer)

    def _send(self, exchange: Exchange, stage: int) -> None:
        rank, size = self.codec.rank, self.codec.size
        for place in range(1, size):
            peer = (rank + place) % size
            order = (exchange.number, stage, place)
            length = len(exchange.source(stage, peer))
            flow = Flow(peer, stage, exchange.operation, length, exchange.payload, order)
            if not flow.over:
                self.sender.add(flow)

    def _over(self, exchange: Exchange, number: int, now_s: float) -> None:
        stage = exchange.stages[number]
        self.expected[number].ended(stage)
        self.incast.ended(stage)
        if number == 0:
            exchange.stages[1].begin(now_s)
        for peer, expected in stage.senders.items():
            if not expected.complete:
                self._control(Type.CREDIT, number, peer, exchange.operation, flags=OVER)

    def _done(self, exchange: Exchange, now_s: float) -> bool:
        first, second = exchange.stages
        if first.end is None or second.end is None or not exchange.sending:
            return False
        waiting = any(self.sender.pending(exchange.operation))
        return not waiting or now_s >= second.hard_s

    def _stranger(self, batch: Batch) -> None:
        """Something of an operation that is not open here."""
        newest = self._newest
        if newest is None or is_before(newest, batch.operation):
            self._drop(batch.sender, "early", len(batch.offsets))
            return
        if batch.type is Type.DATA:
            self._drop(batch.sender, "stale", len(batch.offsets))
        if batch.type is not Type.END and not int(batch.flags[-1]) & OVER:
            self._say_over(batch, OVER | GONE)

    def _say_over(self, batch: Batch, flags: int) -> None:
        self._control(Type.CREDIT, batch.stage, batch.sender, batch.operation, flags=flags)

    def _drop(self, sender: int, kind: str, count: int) -> None:
        self.counts[kind] += count
        self.by_sender[sender, kind] += count

    def _end(self, flow: Flow, copies: int, now_s: float) -> None:
        if copies:
            self._control(Type.END, flow.stage, flow.peer, flow.operation)
            if copies > 1:
                self._ends.append((now_s + REPEAT_S, copies - 1, flow))

    def _control(
        self,
        kind: Type,
        stage: int,
        peer: int,
        operation: int,
        *,
        offset: int = 0,
        flags: int = 0,
        sent_us: int = 0,
    ) -> None:
        data = self.codec.control(
            kind,
            stage,
            peer,
            operation,
            offset=offset,
            flags=flags,
            incast=self.incast.announced,
            expected_us=int(self.expected[stage].own_s * 1e6),
            sent_us=sent_us,
        )
        self.outbox.append((peer, data))
