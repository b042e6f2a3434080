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
from runtime.policy.cost_model import Candidate, Line, Phase, Profile
from runtime.policy.decision import NATIVE
from runtime.policy.options import PolicyInputs

SIZE, LATE = 8, 5
BUCKETS, BYTES = 3, 14 * 10**6
BETA_S = 4e-8  # 200 Mbit/s: S*beta is 0.56 s
COSTS = {  # candidate: W and C in messages and S*beta
    "m = 1": (1, (6, 6 / 7), (9, 9 / 7)),
    "m = 4": (1, (24, 6 / 7), (30, 30 / 28)),
    "two late": (2, (20, 5 / 6), (30, 1.25)),
}
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


class Job:
    """``slower``: what operations take in truth, native and by schedule, over the profile."""

    def __init__(self, options, seed=0, slower=(1.0, 1.0)):
        line = Line(ALPHA_S, BETA_S)
        candidates = tuple(
            Candidate(name, late, Phase(*waiting), Phase(*completion))
            for name, (late, waiting, completion) in COSTS.items()
        )
        profile = Profile(SIZE, line, line)
        self.native_s = slower[0] * (14 * ALPHA_S + 1.75 * BYTES * BETA_S)
        self.slower = slower[1]
        self.controls = [
            RankAgent(rank, options, PolicyInputs(SIZE, candidates, profile))
            for rank in range(SIZE)
        ]
        self.dice = random.Random(seed)
        self.now_s, self.first = 0.0, 0
        self.messages = 0
        self.ways = []
        self._events, self._count = [], itertools.count()
        self._woken = [float("inf")] * SIZE
        self._decided = {}
        for rank in range(SIZE):
            self._after(rank)
        self._until(ALIGNED_S)

    def step(self, delays):
        """One step; its seconds."""
        began_s, numbers = self.now_s, range(self.first, self.first + BUCKETS)
        for rank, delay_s in enumerate(delays):
            at_s = began_s + delay_s
            for number in numbers:
                at_s += SPACING_S + JITTER_S * self.dice.random()
                self._at(at_s, rank, "arrive", number)
        while len(self._decided) < SIZE * BUCKETS:
            assert self.now_s < began_s + MOST_S
            self._until(self._events[0][0])
        done = self._served(numbers)
        for number, rank in itertools.product(numbers, range(SIZE)):
            self.controls[rank].done(done[number], number)
        self.first += BUCKETS
        self._decided.clear()
        self._until(max(done.values()))
        self.now_s = max(done.values())
        return self.now_s - began_s

    def _until(self, until_s):
        while self._events[0][0] <= until_s:
            at_s, _, rank, what, *more = heapq.heappop(self._events)
            self.now_s = max(self.now_s, at_s)
            getattr(self, f"_{what}")(rank, *more)
            self._after(rank)

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
            _, *phases = list(COSTS.values())[decision.candidate]
            waits_s, takes_s = (
                self.slower * (messages * ALPHA_S + share * BYTES * BETA_S)
                for messages, share in phases
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

    def _at(self, at_s, rank, what, *more):
        heapq.heappush(self._events, (at_s, next(self._count), rank, what, *more))

    def _arrive(self, rank, number):
        self._send(rank, self.controls[rank].arrive(self.now_s, number, BYTES, "float32"))

    def _hear(self, rank, sender, message):
        self._send(rank, self.controls[rank].receive(self.now_s, sender, message))

    def _tick(self, rank):
        self._woken[rank] = float("inf")
        self._send(rank, self.controls[rank].tick(self.now_s))

    def _send(self, rank, sends):
        for peer, message in sends:
            self.messages += type(message).__name__ not in ("Ping", "Pong")
            self._at(self.now_s + TRANSIT_S, peer, "hear", rank, message)

    def _after(self, rank):
        control = self.controls[rank]
        for number in range(self.first, self.first + BUCKETS):
            if (number, rank) not in self._decided:
                decision = control.decision(number)
                if decision is None:
                    break
                self._decided[number, rank] = self.now_s, decision
        at_s = max(self.now_s + 1e-6, control.wake_s)
        if at_s < self._woken[rank]:
            self._woken[rank] = at_s
            self._at(at_s, rank, "tick")
