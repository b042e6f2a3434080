"""All quick methods on one problem, best first; those that don't suit it say why.

Every schedule of fused backwards is also a schedule of split ones, I and W side by side, with no
longer makespan: so whichever method is best, the solver can start from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from synth.pipeline import named
from synth.pipeline.evaluate import makespan
from synth.pipeline.listing import Rules, adaptra, greedy
from synth.pipeline.problem import Orders, Problem

LOOK_AHEAD = (
    Rules(),
    Rules(patience_f=50),
    Rules(patience_w=50),
    Rules(patience_f=50, patience_w=0),
)
"""What the method ``greedy`` tries; it keeps the best."""


def best_greedy(problem: Problem) -> Orders:
    """The best the list scheduler makes under a few rules."""
    rules = [*LOOK_AHEAD, Rules(deep=False)] if problem.virtual > 1 else LOOK_AHEAD
    return min((greedy(problem, rule) for rule in rules), key=lambda o: makespan(problem, o))


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
class Candidate:
    """What one method made: ``orders`` with their makespan in ticks."""

    method: str
    orders: Orders
    makespan: int


@dataclass(frozen=True)
class Portfolio:
    """What all quick methods made, best first; and method -> why it made nothing."""

    candidates: tuple[Candidate, ...]
    unsuited: dict[str, str]


def portfolio(problem: Problem) -> Portfolio:
    """Every quick method that suits the problem; ``greedy`` always does."""
    found = []
    unsuited = {}
    for method, make in QUICK.items():
        try:
            orders = make(problem)
        except named.Unsuited as error:
            unsuited[method] = error.requirement
        else:
            found.append(Candidate(method, orders, makespan(problem, orders)))
    return Portfolio(tuple(sorted(found, key=lambda c: c.makespan)), unsuited)


def split(orders: Orders) -> Orders:
    """The same with every B as I and W."""
    return [
        [
            part
            for action in order
            for part in (
                [action._replace(kind="I"), action._replace(kind="W")]
                if action.kind == "B"
                else [action]
            )
        ]
        for order in orders
    ]
