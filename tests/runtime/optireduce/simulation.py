"""Protocols on a simulated network and clock: loss, delay, reordering, duplicates; real loss."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from itertools import accumulate, count

import numpy as np
import torch

from runtime.optireduce.options import Options
from runtime.optireduce.udp.bucket import Bucket, ScratchPool
from runtime.optireduce.udp.data_path import NUMPY
from runtime.optireduce.udp.events import Burst
from runtime.optireduce.udp.protocol import UdpProtocol
from runtime.optireduce.udp.socket import UdpSocket
from runtime.work import AllReduceWork

SESSION = 0x1234_5678_9ABC_DEF0
UNTOUCHED = 255
PATH = NUMPY


def content(rank, shard, nbytes):
    """What rank contributes to a shard; never UNTOUCHED."""
    return ((np.arange(nbytes) * 7 + rank * 31 + shard * 13) % 251).astype(np.uint8)


def result(owner, nbytes):
    """What the owner broadcasts."""
    return ((np.arange(nbytes) * 5 + owner * 17) % 251).astype(np.uint8)


class SimulatedBucket(Bucket):
    """Its contributions and results are known bytes, and are checked when they are used."""

    def __init__(self, rank, number, operation, sizes, chosen):
        flat = np.concatenate([content(rank, r, nbytes) for r, nbytes in enumerate(sizes)])
        work = AllReduceWork(number, torch.from_numpy(flat), True, 0.0)
        bounds = [0, *accumulate(sizes)]
        super().__init__(work, *divmod(operation, 2**32), rank, bounds, chosen, path=PATH)
        self.encode(ScratchPool())
        for scratch in self.scratch.values():
            scratch[:] = UNTOUCHED

    def move(self, guard):
        """Have all that datagrams are written to elsewhere in memory."""
        self._arrived_contributions = guard(self._arrived_contributions)
        self.arrived = (
            dict(zip(self.scratch, self._arrived_contributions, strict=True)),
            {peer: guard(arrived) for peer, arrived in self.arrived[1].items()},
        )
        self.shards = [guard(shard) for shard in self.shards]
        self.scratch = {peer: guard(rows) for peer, rows in self.scratch.items()}

    def reduce(self, first, stop):
        """Before the first stage is over a run is complete; what came of it is right."""
        own = self.shards[self.rank]
        payload = self.options.payload_bytes
        part = slice(first * payload, min(stop * payload, len(own)))
        stage = self.stages[0]
        for peer, scratch in self.scratch.items():
            assert stage.end is not None or self.arrived[0][peer][first:stop].all()
            right = content(peer, self.rank, len(own))
            before = np.full(len(own), UNTOUCHED)
            self.check(0, peer, scratch.reshape(-1)[: len(own)], right, before)
        assert (own[part] == content(self.rank, self.rank, len(own))[part]).all(), "reduced twice"
        own[part] = result(self.rank, len(own))[part]

    def check_results(self):
        """When it is over, all of the own shard is reduced; the others are right where marked."""
        own = self.shards[self.rank]
        assert (own == result(self.rank, len(own))).all(), "not all of it is reduced"
        for peer in self.scratch:
            shard = self.shards[peer]
            before = content(self.rank, peer, len(shard))
            self.check(1, peer, shard, result(peer, len(shard)), before)

    def check(self, stage, sender, found, right, before):
        """Datagrams marked as arrived hold the right bytes, all others what was there before."""
        payload = self.options.payload_bytes
        for number, arrived in enumerate(self.arrived[stage][sender]):
            part = slice(number * payload, (number + 1) * payload)
            expected = right[part] if arrived else before[part]
            assert (found[part] == expected).all(), (stage, sender, number, arrived)


class Host:
    """A rank: its protocol, and what became of its buckets (by operation)."""

    def __init__(self, rank, world_size, chosen, key=b""):
        self.rank = rank
        self.options = chosen
        self.codec = PATH.codec(SESSION, rank, world_size, chosen.datagram_bytes, key)
        self.placer = PATH.placer(self.codec)
        self.protocol = UdpProtocol(chosen, rank, world_size, chosen.bound_s, self.placer)
        self.buckets = {}
        self.entered_s = {}
        self.over_s = {}

    def enter(self, number, operation, sizes, now_s):
        bucket = SimulatedBucket(self.rank, number, operation, sizes, self.options)
        self.buckets[operation] = bucket
        self.entered_s[operation] = now_s
        self.protocol.open(bucket, now_s)

    def receive(self, rows, now_s):
        """Datagrams of one length, uint8 [datagrams, bytes]."""
        for event in self.placer.read(rows):
            self.protocol.receive_message(event, now_s)

    def advance(self, now_s, *, socket_empty=True):
        """Datagrams to send now, (peer, bytes)."""
        self.protocol.handle_timer(now_s, socket_empty=socket_empty)
        while bucket := self.protocol.next_event():
            self.over_s[bucket.operation] = now_s
            bucket.check_results()
        sent = []
        while message := self.protocol.message_to_send(now_s):
            if isinstance(message, Burst):
                rows = self.codec.burst(message)
                sent += [(message.header.receiver, row.tobytes()) for row in rows]
            else:
                sent.append((message.peer, self.codec.control(message)))
            self.protocol.sent(message, message.datagrams, now_s)
        return sent


def simulate(
    hosts, entries, *, loss=0.0, twice=0.0, delay=lambda dice: 1e-4, seed=0, until=60.0, pauses=()
):
    """Run until nothing is left to do; entries: (time, rank, number, operation, shard sizes).

    ``pauses``: (from, to, rank), in which it does not run; what comes then lies in its socket.
    """
    dice = random.Random(seed)
    ties = count()
    events = []
    wakes = {}
    unread = Counter()

    def push(at_s, kind, *what):
        heapq.heappush(events, (at_s, next(ties), kind, what))

    for from_s, until_s, rank in pauses:
        push(until_s, "resume", rank, until_s - from_s)
    for at_s, *entry in entries:
        push(at_s, "enter", *entry)
    while events:
        now, _, kind, (rank, *what) = heapq.heappop(events)
        assert now < until, "does not come to an end"
        host = hosts[rank]
        if paused := [to_s for from_s, to_s, r in pauses if r == rank and from_s <= now < to_s]:
            push(paused[0], "unread" if kind == "arrive" else kind, rank, *what)
            unread[rank] += kind == "arrive"
            continue
        if kind == "resume":
            host.protocol.paused(*what)
        elif kind == "wake":
            wakes.pop(rank, None)
        elif kind == "enter":
            host.enter(*what, now)
        else:
            unread[rank] -= kind == "unread"
            (data,) = what
            host.receive(np.frombuffer(data, np.uint8).reshape(1, -1), now)
        for peer, data in host.advance(now, socket_empty=not unread[rank]):
            for _ in range(1 + (dice.random() < twice)):
                if peer in hosts and dice.random() >= loss:
                    push(now + delay(dice), "arrive", peer, data)
        wake = max(host.protocol.get_timer(), now + 1e-6)
        if wake < wakes.get(rank, 1e9):
            wakes[rank] = wake
            push(wake, "wake", rank)


def options(**changes):
    quick = {"datagram_bytes": 128, "bound_s": 0.2, "absence_s": 0.5, "warmup_steps": 1}
    return Options(**{**quick, "reliable_steps": 0, **changes})


def lose(share, seed):
    """From now on this process loses so large a share of the datagrams that it receives."""
    dice = np.random.default_rng(seed)
    receive = UdpSocket.receive

    def lossy(self):
        rows = receive(self)
        return None if rows is None else rows[dice.random(len(rows)) >= share]

    UdpSocket.receive = lossy
