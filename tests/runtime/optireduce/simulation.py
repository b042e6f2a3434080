"""Protocols on a simulated network and clock: loss, delay, reordering, duplicates; real loss."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from itertools import accumulate, count

import numpy as np
import torch

from latecomer.runtime.optireduce.options import Options
from latecomer.runtime.optireduce.udp.bucket import Bucket, ScratchPool
from latecomer.runtime.optireduce.udp.data_path import NUMPY
from latecomer.runtime.optireduce.udp.events import Burst
from latecomer.runtime.optireduce.udp.protocol import UdpProtocol
from latecomer.runtime.optireduce.udp.socket import UdpSocket
from latecomer.runtime.work import AllReduceWork

SESSION = 0x1234_5678_9ABC_DEF0
UNTOUCHED = 255  # no byte of what is sent: see content() and result()
PATH = NUMPY  # the data path; tests of the compiled one put that here


def content(rank, shard, nbytes):
    """What rank contributes to a shard; never UNTOUCHED."""
    return ((np.arange(nbytes) * 7 + rank * 31 + shard * 13) % 251).astype(np.uint8)


def result(owner, nbytes):
    """What the owner broadcasts."""
    return ((np.arange(nbytes) * 5 + owner * 17) % 251).astype(np.uint8)


class SimulatedBucket(Bucket):
    """Its contributions and results are known bytes, and are checked when they are used."""

    def __init__(self, rank, number, operation, sizes, own_options):
        shards = [content(rank, shard, nbytes) for shard, nbytes in enumerate(sizes)]
        work = AllReduceWork(number, torch.from_numpy(np.concatenate(shards)), True, 0.0)
        step, index = divmod(operation, 2**32)  # as operation_id() makes one of both
        bounds = [0, *accumulate(sizes)]
        super().__init__(work, step, index, rank, bounds, own_options, path=PATH)
        self.lay_out(ScratchPool())
        for scratch in self.scratch.values():
            scratch[:] = UNTOUCHED

    def move(self, guard):
        """Have all that datagrams are written to elsewhere in memory."""
        self._arrived_contributions = guard(self._arrived_contributions)
        contributions = dict(zip(self.scratch, self._arrived_contributions, strict=True))
        results = {peer: guard(arrived) for peer, arrived in self.arrived[1].items()}
        self.arrived = (contributions, results)
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
            received = scratch.reshape(-1)[: len(own)]
            right = content(peer, self.rank, len(own))
            before = np.full(len(own), UNTOUCHED)
            self.check(0, peer, received, right, before)
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

    def check(self, stage, sender, received, right, before):
        """Datagrams marked as arrived hold the right bytes, all others what was there before."""
        payload = self.options.payload_bytes
        for number, arrived in enumerate(self.arrived[stage][sender]):
            part = slice(number * payload, (number + 1) * payload)
            expected = right[part] if arrived else before[part]
            assert (received[part] == expected).all(), (stage, sender, number, arrived)


class Host:
    """A rank: its protocol, and what became of its buckets (by operation)."""

    def __init__(self, rank, world_size, own_options, key=b""):
        self.rank = rank
        self.options = own_options
        self.codec = PATH.codec(SESSION, rank, world_size, own_options.datagram_bytes, key)
        self.placer = PATH.placer(self.codec)
        self.protocol = UdpProtocol(own_options, rank, world_size, own_options.bound_s, self.placer)
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


class Simulation:
    """Hosts, and the events that are still to come at them.

    An event is of a kind: a host enters an operation ("enter"), a datagram comes ("arrive") or
    has lain in the socket of a host that did not run ("unread"), a timer is due ("wake"), a host
    runs again ("resume").
    """

    def __init__(self, hosts, *, loss, twice, delay, seed, pauses):
        self.hosts = hosts
        self.loss = loss
        self.twice = twice
        self.delay = delay
        self.dice = random.Random(seed)
        self.pauses = pauses
        self.events = []  # a heap of (when, count, kind, rank, what belongs to it)
        self._count = count()  # events of the same time happen in the order of their making
        self._wakes_s = {}  # by rank: the next wake
        self._unread = Counter()  # datagrams in the sockets, by rank

    def push(self, at_s, kind, rank, *arguments):
        heapq.heappush(self.events, (at_s, next(self._count), kind, rank, arguments))

    def step(self, until):
        now_s, _, kind, rank, arguments = heapq.heappop(self.events)
        assert now_s < until, "does not come to an end"

        resumes_s = self._resumes_s(rank, now_s)
        if resumes_s is None:
            self._happen(kind, rank, arguments, now_s)
            self._advance(rank, now_s)
        elif kind == "arrive":
            self._unread[rank] += 1
            self.push(resumes_s, "unread", rank, *arguments)
        else:
            self.push(resumes_s, kind, rank, *arguments)

    def _resumes_s(self, rank, now_s):
        """When a rank runs again that does not now; None if it does."""
        for from_s, to_s, paused_rank in self.pauses:
            if paused_rank == rank and from_s <= now_s < to_s:
                return to_s
        return None

    def _happen(self, kind, rank, arguments, now_s):
        host = self.hosts[rank]
        if kind == "resume":
            host.protocol.paused(*arguments)
        elif kind == "wake":
            self._wakes_s.pop(rank, None)
        elif kind == "enter":
            host.enter(*arguments, now_s)
        else:
            if kind == "unread":
                self._unread[rank] -= 1
            (data,) = arguments
            host.receive(np.frombuffer(data, np.uint8).reshape(1, -1), now_s)

    def _advance(self, rank, now_s):
        """Send what the host has to send, and wake it when its timer is due."""
        host = self.hosts[rank]
        for peer, data in host.advance(now_s, socket_empty=not self._unread[rank]):
            copies = 2 if self.dice.random() < self.twice else 1
            for _ in range(copies):
                if peer in self.hosts and self.dice.random() >= self.loss:
                    self.push(now_s + self.delay(self.dice), "arrive", peer, data)

        wake_s = max(host.protocol.get_timer(), now_s + 1e-6)  # time goes on in any case
        if wake_s < self._wakes_s.get(rank, 1e9):
            self._wakes_s[rank] = wake_s
            self.push(wake_s, "wake", rank)


def simulate(
    hosts, entries, *, loss=0.0, twice=0.0, delay=lambda dice: 1e-4, seed=0, until=60.0, pauses=()
):
    """Run until nothing is left to do; entries: (time, rank, number, operation, shard sizes).

    ``pauses``: (from, to, rank), in which it does not run; what comes then lies in its socket.
    """
    simulation = Simulation(hosts, loss=loss, twice=twice, delay=delay, seed=seed, pauses=pauses)
    for from_s, until_s, rank in pauses:
        simulation.push(until_s, "resume", rank, until_s - from_s)
    for at_s, rank, number, operation, sizes in entries:
        simulation.push(at_s, "enter", rank, number, operation, sizes)

    while simulation.events:
        simulation.step(until)


def options(**changes):
    """Small datagrams and short bounds, over UBT from the first operation on; and changes."""
    defaults = {
        "datagram_bytes": 128,
        "bound_s": 0.2,
        "absence_s": 0.5,
        "warmup_steps": 1,
        "reliable_steps": 0,
    }
    return Options(**(defaults | changes))


def lose(share, seed):
    """From now on this process loses so large a share of the datagrams that it receives."""
    dice = np.random.default_rng(seed)
    receive = UdpSocket.receive

    def lossy(self):
        rows = receive(self)
        return None if rows is None else rows[dice.random(len(rows)) >= share]

    UdpSocket.receive = lossy
