"""Refutations of every shorter schedule: a tree of cases, found by search, made small, checked.

A case that propagation (``synth.pipeline.windows``) does not close is split: of two actions of a
rank either one comes first or the other. Of a few pairs with little slack that one is taken which
makes both cases the most narrow; where one of its cases is closed at once, the other goes on. From
the closed cases upwards only those steps are kept that a contradiction was found from; a
distinction of which one case does not need its assumption is left out.

The text is what ``verify.pipeline.refutation`` checks, and the checker that is proved in Coq.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

import numpy as np

from synth.pipeline.facts import Facts
from synth.pipeline.problem import Problem
from synth.pipeline.windows import Contradiction, Log, Windows

PAIRS = 8
"""Pairs of actions that are tried at a case."""
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


@dataclass
class _Closed:
    """The refutation of a case, and the steps and assumptions outside of it that it needs."""

    lines: list[str]
    needs: set[int]


@dataclass
class _Search:
    facts: Facts
    until_s: float
    step: int = field(default=1)

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
        rank, one, other = self._pair(case)
        on = self.facts.on[rank]
        closed = []
        for a, b in ((one, other), (other, one)):
            assumed = self.step
            self.step += 1
            half = case.copy()
            half.decide(rank, a, b, assumed)
            part = self.close(half)
            if assumed not in part.needs:
                return part
            closed.append(_Closed(part.lines, part.needs - {assumed}))
        line = f"either {self.facts.text(on[one])} {self.facts.text(on[other])}"
        first, second = closed
        return _Closed([line, *first.lines, *second.lines], first.needs | second.needs)

    def _pair(self, case: Windows) -> tuple[int, int, int]:
        """The pair to split by: one that closes a case at once, or narrows both the most."""
        best: tuple[float, tuple[int, int, int]] | None = None
        for rank, one, other in self._candidates(case):
            gains = []
            for a, b in ((one, other), (other, one)):
                if time.monotonic() > self.until_s:
                    raise OutOfTime
                tried = case.copy()
                tried.decide(rank, a, b, 0)
                try:
                    tried.propagate(None)
                except Contradiction:
                    return rank, a, b
                wide = (tried.high - tried.low).sum()
                gains.append(float((case.high - case.low).sum() - wide))
            value = math.prod(gain + 1 for gain in gains)
            if best is None or value > best[0]:
                best = value, (rank, one, other)
        if best is None:
            raise Possible
        return best[1]

    def _candidates(self, case: Windows) -> list[tuple[int, int, int]]:
        """Pairs whose order is open, those with the least slack first."""
        found = []
        for rank, on in enumerate(self.facts.on):
            order = case.orders[rank]
            slack = case.high[on] - (case.low[on] + self.facts.cost[on])[:, None]
            score = np.minimum(slack, slack.T) + np.maximum(slack, slack.T) / 2
            one, other = np.nonzero(np.triu(~(order | order.T), 1))
            least = np.argsort(score[one, other], kind="stable")[:PAIRS]
            found += [(score[one[i], other[i]], rank, int(one[i]), int(other[i])) for i in least]
        return [pair for _, *pair in sorted(found)[:PAIRS]]  # type: ignore[misc]


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
