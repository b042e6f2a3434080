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

from latecomer.synth.answer import Basis, optimal_by
from latecomer.synth.pipeline.answer import CLOSED_FORM, PipelineAnswer, basis_of, weakest
from latecomer.synth.pipeline.evaluate import GIVES, Stuck, makespan, peaks
from latecomer.synth.pipeline.plan import Progress, Solver, UnprovedPrograms, finish, plan
from latecomer.synth.pipeline.portfolio import portfolio, split
from latecomer.synth.pipeline.problem import Orders, Problem
from latecomer.verify.pipeline.schedule import Action, Duplex, Link, Number
from latecomer.verify.pipeline.verdict import gap_in_words, relative_gap

Objective = Literal["worst", "mean"]
FARTHEST = 12
"""Places that local search moves an action by, at the most."""
MOST_MOVES = 200_000
"""Moves that local search tries, where its third of the time is not over before."""


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
        >>> from latecomer.synth.pipeline import Scenario, Solver, make, robust
        >>> from latecomer.verify.pipeline import Link, uniform
        >>> fast = make(8, uniform(4), rank_of=(0, 1, 2, 3))
        >>> slow = fast.with_links([Link((1, 2), latency=3)])
        >>> scenarios = [Scenario("fast", fast), Scenario("slow", slow)]
        >>> found = robust(scenarios, "worst", solver=Solver(time_limit_s=1))  # Robust
        >>> found.makespans, found.value, found.bound
        ({'fast': 27, 'slow': 30}, 30.0, 30.0)
    """
    began_s = time.monotonic()
    share_s = solver.time_limit_s / 3
    share_of_solver = replace(solver, time_limit_s=share_s)
    score = _Score(scenarios, objective)

    corner = highest([scenario.problem for scenario in scenarios])
    planned = plan(corner, solver=share_of_solver, progress=progress)
    starts = [(f"{planned.method} for the highest delays", _computes(planned))]
    alone = {}
    for scenario in scenarios:
        candidates = portfolio(scenario.problem).candidates
        alone[scenario.name] = scenario.problem.costs.shown(candidates[0].makespan)
        for candidate in candidates[:3]:
            starts.append((f"{candidate.method} for {scenario.name}", split(candidate.orders)))
    source, orders = min(starts, key=lambda start: score(start[1]))

    bounds = _bounds_one_by_one(scenarios, corner, planned)
    best = _Best(
        orders=orders,
        source=source,
        bound=score.of_bounds(bounds),
        proof=weakest([bound.proof for bound in bounds]),
        interrupted=planned.interrupted,
    )
    if not best.interrupted:
        until_s = time.monotonic() + share_s
        _improve_by_moves(best, score, solver.seed, until_s, progress)
    if not best.interrupted:
        _improve_by_solver(best, score, bounds, share_of_solver, progress)

    return _proved(best, score, bounds, alone, began_s)


def _bounds_one_by_one(
    scenarios: Sequence[Scenario], corner: Problem, planned: PipelineAnswer
) -> list[_Bound]:
    """Per scenario its bound: that of ``planned`` if it is the one with the highest delays."""
    bounds = []
    for scenario in scenarios:
        if scenario.problem.costs == corner.costs:
            bounds.append(_Bound(planned.bound_ticks, planned.proof))
        else:
            bounds.append(_Bound(scenario.problem.closed_form, CLOSED_FORM))
    return bounds


@dataclass
class _Best:
    """The best orders so far.

    Attributes:
        source: what made them, in words.
        bound, proof: no orders have a smaller objective, and how that is known.
        interrupted: whether Ctrl-C ended the search.
    """

    orders: Orders
    source: str
    bound: Fraction
    proof: str
    interrupted: bool


def _improve_by_moves(
    best: _Best, score: _Score, seed: int, until_s: float, progress: Progress
) -> None:
    """Local search, until it is ``until_s`` by the monotonic clock."""
    orders, best.interrupted = _search(best.orders, score, best.bound, seed, until_s, progress)
    if score(orders) < score(best.orders):
        best.source = f"local search from {best.source}"
        best.orders = orders


def _improve_by_solver(
    best: _Best, score: _Score, bounds: list[_Bound], solver: Solver, progress: Progress
) -> None:
    """CP-SAT for all scenarios together, where there is something to gain and they are small."""
    from latecomer.synth.pipeline import common_order  # the solver is imported where it is used

    problems = [scenario.problem for scenario in score.scenarios]
    value = score(best.orders)[0]
    if value <= best.bound or not common_order.suits(problems):
        return

    progress(f"{float(value):g}, bound {float(best.bound):g}: cp-sat")
    weights = None
    if score.objective == "mean":
        weights = [scenario.weight / score.total_weight for scenario in score.scenarios]
    orders, bound, best.interrupted = common_order.solve(
        problems,
        weights,
        [bound.ticks for bound in bounds],
        split(best.orders),
        time_limit_s=solver.time_limit_s,
        seed=solver.seed,
        workers=solver.workers,
    )
    if bound > best.bound:
        best.bound = bound
        best.proof = "cp-sat, one order for all scenarios"
    if _runs(orders, problems) and score(orders) < score(best.orders):
        best.source = "cp-sat"
        best.orders = orders


def _runs(orders: Orders, problems: Sequence[Problem]) -> bool:
    """Whether orders run to their end within memory: of actions without length they may not."""
    try:
        makespan(problems[0], orders)
    except Stuck:
        return False
    return all(map(int.__le__, peaks(orders), problems[0].limits))


def _computes(planned: PipelineAnswer) -> Orders:
    """The orders of a schedule, without messages that may be written out."""
    orders = []
    for program in planned.schedule.programs:
        orders.append([action for action in program if action.kind in GIVES])
    return orders


class _Score:
    """What an order is worth: the objective, and the other one where that is equal."""

    def __init__(self, scenarios: Sequence[Scenario], objective: Objective) -> None:
        self.scenarios = scenarios
        self.objective = objective
        self.total_weight = sum((scenario.weight for scenario in scenarios), Fraction(0))

    def __call__(self, orders: Orders) -> tuple[Fraction, Fraction]:
        """Smaller is better; ``Stuck`` if the orders can't run."""
        times = [
            Fraction(makespan(scenario.problem, orders), scenario.problem.costs.ticks)
            for scenario in self.scenarios
        ]
        worst = max(times)
        mean = self.mean(times)
        return (worst, mean) if self.objective == "worst" else (mean, worst)

    def of_bounds(self, bounds: Sequence[_Bound]) -> Fraction:
        """The objective where each scenario takes as long as its bound."""
        times = [
            Fraction(bound.ticks, scenario.problem.costs.ticks)
            for bound, scenario in zip(bounds, self.scenarios, strict=True)
        ]
        return max(times) if self.objective == "worst" else self.mean(times)

    def mean(self, times: Sequence[Fraction]) -> Fraction:
        """Of one time per scenario, by the weights."""
        total = Fraction(0)
        for time_of_scenario, scenario in zip(times, self.scenarios, strict=True):
            total += time_of_scenario * scenario.weight
        return total / self.total_weight


