"""Ranks with control planes on a simulated network that loses, doubles, delays and reorders."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from dataclasses import dataclass, field

from runtime.policy.agent import RankAgent
from runtime.policy.cost_model import Candidate, Line, Phase, Profile, times
from runtime.policy.decision import NATIVE
from runtime.policy.messages import pack, unpack
from runtime.policy.options import PolicyInputs

LARGE = 10**4
"""Bytes for which S*beta is 10 ms in ``knowledge``."""


def knowledge(size):
    native, schedule = Line(1e-5, 1e-6), Line(2e-5, 1e-6)
    candidates = [
        Candidate("m = 1", 1, Phase(6, 6 / 7), Phase(9, 9 / 7)),
        Candidate("m = 4", 1, Phase(24, 6 / 7), Phase(30, 30 / 28)),
        Candidate("two late", 2, Phase(20, 5 / 6), Phase(30, 1.25)),
    ]
    return PolicyInputs(size, tuple(candidates), Profile(size, native, schedule))


@dataclass
class Weather:
    """What happens to messages: shares lost and doubled, longest delay in seconds."""

    lost: float = 0.0
    doubled: float = 0.0
    longest_s: float = 0.001


@dataclass
class Network:
    """``size`` ranks that run ``operations`` operations, each rank at its own pace.

    Attributes:
        lateness: (rank, operation) -> seconds of own work before that operation.
        clocks: by how much each rank's clock is ahead of the true time.
        window: operations a rank has in flight before it waits for the first.
        stopped: rank -> (from, until): hears, says and does nothing meanwhile.
        decisions: per rank, by operation.
    """

    size: int
    options: object
    operations: int = 30
    weather: Weather = field(default_factory=Weather)
    lateness: object = lambda rank, operation: 0.0
    clocks: tuple = ()
    window: int = 3
    stopped: dict = field(default_factory=dict)
    seed: int = 0
    bytes: object = lambda rank, operation: LARGE

    def __post_init__(self):
        self.dice = random.Random(self.seed)
        self.clocks = self.clocks or (0.0,) * self.size
        self.controls = [
            RankAgent(rank, self.options, knowledge(self.size)) for rank in range(self.size)
        ]
        self.decisions = [[] for _ in range(self.size)]
        self.decided_s = [[] for _ in range(self.size)]
        self.arrived_s = [[] for _ in range(self.size)]
        self.sent = Counter()  # by kind of message
        self.now_s = 0.0
        self._events, self._count = [], itertools.count()
        self._done_s = []
        self._finished = [0] * self.size
        self._woken = [float("inf")] * self.size
        self._busy = [False] * self.size

    def run(self, limit_s=600.0):
        """Until all operations are decided everywhere, somebody has a fault, or the limit."""
        for rank in range(self.size):
            self._next(rank)
            self._wake(rank)
        while self._events and self.now_s < limit_s:
            at_s, _, rank, what, *more = heapq.heappop(self._events)
            if until := self._stops(rank, at_s):
                if what != "hear":  # what reaches a stopped host is lost
                    self._at(until, rank, what, *more)
                continue
            self.now_s = at_s
            getattr(self, f"_{what}")(rank, *more)
            self._consume(rank)
            self._wake(rank)
            if any(control.fault for control in self.controls):
                return self
            if all(len(each) == self.operations for each in self.decisions):
                return self
        return self

    def clock(self, rank):
        return self.now_s + self.clocks[rank]

    def _stops(self, rank, at_s):
        since_s, until_s = self.stopped.get(rank, (0.0, 0.0))
        return until_s if since_s <= at_s < until_s else None

    def _at(self, at_s, rank, what, *more):
        heapq.heappush(self._events, (at_s, next(self._count), rank, what, *more))

    def _next(self, rank):
        """The rank works, then comes to its next operation, if it may go on."""
        number = len(self.arrived_s[rank])
        in_flight = number - self._finished[rank]
        if number < self.operations and in_flight < self.window and not self._busy[rank]:
            self._busy[rank] = True
            self._at(self.now_s + self.lateness(rank, number), rank, "arrive", number)

    def _arrive(self, rank, number):
        self._busy[rank] = False
        self.arrived_s[rank].append(self.now_s)
        size = self.bytes(rank, number)
        self._send(rank, self.controls[rank].arrive(self.clock(rank), number, size, "float32"))
        self._next(rank)

    def _done(self, rank, number):
        self._finished[rank] += 1
        self.controls[rank].done(self.clock(rank), number)
        self._next(rank)

    def _hear(self, rank, sender, payload):
        found = self.controls[rank].receive(self.clock(rank), sender, unpack(payload))
        self._send(rank, found)

    def _tick(self, rank):
        self._woken[rank] = float("inf")
        self._send(rank, self.controls[rank].tick(self.clock(rank)))

    def _wake(self, rank):
        at_s = max(self.now_s + 1e-6, self.controls[rank].wake_s - self.clocks[rank])
        if at_s < self._woken[rank]:
            self._woken[rank] = at_s
            self._at(at_s, rank, "tick")

    def _consume(self, rank):
        while len(self.decisions[rank]) < self.operations:
            number = len(self.decisions[rank])
            decision = self.controls[rank].decision(number)
            if decision is None:
                return
            self.decisions[rank].append(decision)
            self.decided_s[rank].append(self.now_s)
            if all(len(each) > number for each in self.decisions):
                self._complete(number, decision)

    def _complete(self, number, decision):
        """All ranks are in the operation: they have the result as soon as the model says."""
        began = sorted(each[number] for each in self.decided_s)
        before_s = self._done_s[-1] if self._done_s else 0.0
        known, size = self.controls[0].knowledge, self.bytes(0, number)
        if decision.candidate == NATIVE:
            end_s = max(began[-1], before_s) + known.profile.native_s(size)
        else:
            found = times(known.candidates, known.profile, len(decision.late), size)
            took = next(each for each in found if each.candidate == decision.candidate)
            start_s = max(began[-1 - len(decision.late)] + took.waiting_s, began[-1], before_s)
            end_s = start_s + took.completion_s
        self._done_s.append(end_s)
        for rank in range(self.size):
            self._at(end_s, rank, "done", number)

    def _send(self, rank, sends):
        for peer, message in sends:
            assert peer != rank
            self.sent[type(message).__name__] += 1
            copies = (self.dice.random() >= self.weather.lost) + (
                self.dice.random() < self.weather.doubled
            )
            for _ in range(copies):
                delay_s = self.dice.random() * self.weather.longest_s
                self._at(self.now_s + delay_s, peer, "hear", rank, pack(message))
