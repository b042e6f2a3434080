"""The list scheduler: whenever a rank is free it takes the best action that is ready.

Priority I > F > W, lowest microbatch first, no F beyond the memory limit. It never waits for what
may come later but where its rules say so:

    warm_up    so many F come before anything else, and then no F before the first I
    patience   wait for an I that is under way, rather than start an F (W) that would end more
               than so many hundredths of its duration after that I is there
    limits     of memory, lower than the problem's
    deep       of several F on a rank the highest stage first (else the one of the lowest group of
               R microbatches, lowest stage first)

With several stages on a rank an F is started only if the memory left still takes the oldest
microbatch through the rank: after that its backward frees all it holds, so nothing gets stuck.

``slack_rule`` is Adaptra's x_i, arXiv 2504.19232: x_(S-1) = 1, x_i = x_(i+1) + 2 + ceil(c_i / F_i).
Our deviation: x_i is at most the number of microbatches and what memory holds, and at most
x_(i-1). (The published simulation never ends where x_i exceeds the number of microbatches.)
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from synth.pipeline.evaluate import line_of
from synth.pipeline.named import require_one_each
from synth.pipeline.problem import Orders, Problem
from verify.pipeline.schedule import Action


@dataclass(frozen=True)
class Rules:
    """How actions are chosen; see the top of the module. ``limits`` are half activations."""

    warm_up: tuple[int, ...] | None = None
    patience_f: int | None = None
    patience_w: int | None = None
    limits: tuple[int, ...] | None = None
    deep: bool = True


def greedy(problem: Problem, rules: Rules = Rules()) -> Orders:
    """The orders that the list scheduler makes."""
    return _Run(problem, rules).orders()


def adaptra(problem: Problem) -> Orders:
    """Adaptra's policy: warm-up by its slack rule, then I > F > W."""
    require_one_each(problem, "adaptra")
    return greedy(problem, Rules(warm_up=slack_rule(problem)))


