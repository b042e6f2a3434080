"""A training job in simulated time: the real decisions, links that do one thing at a time.

Each step every rank sleeps as the scenario says and comes to a few operations, one after the other;
it ends when all are done everywhere. Links are a server of unit speed that the oldest operation has
first: an operation is one piece of work N from when all ranks run it natively, or W from when those
who are not late run the schedule, then C from when all do. Messages take ``TRANSIT_S``.
"""

from __future__ import annotations

import heapq
import itertools
import random

from runtime.policy.agent import RankAgent
from runtime.policy.cost_model import Line, Profile
from runtime.policy.messages import NATIVE
from runtime.policy.options import PolicyInputs
from tests.runtime.policy.network import CANDIDATES, Simulation

SIZE, LATE = 8, 5
BUCKETS, BYTES = 3, 14 * 10**6
BETA_S = 4e-8  # 200 Mbit/s: S*beta is 0.56 s
ALPHA_S = 3e-4
TRANSIT_S = 0.01
SPACING_S, JITTER_S = 0.02, 0.03
DELAY_S = 1.2 * BUCKETS * BYTES * BETA_S
MOST_S = 60.0
ALIGNED_S = 1.0


def scenario(name, step, seed=0):
    """Seconds by which each rank is late in a step."""
    dice = random.Random(f"{name} {step} {seed}")
    if name == "tails":
        return [min(2.0, 0.02 * dice.paretovariate(1.2)) for _ in range(SIZE)]
    if name == "switching":
        name = ("persistent", "nobody")[step // 30 % 2]
    late = {"persistent": LATE, "random": dice.randrange(SIZE), "nobody": None}[name]
    return [DELAY_S * (rank == late) for rank in range(SIZE)]


class Job(Simulation):
    """``slower``: what operations take in truth, native and by schedule, over the profile."""

    def __init__(self, options, seed=0, slower=(1.0, 1.0)):
        profile = Profile(SIZE, Line(ALPHA_S, BETA_S), Line(ALPHA_S, BETA_S))
        self.native_s = slower[0] * profile.native_s(BYTES)
        self.slower = slower[1]
        agents = [
            RankAgent(rank, PolicyInputs(options, SIZE, CANDIDATES, profile))
            for rank in range(SIZE)
        ]
        super().__init__(agents, seed)
        self.first = 0
        self.ways = []
        self._decided = {}
        for rank in range(SIZE):
            self.happen(rank)
        self._until(ALIGNED_S)

    def step(self, delays):
        """One step; its seconds."""
        began_s, numbers = self.now_s, range(self.first, self.first + BUCKETS)
        for rank, delay_s in enumerate(delays):
            at_s = began_s + delay_s
            for number in numbers:
                at_s += SPACING_S + JITTER_S * self.dice.random()
                self.at(at_s, rank, "arrive", number)
        while len(self._decided) < SIZE * BUCKETS:
            assert self.now_s < began_s + MOST_S
            self._until(self._events[0][0])
        done = self._served(numbers)
        for number, rank in itertools.product(numbers, range(SIZE)):
            self.agents[rank].done(number, done[number])
        self.first += BUCKETS
        self._decided.clear()
        self._until(max(done.values()))
        self.now_s = max(done.values())
        return self.now_s - began_s

    def decided(self, rank, operation, decision):
        self._decided[operation, rank] = self.now_s, decision

    def delays(self):
        return (TRANSIT_S,)

    def _until(self, until_s):
        while self._events[0][0] <= until_s:
            at_s, _, rank, what, *more = heapq.heappop(self._events)
            self.now_s = max(self.now_s, at_s)
            self.happen(rank, what, *more)

    def _arrive(self, rank, number):
        self.agents[rank].arrive(number, BYTES, "float32", self.now_s)

    def _served(self, numbers):
        """When each operation is done."""
        work = []  # [operation, released, seconds left], in the order of their priority
        for number in numbers:
            decision = self._decided[number, 0][1]
            at_s = [self._decided[number, rank][0] for rank in range(SIZE)]
            if decision.candidate == NATIVE:
                self.ways.append(())
                work.append([number, max(at_s), self.native_s])
                continue
            self.ways.append(decision.late)
            candidate = CANDIDATES[decision.candidate]
            waits_s, takes_s = (
                self.slower * (phase.messages * ALPHA_S + phase.share * BYTES * BETA_S)
                for phase in (candidate.waiting, candidate.completion)
            )
            helpers = [at_s[rank] for rank in range(SIZE) if rank not in decision.late]
            work.append([number, max(helpers), waits_s])
            work.append([number, max(at_s), takes_s])
        now_s, done = 0.0, {}
        while work:
            now_s = max(now_s, min(released for _, released, _ in work))
            task = next(task for task in work if task[1] <= now_s)
            later = [released for _, released, _ in work if released > now_s]
            spent_s = min([task[2], *(released - now_s for released in later)])
            now_s += spent_s
            task[2] -= spent_s
            if task[2] <= 1e-12:
                work.remove(task)
                done[task[0]] = now_s
        return done
