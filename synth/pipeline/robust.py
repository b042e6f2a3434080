"""One order for several scenarios of delays: least in the worst case, or on average.

An order's makespan never shrinks when latencies grow, so for the worst case over ranges of delays
the upper ends decide: an order that is optimal there is optimal. For a set of scenarios of which
none is above all others nothing so simple holds:

    1. orders are made for each scenario and for the highest delays of all, by the quick methods
       and by CP-SAT for the highest delays
    2. each is run in every scenario; the best goes on
    3. local search moves single actions, within memory, while that is no worse in the objective
    4. where there are few enough, CP-SAT is asked for one order of all scenarios together

The bound is that of the scenarios taken one by one (the largest, or their mean), which no one order
need reach, or what step 4 proves.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal, NamedTuple

from synth.answer import Basis, optimal_by
from synth.pipeline.answer import CLOSED_FORM, PipelineAnswer, basis_of, weakest
from synth.pipeline.evaluate import GIVES, Stuck, makespan, peaks
from synth.pipeline.plan import Choice, Progress, Solver, finish, plan
from synth.pipeline.portfolio import portfolio, split
from synth.pipeline.problem import Orders, Problem
from verify.pipeline.schedule import Action, Duplex, Link, Number
from verify.pipeline.verdict import gap_in_words, relative_gap

Objective = Literal["worst", "mean"]
FARTHEST = 12
"""Places that local search moves an action by, at the most."""
MOST_MOVES = 200_000


@dataclass(frozen=True)
class Scenario:
    """Delays that may be met; the weights of all add up to anything above 0."""

    name: str
    problem: Problem
    weight: Fraction = Fraction(1)


@dataclass(frozen=True)
class Robust:
    """A schedule for all scenarios.

    Attributes:
        planned: the schedule; its instance is the scenario in which it takes longest.
        makespans: scenario -> makespan.
        alone: scenario -> the best makespan of the quick methods for it alone.
        value, bound: of the objective; no order has a smaller value than the bound (on paper).
        gap: how far the value is above the bound, relative to it; 0 only if they are equal.
        basis, reason: what optimality rests on.
    """

    planned: PipelineAnswer
    objective: Objective
    makespans: dict[str, Number]
    alone: dict[str, Number]
    value: float
    bound: float
    gap: float
    basis: Basis
    reason: str

    @property
    def claim(self) -> str:
        """What is known about the optimality of the objective."""
        if self.basis is not Basis.UNKNOWN:
            return optimal_by(self.basis, self.reason)
        return f"gap {gap_in_words(self.gap)}"


class _Bound(NamedTuple):
    """No schedule for a scenario is shorter than so many ticks, and how that is known."""

    ticks: int
    proof: str


def highest(problems: Sequence[Problem]) -> Problem:
    """The problem with, on every link, the most latency and occupancy of all."""
    highest_links: dict[tuple[int, ...], Link] = {}
    for problem in problems:
        for link in problem.instance.links:
            pair = tuple(sorted(link.between))
            highest_link = highest_links.get(pair, link)
            duplex: Duplex = "half" if "half" in (link.duplex, highest_link.duplex) else "full"
            highest_links[pair] = Link(
                between=link.between,
                latency=max(link.latency, highest_link.latency),
                occupancy=max(link.occupancy, highest_link.occupancy),
                duplex=duplex,
            )
    return problems[0].with_links(list(highest_links.values()))


def robust(
    scenarios: Sequence[Scenario],
    objective: Objective,
    *,
    solver: Solver,
    progress: Progress = lambda text: None,
) -> Robust:
    """Search one order for all scenarios and prove it in each.

    Args:
        scenarios: one or more, of the same sizes, durations and limits.
        objective: the makespan of the worst scenario, or the mean by their weights.
        solver: a third of its time limit is for the highest delays, one for local search, one for
            all scenarios together; its seed is for all of these.

    A KeyboardInterrupt ends the search; the best so far is returned.

    Examples:
        >>> from synth.pipeline import Scenario, Solver, make, robust
        >>> from verify.pipeline import Link, uniform
        >>> fast = make(8, uniform(4), rank_of=(0, 1, 2, 3))
        >>> slow = fast.with_links([Link((1, 2), latency=3)])
        >>> scenarios = [Scenario("fast", fast), Scenario("slow", slow)]
        >>> found = robust(scenarios, "worst", solver=Solver(time_limit_s=1))  # Robust
        >>> found.makespans, found.value, found.bound
        ({'fast': 27, 'slow': 30}, 30.0, 30.0)
    """
    began_s = time.monotonic()
    score = _Score(scenarios, objective)
    corner = highest([scenario.problem for scenario in scenarios])
    share_s = solver.time_limit_s / 3
    made = plan(corner, solver=replace(solver, time_limit_s=share_s), progress=progress)
    starts = [(f"{made.method} for the highest delays", _computes(made))]
    alone = {}
    for scenario in scenarios:
        candidates = portfolio(scenario.problem).candidates
        alone[scenario.name] = scenario.problem.costs.shown(candidates[0].makespan)
        starts += [(f"{c.method} for {scenario.name}", split(c.orders)) for c in candidates[:3]]
    source, orders = min(starts, key=lambda start: score(start[1]))
    bounds = [
        _Bound(made.bound_ticks, made.proof)
        if scenario.problem.costs == corner.costs
        else _Bound(scenario.problem.closed_form, CLOSED_FORM)
        for scenario in scenarios
    ]
    bound = score.of(
        [Fraction(b.ticks, s.problem.costs.ticks) for b, s in zip(bounds, scenarios, strict=True)]
    )
    proof = weakest([b.proof for b in bounds])
    until_s = time.monotonic() + share_s
    stopped = made.interrupted
    if not stopped:
        better, stopped = _search(orders, score, bound, solver.seed, until_s, progress)
        if score(better) < score(orders):
            source = f"local search from {source}"
            orders = better
    from synth.pipeline import common_order  # the solver is imported where it is used

    problems = [scenario.problem for scenario in scenarios]
    if not stopped and score(orders)[0] > bound and common_order.suits(problems):
        progress(f"{float(score(orders)[0]):g}, bound {float(bound):g}: cp-sat")
        better, low, stopped = common_order.solve(
            problems,
            [s.weight / score.total for s in scenarios] if objective == "mean" else None,
            [b.ticks for b in bounds],
            split(orders),
            time_limit_s=share_s,
            seed=solver.seed,
            workers=solver.workers,
        )
        if low > bound:
            bound = low
            proof = "cp-sat, one order for all scenarios"
        if _runs(better, problems) and score(better) < score(orders):
            source = "cp-sat"
            orders = better
    return _proved(scenarios, score, orders, source, bounds, bound, proof, alone, began_s, stopped)


def _runs(orders: Orders, problems: Sequence[Problem]) -> bool:
    """Whether orders run to their end within memory: of actions without length they may not."""
    try:
        makespan(problems[0], orders)
    except Stuck:
        return False
    return all(map(int.__le__, peaks(orders), problems[0].limits))


def _computes(planned: PipelineAnswer) -> Orders:
    return [[a for a in program if a.kind in GIVES] for program in planned.schedule.programs]


class _Score:
    """What an order is worth: the objective, and the other one where that is equal."""

    def __init__(self, scenarios: Sequence[Scenario], objective: Objective) -> None:
        self.scenarios = scenarios
        self.objective = objective
        self.total = sum((scenario.weight for scenario in scenarios), Fraction(0))

    def __call__(self, orders: Orders) -> tuple[Fraction, Fraction]:
        """Smaller is better; ``Stuck`` if the orders can't run."""
        times = [
            Fraction(makespan(scenario.problem, orders), scenario.problem.costs.ticks)
            for scenario in self.scenarios
        ]
        worst = max(times)
        mean = self.mean(times)
        return (worst, mean) if self.objective == "worst" else (mean, worst)

    def of(self, times: Sequence[Fraction]) -> Fraction:
        """The objective of one time per scenario."""
        return max(times) if self.objective == "worst" else self.mean(times)

    def mean(self, times: Sequence[Fraction]) -> Fraction:
        """By the weights."""
        weighted = zip(times, self.scenarios, strict=True)
        return sum((x * scenario.weight for x, scenario in weighted), Fraction(0)) / self.total


