"""Refutations of every shorter schedule: a tree of cases, found by search, made small, checked.

A case that propagation (``latecomer.synth.pipeline.windows``) does not close is split: of two
actions of a rank either one comes first or the other. Of a few pairs with little slack that one is
taken which makes both cases the most narrow; where one of its cases is closed at once, the other
goes on. From the closed cases upwards only those steps are kept that a contradiction was found
from; a distinction of which one case does not need its assumption is left out.

The text is what ``latecomer.verify.pipeline.refutation`` checks, and the checker that is proved in
Coq.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from latecomer.synth.pipeline.facts import Facts
from latecomer.synth.pipeline.problem import Problem
from latecomer.synth.pipeline.windows import Contradiction, Log, Windows

PAIRS = 8
"""Pairs of actions that are tried at a case."""
# Each rank has tables of all pairs of its actions, one set for each case that is open.
MOST_ACTIONS = 4000
"""Larger problems are not asked: what is known of them fills the memory."""
MOST_TICKS = 2**48
"""Longer times are not asked: they are sums in 64 bits."""


class OutOfTime(Exception):
    """The search was not over in its time."""


class Possible(Exception):
    """All pairs are ordered and nothing is contradicted: there may be such a schedule."""


def suits(problem: Problem) -> bool:
    """Whether the search covers the problem.

    It does not where links are held, ranks with several stages have a limit that matters, actions
    take no time, or there are very many or very long ones.
    """
    costs = problem.costs
    times = (*costs.forward, *costs.backward, *costs.weight)
    latencies = sum(latency for latency, _, _ in problem.between)
    held = any(occupancy for _, occupancy, _ in problem.between)
    shared = any(
        len(stages) > 1 and limit < 2 * problem.microbatches * len(stages)
        for stages, limit in zip(problem.stages_of, problem.limits, strict=True)
    )
    small = 3 * problem.stages * problem.microbatches <= MOST_ACTIONS
    short = problem.microbatches * sum(times) + 2 * latencies <= MOST_TICKS
    return small and short and not held and not shared and min(times) > 0


def refute(problem: Problem, span: int, time_limit_s: float) -> list[str]:
    """The lines of a refutation of every schedule that is over before ``span`` ticks.

    Raises:
        OutOfTime: none was found in time.
        Possible: there may be such a schedule.
    """
    facts = Facts(problem)
    search = _Search(facts, time.monotonic() + time_limit_s)
    return search.close(Windows(facts, span - 1)).lines


class _Pair(NamedTuple):
    """Two actions of a rank, by their places in ``Facts.on[rank]``; ``first`` comes first."""

    rank: int
    first: int
    second: int

    def reversed(self) -> _Pair:
        """The other order."""
        return _Pair(self.rank, self.second, self.first)


@dataclass
class _Closed:
    """The refutation of a case, and the steps and assumptions outside of it that it needs."""

    lines: list[str]
    needs: set[int]


@dataclass
class _Search:
    """The search, until it is ``until_s`` by the monotonic clock; ``step`` is the next number."""

    facts: Facts
    until_s: float
    step: int = 1

    def close(self, case: Windows) -> _Closed:
        """Close a case."""
        log = Log(self.step)
        try:
            case.propagate(log)
        except Contradiction as end:
            self.step = log.next
            closed = _Closed([end.line], set(map(int, end.reads)))
        else:
            self.step = log.next
            closed = self._split(case)
        return _kept(log, closed)

    def _split(self, case: Windows) -> _Closed:
        """Close both cases: either action of a pair comes first."""
        pair = self._pair(case)
        closed_cases = []
        # A case that does not need its assumption refutes the whole without the distinction.
        for order in (pair, pair.reversed()):
            assumed_step = self.step
            self.step += 1
            half = case.copy()
            half.decide(order.rank, order.first, order.second, assumed_step)
            closed = self.close(half)
            if assumed_step not in closed.needs:
                return closed
            closed_cases.append(_Closed(closed.lines, closed.needs - {assumed_step}))

        on = self.facts.on[pair.rank]
        line = f"either {self.facts.text(on[pair.first])} {self.facts.text(on[pair.second])}"
        first_case, second_case = closed_cases
        return _Closed(
            lines=[line, *first_case.lines, *second_case.lines],
            needs=first_case.needs | second_case.needs,
        )

    def _pair(self, case: Windows) -> _Pair:
        """The pair to split by: one that closes a case at once, or narrows both the most."""
        best: _Pair | None = None
        best_value = 0.0
        width = (case.high - case.low).sum()
        for pair in self._candidates(case):
            gains = []
            for order in (pair, pair.reversed()):
                if time.monotonic() > self.until_s:
                    raise OutOfTime
                half = case.copy()
                half.decide(order.rank, order.first, order.second, 0)
                try:
                    half.propagate(None)
                except Contradiction:
                    return order
                gains.append(float(width - (half.high - half.low).sum()))

            # a product prefers two cases that are both narrower to one that is much narrower
            value = math.prod(gain + 1 for gain in gains)
            if best is None or value > best_value:
                best = pair
                best_value = value
        if best is None:
            raise Possible
        return best

    def _candidates(self, case: Windows) -> list[_Pair]:
        """Pairs whose order is open, those with the least slack first."""
        scored: list[tuple[float, _Pair]] = []
        for rank, on in enumerate(self.facts.on):
            order = case.orders[rank]
            slack = case.high[on] - (case.low[on] + self.facts.cost[on])[:, None]
            score = np.minimum(slack, slack.T) + np.maximum(slack, slack.T) / 2
            firsts, seconds = np.nonzero(np.triu(~(order | order.T), 1))
            scores = score[firsts, seconds]
            for i in np.argsort(scores, kind="stable")[:PAIRS]:
                scored.append((scores[i], _Pair(rank, int(firsts[i]), int(seconds[i]))))
        return [pair for _, pair in sorted(scored)[:PAIRS]]


def _kept(log: Log, closed: _Closed) -> _Closed:
    """The case with those of its own steps in front that it needs."""
    needs = set(closed.needs)
    lines = []
    for number, line, reads in reversed(log.steps):
        if number in needs:
            needs.remove(number)
            needs |= {int(step) for step in reads}
            lines.append(line)
    needs.discard(0)
    return _Closed([*reversed(lines), *closed.lines], needs)
