"""What the solver adds: the true optimum of one problem, of several scenarios, of growing delay."""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
import xml.etree.ElementTree as ET
from fractions import Fraction

import pytest
from hypothesis import given, settings

from synth.answer import Basis
from synth.pipeline import curves
from synth.pipeline.compare import KEPT, compare
from synth.pipeline.cpsat import solve
from synth.pipeline.evaluate import makespan
from synth.pipeline.plan import Solver, plan
from synth.pipeline.portfolio import portfolio, split
from synth.pipeline.problem import Problem
from synth.pipeline.robust import Scenario, highest, robust
from tests.synth.pipeline.exhaustive import optimum
from tests.synth.pipeline.problems import chain, problems, uniform
from verify.core.verdict import Verdict
from verify.pipeline import Link, check, refutation

SOLVER = Solver(time_limit_s=20, workers=1)


@settings(max_examples=15, deadline=None)
@given(problems(most_stages=4, most_microbatches=4))
def test_never_worse_and_never_below_the_bound(problem: Problem) -> None:
    quick = portfolio(problem).candidates[0]
    found = plan(problem, "cp-sat", solver=Solver(time_limit_s=3, workers=1))
    ticks = problem.costs.ticks
    assert round(found.measures.makespan * ticks) <= quick.makespan
    assert problem.closed_form <= round(found.bound * ticks)
    assert found.bound <= found.measures.makespan
    assert check(found.schedule).verdict is Verdict.PROVED  # with what meta claims
    assert found.optimal == (found.bound == found.measures.makespan)


def test_against_every_order_of_tiny_problems() -> None:
    """The orders tried may let microbatches overtake each other; it gains nothing."""
    rng = random.Random(7)
    for _ in range(12):
        stages, n = rng.choice([(2, 2), (2, 2), (3, 2), (1, 2)])
        times = [[rng.randint(1, 9) for _ in range(stages)] for _ in range(3)]
        delays = [rng.randint(0, 12) for _ in range(stages - 1)]
        memory = rng.choice([None, tuple(rng.choice([1, 1.5, 2]) for _ in range(stages))])
        links = {(i, i + 1): delay for i, delay in enumerate(delays)}
        problem = chain(n, times, links, memory)
        best = optimum(n, times, [delays], memory)
        found = plan(problem, "cp-sat", solver=SOLVER)
        assert found.optimal
        assert found.measures.makespan == best
        assert max(problem.closed_form, found.measures.lower_bound) <= best


def test_known_optimum_under_a_limit() -> None:
    """Above the closed form, so it takes a search, and a certificate, to prove it."""
    problem = uniform(4, 6, {(0, 1): 30}, memory=3, durations=(8, 10, 5))
    found = plan(problem, solver=SOLVER)
    assert found.optimal
    assert found.basis is Basis.CERTIFICATE
    assert refutation.check(found.schedule, found.measures.makespan, found.certificate) > 0
    assert found.measures.makespan < portfolio(problem).candidates[0].makespan
    assert found.measures.makespan > found.measures.lower_bound
    assert found.candidates["cp-sat"] == found.measures.makespan


def test_messages_are_written_out_where_their_order_matters() -> None:
    """On a half-duplex link it can pay to let a later message pass first."""
    link = Link(between=(0, 1), latency=10, occupancy=12, duplex="half")
    problem = uniform(4, 12, durations=(8, 10, 5)).with_links([link])
    found = plan(problem, solver=SOLVER)
    assert found.schedule.has_messages
    assert found.report.form == "compute_comms"
    assert found.measures.makespan < min(
        length for name, length in found.candidates.items() if name != "cp-sat"
    )
    assert check(found.schedule).verdict is Verdict.PROVED


def test_the_hint_is_kept_where_there_is_no_time() -> None:
    problem = uniform(8, 24, {(6, 7): 30}, memory=8, durations=(8, 10, 5))
    quick = portfolio(problem).candidates[0]
    answer = solve(problem, split(quick.orders), time_limit_s=0.01)
    assert answer.starts is None
    assert answer.makespan == quick.makespan == makespan(problem, split(quick.orders))
    assert answer.bound == problem.closed_form


def test_times_beyond_the_solver() -> None:
    problem = uniform(2, 3, {(0, 1): 1}, memory=1, durations=(1e12 - 1, 1e-9, 3))
    found = plan(problem, "cp-sat", solver=SOLVER)
    assert "too long and fine for the solver" in found.choice
    assert found.report.verdict is Verdict.PROVED


def test_interrupted_gives_the_best_so_far() -> None:
    problem = uniform(8, 32, {(6, 7): 30}, memory=8, durations=(8, 10, 5))
    quick = portfolio(problem).candidates[0]
    timer = threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        found = plan(problem, "cp-sat", solver=Solver(time_limit_s=15, workers=1))
    finally:
        timer.cancel()
    assert "interrupted" in found.choice
    assert found.measures.makespan <= problem.costs.shown(quick.makespan)
    assert found.report.verdict is Verdict.PROVED


SHORT = Solver(time_limit_s=2, workers=1)
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
    found = robust(scenarios, objective, solver=SHORT)  # type: ignore[arg-type]
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
def test_robust_against_every_order_of_tiny_problems(objective: str) -> None:
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
    plain = uniform(3, 6, {}, 3, TIMES)
    slow = uniform(3, 6, {(0, 1): 40}, 3, TIMES)
    values = []
    for weight in (Fraction(1, 1000), Fraction(1000)):
        pair = [Scenario("plain", plain, weight), Scenario("slow", slow)]
        found = robust(pair, "mean", solver=SHORT)
        values.append((found.makespans["plain"], found.makespans["slow"]))
    assert values[0][1] <= values[1][1]
    assert values[1][0] <= values[0][0]


def test_comparison() -> None:
    problem = uniform(4, 8, {(1, 2): 20}, None, TIMES)
    *_, found = compare(problem, [0, 0.5, 1], "heuristic", SHORT, lambda text: None)
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
