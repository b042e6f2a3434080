"""One order for several scenarios, and the comparison of methods over growing delay."""

from __future__ import annotations

import itertools
import random
import xml.etree.ElementTree as ET
from fractions import Fraction

import pytest

from synth.pipeline import curves
from synth.pipeline.compare import KEPT, compare
from synth.pipeline.plan import Solver, plan
from synth.pipeline.problem import Problem
from synth.pipeline.robust import Scenario, highest, robust
from tests.synth.pipeline.exhaustive import optimum
from tests.synth.pipeline.problems import chain, uniform
from verify.core.verdict import Verdict
from verify.pipeline import check

SOLVER = Solver(time_limit_s=2, workers=1)
TO_THE_END = Solver(time_limit_s=100, workers=1)
TIMES = (8, 10, 5)


def _scenarios(*delays: dict[tuple[int, int], float]) -> list[Scenario]:
    return [Scenario(str(i), uniform(3, 6, links, 3, TIMES)) for i, links in enumerate(delays)]


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
        memory = (2, 1.5, 1)
        scenarios = [
            Scenario(f"{a}, {b}", chain(2, times, {(0, 1): a, (1, 2): b}, memory))
            for a, b in delays
        ]
        combine = max if objective == "worst" else lambda x: sum(x, Fraction(0)) / len(x)
        least = optimum(2, times, delays, memory, combine)
        found = robust(scenarios, objective, solver=TO_THE_END)  # type: ignore[arg-type]
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
