"""Nodes on a simulated network with a simulated clock: loss, delay, reordering, duplicates."""

from __future__ import annotations

import heapq
import random
from collections import Counter

import numpy as np

from runtime.optireduce.options import Options
from runtime.optireduce.udp.codec import Codec
from runtime.optireduce.udp.exchange import Exchange
from runtime.optireduce.udp.protocol import Protocol

SESSION = 0x1234_5678_9ABC_DEF0
UNTOUCHED = 255


def content(rank, shard, size):
    """What rank contributes to a shard; never UNTOUCHED."""
    return ((np.arange(size) * 7 + rank * 31 + shard * 13) % 251).astype(np.uint8)


def result(owner, size):
    """What the owner broadcasts."""
    return ((np.arange(size) * 5 + owner * 17) % 251).astype(np.uint8)


class Host:
    """A rank: its node, and what became of its operations."""

    def __init__(self, rank, size, options, key=b""):
        self.rank = rank
        self.codec = Codec(SESSION, rank, size, options.datagram_bytes, key)
        self.node = Protocol(options, self.codec, options.bound_s)
        self.drops = Counter()
        self.exchanges = {}
        self.ends = {}
        self.entered_s = {}

    def enter(self, number, operation, sizes, now_s):
        payload = self.codec.payload_bytes
        count = -(-sizes[self.rank] // payload)
        peers = self.node.peers
        exchange = Exchange(
            operation, number, self.rank,
            {r: content(self.rank, r, sizes[r]) for r in range(len(sizes))},
            {p: np.full((count, payload), UNTOUCHED, np.uint8) for p in peers},
            payload,
            lambda first, stop: self.reduce(exchange, first, stop),
        )  # fmt: skip
        self.exchanges[operation] = exchange
        self.entered_s[operation] = now_s
        self.node.open(exchange, now_s)

    def reduce(self, exchange, first, stop):
        """Before the first stage is over a run is complete; what came of it is right."""
        size, payload = len(exchange.shards[self.rank]), exchange.payload
        part = slice(first * payload, min(stop * payload, size))
        stage = exchange.stages[0]
        for peer, scratch in exchange.scratch.items():
            assert stage.end is not None or stage.senders[peer].arrived[first:stop].all()
            right = content(peer, self.rank, size)
            before = np.full(size, UNTOUCHED, np.uint8)
            check(exchange, 0, peer, scratch.reshape(-1)[:size], right, before)
        own = exchange.shards[self.rank]
        assert (own[part] == content(self.rank, self.rank, size)[part]).all(), "reduced twice"
        own[part] = result(self.rank, size)[part]

    def hear(self, data, now_s):
        rows = np.frombuffer(data, np.uint8).reshape(1, -1)
        for batch in self.codec.read(rows, self.drops):
            self.node.hear(batch, now_s)

    def poll(self, now_s):
        for event in self.node.poll(now_s, empty=True):
            exchange = event.exchange
            self.ends[exchange.operation, event.stage] = now_s
            if event.stage == 0:
                own = exchange.shards[self.rank]
                assert (own == result(self.rank, len(own))).all(), "not all of it is reduced"
            elif event.stage == 1:
                for peer in exchange.scratch:
                    shard = exchange.shards[peer]
                    own = content(self.rank, peer, len(shard))
                    check(exchange, 1, peer, shard, result(peer, len(shard)), own)

    def out(self, now_s):
        """Datagrams to send now, and when to look again."""
        node, sent = self.node, []
        while True:
            while node.outbox:
                sent.append(node.outbox.popleft())
            step = node.burst(now_s)
            if isinstance(step, float):
                return sent, min(step, node.wake_s())
            flow, first, count = step
            rows = np.zeros((count, self.codec.datagram_bytes), np.uint8)
            source = node.open_exchanges[flow.operation].source(flow.stage, flow.peer)
            self.codec.data(
                rows, source, first, node.marks_from(flow, first, count), stage=flow.stage,
                receiver=flow.peer, operation=flow.operation, passed=flow.sent + count,
                expected_us=int(node.expected[flow.stage].own_s * 1e6),
            )  # fmt: skip
            sent += [(flow.peer, row.tobytes()) for row in rows]
            node.sent(flow, count, now_s)


def check(exchange, stage, sender, found, right, before):
    """Datagrams marked as arrived hold the right bytes, all others what was there before."""
    arrived = exchange.stages[stage].senders[sender].arrived
    for number, there in enumerate(arrived):
        part = slice(number * exchange.payload, (number + 1) * exchange.payload)
        expected = right[part] if there else before[part]
        assert (found[part] == expected).all(), (stage, sender, number, there)


def simulate(hosts, entries, *, loss=0.0, twice=0.0, delay=lambda dice: 1e-4, seed=0, until=60.0):
    """Run until nothing is left to do; entries: (time, rank, number, operation, shard sizes)."""
    dice = random.Random(seed)
    events = [(at, i, "enter", entry) for i, (at, *entry) in enumerate(entries)]
    heapq.heapify(events)
    tie = len(events)
    wakes = {}
    while events:
        now, _, kind, what = heapq.heappop(events)
        assert now < until, "does not come to an end"
        rank = what[0]
        host = hosts[rank]
        if kind == "wake":
            wakes.pop(rank, None)
        if kind == "enter":
            host.enter(*what[1:], now)
        elif kind == "arrive":
            host.hear(what[1], now)
        host.poll(now)
        sent, wake = host.out(now)
        for peer, data in sent:
            for _ in range(1 + (dice.random() < twice)):
                if peer in hosts and dice.random() >= loss:
                    tie += 1
                    heapq.heappush(events, (now + delay(dice), tie, "arrive", (peer, data)))
        wake = max(wake, now + 1e-6)
        alive = host.node.open_exchanges or host.node.announcer.wake_s < 1e9
        if alive and wake < wakes.get(rank, float("inf")):
            tie += 1
            wakes[rank] = wake
            heapq.heappush(events, (wake, tie, "wake", (rank,)))


def options(**changes):
    return Options(**{"datagram_bytes": 128, "bound_s": 0.2, "absence_s": 0.5, "warmup_steps": 1,
                      "reliable_steps": 0, **changes})  # fmt: skip
