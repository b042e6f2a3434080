"""Ranks with agents in simulated time, on a network that loses, doubles, delays and reorders."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import Counter

import msgspec

from runtime.policy.agent import Decided, RankAgent
from runtime.policy.coordinator import Fault
from runtime.policy.cost_model import Candidate, Line, Phase, Profile
from runtime.policy.messages import NATIVE, Message
from runtime.policy.options import Options, PolicyInputs

LARGE = 10**4
"""Bytes for which S*beta is 10 ms in ``inputs``."""
CANDIDATES = (
    Candidate("m = 1", 1, Phase(6, 6 / 7), Phase(9, 9 / 7)),
    Candidate("m = 4", 1, Phase(24, 6 / 7), Phase(30, 30 / 28)),
    Candidate("two late", 2, Phase(20, 5 / 6), Phase(30, 1.25)),
)


def inputs(ranks, options=None):
    profile = Profile(ranks, Line(1e-5, 1e-6), Line(2e-5, 1e-6))
    return PolicyInputs(options or Options(), ranks, CANDIDATES, profile)


class Simulation:
    """Agents and their events; ``decided`` is told of decisions.

    Attributes:
        clocks: by how much each rank's clock is ahead of the true time.
        sent: messages, by type.
    """

    def __init__(self, agents, seed, clocks=()):
        self.agents, self.size = agents, len(agents)
        self.clocks = clocks or (0.0,) * self.size
        self.dice = random.Random(seed)
        self.sent, self.faults = Counter(), []
        self.now_s = 0.0
        self._events, self._count = [], itertools.count()
        self._woken = [math.inf] * self.size

    def at(self, at_s, rank, what, *more):
        heapq.heappush(self._events, (at_s, next(self._count), rank, what, *more))

    def clock(self, rank):
        return self.now_s + self.clocks[rank]

    def happen(self, rank, what=None, *more):
        """Something happens at a rank, now; then what follows from it."""
        if what:
            getattr(self, f"_{what}")(rank, *more)
        self.post(rank)
        while (event := self.agents[rank].next_event()) is not None:
            if isinstance(event, Fault):
                self.faults.append(event)
            elif isinstance(event, Decided):
                self.decided(rank, event.operation, event.decision)
        timer_s = self.agents[rank].get_timer()
        if timer_s is None:
            return
        at_s = max(self.now_s + 1e-6, timer_s - self.clocks[rank])
        if at_s < self._woken[rank]:
            self._woken[rank] = at_s
            self.at(at_s, rank, "tick")

    def post(self, rank):
        for peer, message in self.agents[rank].messages_to_send(self.clock(rank)):
            assert peer != rank
            self.sent[type(message).__name__] += 1
            for delay_s in self.delays():
                payload = msgspec.msgpack.encode(message)
                self.at(self.now_s + delay_s, peer, "receive", rank, payload)

    def _receive(self, rank, sender, payload):
        message = msgspec.msgpack.decode(payload, type=Message)
        self.agents[rank].receive_message(message, sender, self.clock(rank))

    def _tick(self, rank):
        self._woken[rank] = math.inf
        self.agents[rank].handle_timer(self.clock(rank))


class Network(Simulation):
    """``size`` ranks that run ``operations`` operations, each rank at its own pace.

    Args:
        lost, doubled: shares of the messages; they take up to ``longest_s``.
        window: operations a rank has in flight before it waits for the first.

    Attributes:
        lateness: (rank, operation) -> seconds of own work before that operation.
        stopped: rank -> (from, until): hears, says and does nothing meanwhile.
        nbytes: (rank, operation) -> of the buffer.
        decisions, decided_s, arrived_s: per rank, by operation.
    """

    def __init__(
        self, size, options, operations=30, *, lost=0.0, doubled=0.0, longest_s=0.001, window=3,
        seed=0, clocks=(),
    ):  # fmt: skip
        agents = [RankAgent(rank, inputs(size, options)) for rank in range(size)]
        super().__init__(agents, seed, clocks)
        self.operations, self.window = operations, window
        self.lost, self.doubled, self.longest_s = lost, doubled, longest_s
        self.lateness = lambda rank, operation: 0.0
        self.nbytes = lambda rank, operation: LARGE
        self.stopped = {}
        self.decisions, self.decided_s, self.arrived_s = (
            [[] for _ in range(size)] for _ in range(3)
        )
        self._done_s = []
        self._finished = [0] * size
        self._busy = [False] * size

    def run(self, limit_s=600.0):
        """Until all operations are decided everywhere, ranks disagree, or the limit."""
        for rank in range(self.size):
            self._next(rank)
            self.happen(rank)
        while self._events and self.now_s < limit_s and not self.faults:
            at_s, _, rank, what, *more = heapq.heappop(self._events)
            since_s, until_s = self.stopped.get(rank, (0.0, 0.0))
            if since_s <= at_s < until_s:
                if what != "receive":  # what reaches a stopped host is lost
                    self.at(until_s, rank, what, *more)
                continue
            self.now_s = at_s
            self.happen(rank, what, *more)
            if all(len(each) == self.operations for each in self.decisions):
                break
        return self

    def delays(self):
        copies = (self.dice.random() >= self.lost) + (self.dice.random() < self.doubled)
        return (self.dice.random() * self.longest_s for _ in range(copies))

    def _next(self, rank):
        """The rank works, then comes to its next operation, if it may go on."""
        number = len(self.arrived_s[rank])
        in_flight = number - self._finished[rank]
        if number < self.operations and in_flight < self.window and not self._busy[rank]:
            self._busy[rank] = True
            self.at(self.now_s + self.lateness(rank, number), rank, "arrive", number)

    def _arrive(self, rank, number):
        self._busy[rank] = False
        self.arrived_s[rank].append(self.now_s)
        nbytes = self.nbytes(rank, number)
        self.agents[rank].arrive(number, nbytes, "float32", self.clock(rank))
        self.post(rank)
        self._next(rank)

    def _done(self, rank, number):
        self._finished[rank] += 1
        self.agents[rank].done(number, self.clock(rank))
        self._next(rank)

    def decided(self, rank, operation, decision):
        """When all ranks are in an operation, they have the result as soon as the model says."""
        assert operation == len(self.decisions[rank])
        self.decisions[rank].append(decision)
        self.decided_s[rank].append(self.now_s)
        if any(len(each) <= operation for each in self.decisions):
            return
        began = sorted(each[operation] for each in self.decided_s)
        before_s = self._done_s[-1] if self._done_s else 0.0
        known, nbytes = self.agents[0].inputs, self.nbytes(0, operation)
        if decision.candidate == NATIVE:
            end_s = max(began[-1], before_s) + known.native_s(nbytes, corrected=False)
        else:
            found = known.times(len(decision.late), nbytes, corrected=False)
            took = next(each for each in found if each.candidate == decision.candidate)
            start_s = max(began[-1 - len(decision.late)] + took.waiting_s, began[-1], before_s)
            end_s = start_s + took.completion_s
        self._done_s.append(end_s)
        for each in range(self.size):
            self.at(end_s, each, "done", operation)
