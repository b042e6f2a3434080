"""One order for several scenarios, and the comparison of methods over growing delay."""

from __future__ import annotations

import itertools
import random
import xml.etree.ElementTree as ET
from fractions import Fraction

import pytest

from synth.pipeline import curves
from synth.pipeline.compare import KEPT, compare, parse_factors
from synth.pipeline.plan import Solver, plan
from synth.pipeline.problem import Problem, make
from synth.pipeline.robust import Scenario, highest, robust
from tests.synth.pipeline.exhaustive import optimum
from tests.synth.pipeline.problems import uniform
from verify.core.verdict import Verdict
from verify.errors import ArgumentError
from verify.pipeline import Instance, Link, check

SOLVER = Solver(time_limit_s=2, workers=1)
TO_THE_END = Solver(time_limit_s=100, workers=1)
TIMES = (8, 10, 5)


def _scenarios(*delays: dict[tuple[int, int], float], memory: float | None = 3) -> list[Scenario]:
    return [Scenario(str(i), uniform(3, 6, links, memory, TIMES)) for i, links in enumerate(delays)]


def _makespan(problem: Problem, programs: tuple) -> float:
    report = check(problem.schedule([list(program) for program in programs]))
    assert report.verdict is Verdict.PROVED
    assert report.measures is not None
    return report.measures.makespan


@pytest.mark.parametrize("objective", ["worst", "mean"])
def test_scenarios_of_which_none_is_the_worst(objective: str) -> None:
    scenarios = _scenarios({}, {(0, 1): 30}, {(1, 2): 25})
    found = robust(scenarios, objective, solver=SOLVER)  # type: ignore[arg-type]
    programs = found.planned.schedule.programs
    again = [_makespan(scenario.problem, programs) for scenario in scenarios]
    assert list(found.makespans.values()) == again
    assert found.planned.measures.makespan == max(again)
    assert found.value == (max(again) if objective == "worst" else pytest.approx(sum(again) / 3))
    assert found.bound <= found.value
    for scenario in scenarios:  # no worse than what is best for one of them
        one = plan(scenario.problem, "heuristic").schedule.programs
        others = [_makespan(other.problem, one) for other in scenarios]
        assert found.value <= (max(others) if objective == "worst" else sum(others) / 3) + 1e-9


@pytest.mark.parametrize("objective", ["worst", "mean"])
def test_against_every_order_of_tiny_problems(objective: str) -> None:
    rng = random.Random(4)
    for _ in range(3):
        times = [[rng.randint(1, 9) for _ in range(3)] for _ in range(3)]
        delays = [[0, 0], [rng.randint(5, 15), 0], [0, rng.randint(5, 15)]]
        limits = [2, 1.5, 1]
        instance = Instance(
            forward=tuple(times[0]), backward=tuple(times[1]), weight=tuple(times[2]),
            memory=tuple(limits),
        )  # fmt: skip
        plain = make(2, instance, (0, 1, 2))
        scenarios = [
            Scenario(
                str(both),
                plain.with_links(
                    [Link(between=(i, i + 1), latency=delay) for i, delay in enumerate(both)]
                ),
            )
            for both in delays
        ]
        least = optimum(
            2,
            [{k: Fraction(t[s]) for k, t in zip("FIW", times, strict=True)} for s in range(3)],
            [[Fraction(delay) for delay in both] for both in delays],
            [Fraction(limit) for limit in limits],
            max if objective == "worst" else lambda x: sum(x, Fraction(0)) / len(x),
        )
        found = robust(scenarios, objective, solver=Solver(100.0, 0, 1))  # type: ignore[arg-type]
        assert found.value == found.bound == pytest.approx(float(least))


def test_the_upper_corner_of_ranges_is_optimal() -> None:
    """It is one of the scenarios, so its optimum is that of the worst case."""
    scenarios = _scenarios({}, {(0, 1): 30, (1, 2): 7})
    found = robust(scenarios, "worst", solver=TO_THE_END)
    assert found.value == found.bound == found.makespans["1"]
    assert found.planned.optimal
    assert highest([s.problem for s in scenarios]).costs == scenarios[1].problem.costs


def test_weights_pull_the_mean() -> None:
    plain, slow = uniform(3, 6, {}, 3, TIMES), uniform(3, 6, {(0, 1): 40}, 3, TIMES)
    values = []
    for weight in (Fraction(1, 1000), Fraction(1000)):
        pair = [Scenario("plain", plain, weight), Scenario("slow", slow)]
        found = robust(pair, "mean", solver=SOLVER)
        values.append((found.makespans["plain"], found.makespans["slow"]))
    assert values[0][1] <= values[1][1]
    assert values[1][0] <= values[0][0]


def test_comparison() -> None:
    problem = uniform(4, 8, {(1, 2): 20}, None, TIMES)
    *_, found = compare(problem, [0, 0.5, 1], "heuristic", SOLVER, lambda text: None)
    assert found.columns[:2] == ["heuristic", KEPT]
    assert [row.links[0].latency for row in found.rows] == [0, 10, 20]
    for row in found.rows:
        assert row.makespans["heuristic"] == min(row.makespans.values()) >= row.bound
    for one, other in itertools.pairwise(found.rows):
        assert one.makespans["zero-bubble"] <= other.makespans["zero-bubble"]
    assert found.rows[0].makespans[KEPT] == found.rows[0].makespans["heuristic"]
    assert found.rows[2].makespans[KEPT] > found.rows[2].makespans["heuristic"]
    lines = ET.fromstring(curves.svg(found, "<title>")).findall("{*}polyline")
    assert len(lines) == len(found.columns) + 1


def test_nothing_to_compare() -> None:
    with pytest.raises(ArgumentError, match="no delay to compare at"):
        next(compare(uniform(2, 2), [0, 1], "heuristic", SOLVER, lambda text: None))
    with pytest.raises(ArgumentError, match="must grow"):
        parse_factors("--factors", "0,2,1")
