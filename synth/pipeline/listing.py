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

from latecomer.synth.pipeline.evaluate import line_of
from latecomer.synth.pipeline.named import require_one_each
from latecomer.synth.pipeline.problem import Orders, Problem
from latecomer.verify.pipeline.schedule import Action


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
    by_rule = [1]  # of the last stage, then towards the first
    for stage in reversed(range(problem.stages - 1)):
        latency, occupancy, _ = problem.between[stage]
        delay = latency + occupancy
        forward = problem.costs.forward[stage]
        forwards_in_delay = 0
        if delay:
            # of forwards that take no time any number fits: all there are
            forwards_in_delay = -(-delay // forward) if forward else n
        by_rule.append(by_rule[-1] + 2 + forwards_in_delay)

    counts: list[int] = []
    for count, limit in zip(reversed(by_rule), problem.limits, strict=True):
        possible = min(count, n, limit // 2)
        if counts:
            possible = min(possible, counts[-1])
        counts.append(possible)
    return tuple(counts)


class _Run:
    """One simulation; times in ticks, memory in halves.

    Attributes:
        done_f, done_i, done_w: per stage how many F, I and W were started.
        f_arrivals, i_arrivals: per stage when the data of each F and I is there, in their order.
        held: per rank the half activations it holds.
        free: per rank whether it computes nothing.
        line_free: link, or its direction -> when the last message leaves it.
        events: a heap of (when, rank to wake, action that ends then or ()).
        programs: the orders so far.
    """

    def __init__(self, problem: Problem, rules: Rules) -> None:
        n = problem.microbatches
        stages = problem.stages
        self.problem = problem
        self.rules = rules
        self.n = n
        self.limits: Sequence[int] = problem.limits
        if rules.limits is not None:
            self.limits = [min(limits) for limits in zip(problem.limits, rules.limits, strict=True)]
        costs = problem.costs
        self.forward = costs.forward
        self.backward = costs.backward
        self.weight = costs.weight
        self.done_f = [0] * stages
        self.done_i = [0] * stages
        self.done_w = [0] * stages
        self.f_arrivals: list[list[int]] = [[] for _ in range(stages)]
        self.i_arrivals: list[list[int]] = [[] for _ in range(stages)]
        self.f_arrivals[0] = [0] * n
        self.held = [0] * problem.ranks
        self.free = [True] * problem.ranks
        self.line_free: dict[tuple[int, int], int] = {}
        self.events: list[tuple[int, int, Action | tuple[()]]] = []
        self.programs: Orders = [[] for _ in range(problem.ranks)]

    def orders(self) -> Orders:
        """Run to the end."""
        woken = set(range(self.problem.ranks))
        ticks = 0
        events = self.events
        while True:
            for rank in sorted(woken):
                if self.free[rank]:
                    self._choose(rank, ticks)
            if not events:
                break

            # all that happens at one time happens before anybody chooses
            ticks = events[0][0]
            woken = set()
            while events and events[0][0] == ticks:
                _, rank, action = heapq.heappop(events)
                woken.add(rank)
                if action:
                    self._finish(rank, action, ticks)

        assert all(done == self.n for done in self.done_w), "the list scheduler got stuck"
        return self.programs

    def _finish(self, rank: int, action: Action, ticks: int) -> None:
        """An action is over: its result is sent, what it held is free."""
        stage, kind, _ = action
        self.free[rank] = True
        if kind == "F":
            if stage + 1 < self.problem.stages:
                self.f_arrivals[stage + 1].append(self._send(rank, stage, stage + 1, ticks))
            else:
                self.i_arrivals[stage].append(ticks)
        else:
            # An F takes two halves; I and W give back one each.
            self.held[rank] -= 1
            if kind == "I" and stage:
                self.i_arrivals[stage - 1].append(self._send(rank, stage - 1, stage - 1, ticks))

    def _send(self, rank: int, boundary: int, target: int, ticks: int) -> int:
        """When a message is there that is ready at ``ticks``; its receiver is woken then.

        Args:
            boundary: the lower of the two stages.
            target: the stage that needs the message.
        """
        receiver = self.problem.rank_of[target]
        latency, occupancy, half = self.problem.between[boundary]
        sent = ticks
        if occupancy:
            line = line_of(rank, receiver, half)
            sent = self.line_free[line] = max(ticks, self.line_free.get(line, 0)) + occupancy
        heapq.heappush(self.events, (sent + latency, receiver, ()))
        return sent + latency

    def _choose(self, rank: int, ticks: int) -> None:
        """Start the next action of a free rank, or let it wait."""
        stages = self.problem.stages_of[rank]

        stage = self._backward(stages, ticks)
        if stage >= 0:
            self._start(rank, Action(stage, "I", self.done_i[stage]), ticks + self.backward[stage])
            self.done_i[stage] += 1
            return

        stage = self._forward(rank, stages, ticks)
        if stage >= 0:
            end = ticks + self.forward[stage]
            if not self._better_wait(stages, ticks, end, self.rules.patience_f):
                self._start(rank, Action(stage, "F", self.done_f[stage]), end)
                self.done_f[stage] += 1
                self.held[rank] += 2
                return

        for stage in stages:
            if self.done_w[stage] < self.done_i[stage]:
                end = ticks + self.weight[stage]
                # Adaptra's policy is I, F, W: it never waits.
                impatient = self.rules.warm_up is not None
                if impatient or not self._better_wait(stages, ticks, end, self.rules.patience_w):
                    self._start(rank, Action(stage, "W", self.done_w[stage]), end)
                    self.done_w[stage] += 1
                return

    def _start(self, rank: int, action: Action, end: int) -> None:
        self.free[rank] = False
        self.programs[rank].append(action)
        heapq.heappush(self.events, (end, rank, action))

    def _backward(self, stages: tuple[int, ...], ticks: int) -> int:
        """The stage whose next I is taken, or -1."""
        best = -1
        best_m = self.n
        warm_up = self.rules.warm_up
        for stage in stages:
            m = self.done_i[stage]
            arrivals = self.i_arrivals[stage]
            if m < len(arrivals) and arrivals[m] <= ticks and m < best_m:
                if warm_up is not None and self.done_f[stage] < warm_up[stage]:
                    continue
                best = stage
                best_m = m
        return best

    def _forward(self, rank: int, stages: tuple[int, ...], ticks: int) -> int:
        """The stage whose next F is taken, or -1."""
        room = self.limits[rank] - self.held[rank] - 2
        warm_up = self.rules.warm_up
        if room < 0:
            return -1

        # what the oldest microbatch still needs to pass the rank's last stage stays free for it
        oldest = self.done_f[stages[-1]]
        reserve = 0
        if oldest < self.n:
            reserve = 2 * sum(self.done_f[stage] <= oldest for stage in stages)

        best = -1
        best_key = (0, 0)
        for stage in stages:
            m = self.done_f[stage]
            arrivals = self.f_arrivals[stage]
            if m < len(arrivals) and arrivals[m] <= ticks and room >= reserve - 2 * (m == oldest):
                if warm_up is not None and m >= warm_up[stage] and not self.done_i[stage]:
                    continue
                key = (-stage, 0) if self.rules.deep else (m // len(self.programs), stage)
                if best < 0 or key < best_key:
                    best = stage
                    best_key = key
        return best

    def _better_wait(
        self, stages: tuple[int, ...], ticks: int, end: int, patience: int | None
    ) -> bool:
        """Whether an I is under way that something until ``end`` would hold up for too long."""
        if patience is None:
            return False
        latest = end - patience * (end - ticks) // 100
        for stage in stages:
            if self.done_i[stage] < len(self.i_arrivals[stage]):
                arrival = self.i_arrivals[stage][self.done_i[stage]]
                if ticks < arrival < latest:
                    return True
        return False