def _search(
    orders: Orders, score: _Score, bound: Fraction, seed: int, until_s: float, progress: Progress
) -> tuple[Orders, bool]:
    """Move single actions for as long as there is time and something to gain.

    Returns the orders, and whether Ctrl-C ended it.
    """
    rng = random.Random(seed)
    limits = score.scenarios[0].problem.limits
    best = score(orders)
    try:
        for _ in range(MOST_MOVES):
            if best[0] <= bound or time.monotonic() > until_s:
                break
            rank = rng.randrange(len(orders))
            moved = _moved(orders[rank], rng)
            if moved is None or peaks([moved])[0] > limits[rank]:
                continue
            tried = [*orders[:rank], moved, *orders[rank + 1 :]]
            try:
                value = score(tried)
            except Stuck:
                continue
            if value <= best:
                if value[0] < best[0]:
                    progress(f"{float(value[0]):g} in the {score.objective} case")
                orders = tried
                best = value
    except KeyboardInterrupt:
        return orders, True
    return orders, False


def _moved(order: list[Action], rng: random.Random) -> list[Action] | None:
    """One action at another place; None if it may not pass one of those between."""
    here = rng.randrange(len(order))
    there = min(len(order) - 1, max(0, here + rng.randint(-FARTHEST, FARTHEST)))
    action = order[here]
    passed = order[min(here, there) : max(here, there) + 1]
    if here == there or any(
        other != action
        and other.stage == action.stage
        and (other.kind == action.kind or other.microbatch == action.microbatch)
        for other in passed
    ):
        return None
    rest = order[:here] + order[here + 1 :]
    return [*rest[:there], action, *rest[there:]]


def _exact_makespan(planned: PipelineAnswer) -> Fraction:
    """In the unit of the instance; scenarios differ in their ticks."""
    exact = planned.measures.exact
    return exact.time(exact.makespan)


def _proved(
    scenarios: Sequence[Scenario],
    score: _Score,
    orders: Orders,
    source: str,
    bounds: list[_Bound],
    bound: Fraction,
    proof: str,
    alone: dict[str, Number],
    began_s: float,
    interrupted: bool,
) -> Robust:
    """The verifier's measures in every scenario; the file is that of the longest."""
    value = score(orders)[0]
    what = "worst case" if score.objective == "worst" else "mean"
    reason = f"{source}; least {what} of {len(scenarios)} scenarios"
    choices = {
        scenario.name: finish(
            scenario.problem,
            Choice(orders, "robust", reason, low.ticks, low.proof, interrupted),
            {},
            {},
            began_s,
        )
        for scenario, low in zip(scenarios, bounds, strict=True)
    }
    basis, why = basis_of(bound, value, proof)
    longest = max(choices.values(), key=_exact_makespan)
    return Robust(
        planned=longest,
        objective=score.objective,
        makespans={name: planned.measures.makespan for name, planned in choices.items()},
        alone=alone,
        value=float(value),
        bound=float(bound),
        gap=relative_gap(value, bound),
        basis=basis,
        reason=why,
    )