def _search(
    orders: Orders, score: _Score, bound: Fraction, seed: int, until_s: float, progress: Progress
) -> tuple[Orders, bool]:
    """Move single actions for as long as there is time and something to gain.

    Returns the orders, and whether Ctrl-C ended it.
    """
    rng = random.Random(seed)
    limits = score.scenarios[0].problem.limits
    best_score = score(orders)
    try:
        for _ in range(MOST_MOVES):
            if best_score[0] <= bound or time.monotonic() > until_s:
                break

            rank = rng.randrange(len(orders))
            moved = _with_a_move(orders[rank], rng)
            if moved is None or peaks([moved])[0] > limits[rank]:
                continue
            candidate = [*orders[:rank], moved, *orders[rank + 1 :]]
            try:
                new_score = score(candidate)
            except Stuck:
                continue

            # also where it is as good: moves that change nothing lead to others that do
            if new_score <= best_score:
                if new_score[0] < best_score[0]:
                    progress(f"{float(new_score[0]):g} in the {score.objective} case")
                orders = candidate
                best_score = new_score
    except KeyboardInterrupt:
        return orders, True
    return orders, False


def _with_a_move(order: list[Action], rng: random.Random) -> list[Action] | None:
    """The order with one action elsewhere; None if it may not pass one of those between."""
    source = rng.randrange(len(order))
    target = min(len(order) - 1, max(0, source + rng.randint(-FARTHEST, FARTHEST)))
    if source == target:
        return None

    action = order[source]
    for passed in order[min(source, target) : max(source, target) + 1]:
        if passed != action and passed.stage == action.stage:
            same_kind = passed.kind == action.kind
            if same_kind or passed.microbatch == action.microbatch:
                return None

    remaining = order[:source] + order[source + 1 :]
    return [*remaining[:target], action, *remaining[target:]]


def _exact_makespan(planned: PipelineAnswer) -> Fraction:
    """In the unit of the instance; scenarios differ in their ticks."""
    exact = planned.measures.exact
    return exact.time(exact.makespan)


def _proved(
    best: _Best,
    score: _Score,
    bounds: list[_Bound],
    alone: dict[str, Number],
    began_s: float,
) -> Robust:
    """The verifier's measures in every scenario; the file is that of the longest."""
    objective_in_words = "worst case" if score.objective == "worst" else "mean"
    reason = f"{best.source}; least {objective_in_words} of {len(score.scenarios)} scenarios"
    answers = {}
    for scenario, bound in zip(score.scenarios, bounds, strict=True):
        choice = UnprovedPrograms(
            programs=best.orders,
            method="robust",
            reason=reason,
            bound=bound.ticks,
            proof=bound.proof,
            interrupted=best.interrupted,
        )
        answers[scenario.name] = finish(
            scenario.problem, choice, tried={}, unsuited={}, began_s=began_s
        )

    value = score(best.orders)[0]
    basis, basis_reason = basis_of(best.bound, value, best.proof)
    return Robust(
        planned=max(answers.values(), key=_exact_makespan),
        objective=score.objective,
        makespans={name: answer.measures.makespan for name, answer in answers.items()},
        alone=alone,
        value=float(value),
        bound=float(best.bound),
        gap=relative_gap(value, best.bound),
        basis=basis,
        reason=basis_reason,
    )
