"""All quick methods on one problem, best first; those that don't suit it say why.

Every schedule of fused backwards is also a schedule of split ones, I and W side by side, with no
longer makespan: so whichever method is best, the solver can start from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from latecomer.synth.pipeline import named
from latecomer.synth.pipeline.evaluate import makespan
from latecomer.synth.pipeline.listing import Rules, adaptra, greedy
from latecomer.synth.pipeline.problem import Orders, Problem

LOOK_AHEAD = (
    Rules(),
    Rules(patience_f=50),
    Rules(patience_w=50),
    Rules(patience_f=50, patience_w=0),
)
"""What the method ``greedy`` tries; it keeps the best."""


def best_greedy(problem: Problem) -> Orders:
    """The best the list scheduler makes under a few rules."""
    all_rules = list(LOOK_AHEAD)
    if problem.virtual > 1:  # with one stage on each rank it makes no difference
        all_rules.append(Rules(deep=False))
    schedules = (greedy(problem, rules) for rules in all_rules)
    return min(schedules, key=lambda orders: makespan(problem, orders))


QUICK: dict[str, Callable[[Problem], Orders]] = {
    "greedy": best_greedy,
    "adaptra": adaptra,
    "zero-bubble": named.zero_bubble,
    "1f1b": named.one_f_one_b,
    "interleaved-1f1b": named.interleaved,
    "gpipe": named.gpipe,
}
"""Methods that take milliseconds, the preferred one first."""


@dataclass(frozen=True)
class QuickSchedule:
    """What one quick method made: ``orders`` with their makespan in ticks."""

    method: str
    orders: Orders
    makespan: int


@dataclass(frozen=True)
class QuickSchedules:
    """What all quick methods made, best first; and method -> why it made nothing."""

    candidates: tuple[QuickSchedule, ...]
    unsuited: dict[str, str]


def portfolio(problem: Problem) -> QuickSchedules:
    """Every quick method that suits the problem; ``greedy`` always does."""
    candidates = []
    unsuited = {}
    for method, make in QUICK.items():
        try:
            orders = make(problem)
        except named.Unsuited as error:
            unsuited[method] = error.requirement
        else:
            candidates.append(QuickSchedule(method, orders, makespan(problem, orders)))

    best_first = sorted(candidates, key=lambda candidate: candidate.makespan)
    return QuickSchedules(tuple(best_first), unsuited)


def split(orders: Orders) -> Orders:
    """The same with every B as I and W."""
    orders_of_split = []
    for order in orders:
        actions = []
        for action in order:
            if action.kind == "B":
                actions += [action._replace(kind="I"), action._replace(kind="W")]
            else:
                actions.append(action)
        orders_of_split.append(actions)
    return orders_of_split