def slack_rule(problem: Problem) -> tuple[int, ...]:
    """Adaptra's warm-up forwards per stage, within microbatches and memory."""
    n = problem.microbatches
    wanted = [1]
    for s in reversed(range(problem.stages - 1)):
        latency, occupancy, _ = problem.between[s]
        delay = latency + occupancy
        forward = problem.costs.forward[s]
        more = -(-delay // forward) if forward else n * (delay > 0)
        wanted.append(wanted[-1] + 2 + more)
    found: list[int] = []
    for x, limit in zip(reversed(wanted), problem.limits, strict=True):
        found.append(min([x, n, limit // 2, *found[-1:]]))
    return tuple(found)


class _Run:
    """One simulation; times in ticks, memory in halves."""

    def __init__(self, problem: Problem, rules: Rules) -> None:
        n = problem.microbatches
        stages = problem.stages
        self.problem = problem
        self.rules = rules
        self.n = n
        self.limits: Sequence[int] = problem.limits
        if rules.limits is not None:
            self.limits = [min(pair) for pair in zip(problem.limits, rules.limits, strict=True)]
        costs = problem.costs
        self.forward = costs.forward
        self.backward = costs.backward
        self.weight = costs.weight
        self.done_f, self.done_i, self.done_w = ([0] * stages for _ in range(3))
        self.f_there: list[list[int]] = [[] for _ in range(stages)]
        self.i_there: list[list[int]] = [[] for _ in range(stages)]
        self.f_there[0] = [0] * n
        self.held = [0] * problem.ranks
        self.free = [True] * problem.ranks
        self.line_free: dict[tuple[int, int], int] = {}
        self.events: list[tuple[int, int, Action | tuple[()]]] = []
        self.made: Orders = [[] for _ in range(problem.ranks)]

    def orders(self) -> Orders:
        """Run to the end."""
        asked = set(range(self.problem.ranks))
        now = 0
        events = self.events
        while True:
            for rank in sorted(asked):
                if self.free[rank]:
                    self._choose(rank, now)
            if not events:
                break
            now = events[0][0]
            asked = set()
            while events and events[0][0] == now:
                _, rank, action = heapq.heappop(events)
                asked.add(rank)
                if action:
                    self._finish(rank, action, now)
        assert all(done == self.n for done in self.done_w), "the list scheduler got stuck"
        return self.made

    def _finish(self, rank: int, action: Action, now: int) -> None:
        stage, kind, _ = action
        self.free[rank] = True
        if kind == "F":
            if stage + 1 < self.problem.stages:
                self.f_there[stage + 1].append(self._send(rank, stage, stage + 1, now))
            else:
                self.i_there[stage].append(now)
        else:
            self.held[rank] -= 1
            if kind == "I" and stage:
                self.i_there[stage - 1].append(self._send(rank, stage - 1, stage - 1, now))

    def _send(self, rank: int, boundary: int, target: int, now: int) -> int:
        """When a message is there; its receiver is woken then."""
        receiver = self.problem.rank_of[target]
        latency, occupancy, half = self.problem.between[boundary]
        if occupancy:
            line = line_of(rank, receiver, half)
            now = self.line_free[line] = max(now, self.line_free.get(line, 0)) + occupancy
        heapq.heappush(self.events, (now + latency, receiver, ()))
        return now + latency

    def _choose(self, rank: int, now: int) -> None:
        mine = self.problem.stages_of[rank]
        stage = self._backward(mine, now)
        if stage >= 0:
            m, self.done_i[stage] = self.done_i[stage], self.done_i[stage] + 1
            return self._start(rank, Action(stage, "I", m), now + self.backward[stage])
        warm = self.rules.warm_up
        stage = self._forward(rank, mine, now)
        if stage >= 0 and not self._better_wait(
            mine, now, self.forward[stage], self.rules.patience_f
        ):
            m, self.done_f[stage] = self.done_f[stage], self.done_f[stage] + 1
            self.held[rank] += 2
            return self._start(rank, Action(stage, "F", m), now + self.forward[stage])
        for stage in mine:
            if self.done_w[stage] < self.done_i[stage]:
                if warm is None and self._better_wait(
                    mine, now, self.weight[stage], self.rules.patience_w
                ):
                    return None
                m, self.done_w[stage] = self.done_w[stage], self.done_w[stage] + 1
                return self._start(rank, Action(stage, "W", m), now + self.weight[stage])
        return None

    def _start(self, rank: int, action: Action, end: int) -> None:
        self.free[rank] = False
        self.made[rank].append(action)
        heapq.heappush(self.events, (end, rank, action))

    def _backward(self, mine: tuple[int, ...], now: int) -> int:
        """The stage whose next I is taken, or -1."""
        best = -1
        best_m = self.n
        warm = self.rules.warm_up
        for stage in mine:
            m = self.done_i[stage]
            there = self.i_there[stage]
            if m < len(there) and there[m] <= now and m < best_m:
                if warm is not None and self.done_f[stage] < warm[stage]:
                    continue
                best = stage
                best_m = m
        return best

    def _forward(self, rank: int, mine: tuple[int, ...], now: int) -> int:
        """The stage whose next F is taken, or -1."""
        room = self.limits[rank] - self.held[rank] - 2
        warm = self.rules.warm_up
        if room < 0:
            return -1
        best = -1
        best_key = (0, 0)
        oldest = self.done_f[mine[-1]]
        reserve = 2 * sum(self.done_f[stage] <= oldest for stage in mine) if oldest < self.n else 0
        for stage in mine:
            m = self.done_f[stage]
            there = self.f_there[stage]
            if m < len(there) and there[m] <= now and room >= reserve - 2 * (m == oldest):
                if warm is not None and m >= warm[stage] and not self.done_i[stage]:
                    continue
                key = (-stage, 0) if self.rules.deep else (m // len(self.made), stage)
                if best < 0 or key < best_key:
                    best = stage
                    best_key = key
        return best

    def _better_wait(
        self, mine: tuple[int, ...], now: int, length: int, patience: int | None
    ) -> bool:
        """Whether an I is under way that something of ``length`` would hold up for too long."""
        if patience is None:
            return False
        latest = now + length - patience * length // 100
        return any(
            self.done_i[stage] < len(self.i_there[stage])
            and now < self.i_there[stage][self.done_i[stage]] < latest
            for stage in mine
        )
