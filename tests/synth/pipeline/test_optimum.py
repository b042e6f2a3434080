"""What the solver adds: the true optimum of one problem, of several scenarios, of growing delay."""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
import xml.etree.ElementTree as ET
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from ortools.sat.python import cp_model

from latecomer.synth.answer import Basis
from latecomer.synth.pipeline import curves
from latecomer.synth.pipeline.compare import KEPT, compare
from latecomer.synth.pipeline.cpsat import solve
from latecomer.synth.pipeline.evaluate import makespan
from latecomer.synth.pipeline.plan import Solver, plan
from latecomer.synth.pipeline.portfolio import portfolio, split
from latecomer.synth.pipeline.problem import Problem
from latecomer.synth.pipeline.robust import Scenario, highest, robust
from latecomer.verify.core.verdict import Verdict
from latecomer.verify.pipeline import Link, check, refutation
from tests.synth.pipeline.exhaustive import optimum
from tests.synth.pipeline.problems import chain, problems, random_times, uniform

SOLVER = Solver(time_limit_s=20, workers=1)


@settings(max_examples=15, deadline=None)
@given(problems(most_stages=4, most_microbatches=4))
def test_never_worse_and_never_below_the_bound(problem: Problem) -> None:
    quick = portfolio(problem).candidates[0]
    planned = plan(problem, "cp-sat", solver=Solver(time_limit_s=3, workers=1))
    ticks = problem.costs.ticks
    assert round(planned.measures.makespan * ticks) <= quick.makespan
    assert problem.closed_form <= round(planned.bound * ticks)
    assert planned.bound <= planned.measures.makespan
    assert check(planned.schedule).verdict is Verdict.PROVED  # with what meta claims
    assert planned.optimal == (planned.bound == planned.measures.makespan)


def test_against_every_order_of_tiny_problems() -> None:
    """The orders tried may let microbatches overtake each other; it gains nothing."""
    rng = random.Random(7)
    for _ in range(12):
        stages, n = rng.choice([(2, 2), (2, 2), (3, 2), (1, 2)])
        times = random_times(rng, stages)
        delays = [rng.randint(0, 12) for _ in range(stages - 1)]
        memory = rng.choice([None, tuple(rng.choice([1, 1.5, 2]) for _ in range(stages))])
        links = {(i, i + 1): delay for i, delay in enumerate(delays)}

        problem = chain(n, times, links, memory)
        best = optimum(n, times, [delays], memory)
        planned = plan(problem, "cp-sat", solver=SOLVER)
        assert planned.optimal
        assert planned.measures.makespan == best
        assert max(problem.closed_form, planned.measures.lower_bound) <= best


def test_known_optimum_under_a_limit() -> None:
    """Above the closed form, so it takes a search, and a certificate, to prove it."""
    problem = uniform(4, 6, {(0, 1): 30}, memory=3, durations=(8, 10, 5))
    planned = plan(problem, solver=SOLVER)
    assert planned.optimal
    assert planned.basis is Basis.CERTIFICATE
    assert refutation.check(planned.schedule, planned.measures.makespan, planned.certificate) > 0
    assert planned.measures.makespan < portfolio(problem).candidates[0].makespan
    assert planned.measures.makespan > planned.measures.lower_bound
    assert planned.candidates["cp-sat"] == planned.measures.makespan


def test_messages_are_written_out_where_their_order_matters() -> None:
    """On a half-duplex link it can pay to let a later message pass first."""
    link = Link(between=(0, 1), latency=10, occupancy=12, duplex="half")
    problem = uniform(4, 12, durations=(8, 10, 5)).with_links([link])
    planned = plan(problem, solver=SOLVER)
    assert planned.schedule.has_messages
    assert planned.report.form == "compute_comms"
    assert planned.measures.makespan < min(
        length for name, length in planned.candidates.items() if name != "cp-sat"
    )
    assert check(planned.schedule).verdict is Verdict.PROVED


def test_the_hint_is_kept_where_there_is_no_time() -> None:
    problem = uniform(8, 24, {(6, 7): 30}, memory=8, durations=(8, 10, 5))
    quick = portfolio(problem).candidates[0]
    answer = solve(problem, split(quick.orders), time_limit_s=0.01)
    assert answer.starts is None
    assert answer.makespan == quick.makespan == makespan(problem, split(quick.orders))
    assert answer.bound == problem.closed_form


def test_times_beyond_the_solver() -> None:
    problem = uniform(2, 3, {(0, 1): 1}, memory=1, durations=(1e12 - 1, 1e-9, 3))
    planned = plan(problem, "cp-sat", solver=SOLVER)
    assert "too long and fine for the solver" in planned.choice
    assert planned.report.verdict is Verdict.PROVED


def test_interrupted_gives_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = uniform(8, 32, {(6, 7): 30}, memory=8, durations=(8, 10, 5))
    quick = portfolio(problem).candidates[0]
    solve = cp_model.CpSolver.solve

    def solve_interrupted(solver: cp_model.CpSolver, *args: Any) -> Any:
        # while it searches: what comes before takes seconds on a busy machine
        timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        try:
            return solve(solver, *args)
        finally:
            timer.cancel()

    monkeypatch.setattr(cp_model.CpSolver, "solve", solve_interrupted)
    planned = plan(problem, "cp-sat", solver=Solver(time_limit_s=60, workers=1))
    assert "interrupted" in planned.choice
    assert planned.measures.makespan <= problem.costs.shown(quick.makespan)
    assert planned.report.verdict is Verdict.PROVED


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

    def makespans_of(programs: tuple) -> list[float]:
        return [_makespan(scenario.problem, programs) for scenario in scenarios]

    def value_of(makespans: list[float]) -> float:
        if objective == "worst":
            return max(makespans)
        return sum(makespans) / 3

    answer = robust(scenarios, objective, solver=SHORT)  # type: ignore[arg-type]
    makespans = makespans_of(answer.planned.schedule.programs)
    assert list(answer.makespans.values()) == makespans
    assert answer.planned.measures.makespan == max(makespans)
    if objective == "worst":
        assert answer.value == value_of(makespans)
    assert answer.value == pytest.approx(value_of(makespans))
    assert answer.bound <= answer.value

    for scenario in scenarios:  # no worse than what is best for one of them
        programs_for_one = plan(scenario.problem, "heuristic").schedule.programs
        assert answer.value <= value_of(makespans_of(programs_for_one)) + 1e-9


@pytest.mark.parametrize("objective", ["worst", "mean"])
def test_robust_against_every_order_of_tiny_problems(objective: str) -> None:
    rng = random.Random(4)
    combine = max if objective == "worst" else _mean
    for _ in range(3):
        times = random_times(rng, stages=3)
        delays = [[0, 0], [rng.randint(5, 15), 0], [0, rng.randint(5, 15)]]
        memory = (2, 1.5, 1)
        scenarios = []
        for first, second in delays:
            problem = chain(2, times, {(0, 1): first, (1, 2): second}, memory)
            scenarios.append(Scenario(f"{first}, {second}", problem))

        least = optimum(2, times, delays, memory, combine)
        answer = robust(scenarios, objective, solver=TO_THE_END)  # type: ignore[arg-type]
        assert answer.value == answer.bound == pytest.approx(float(least))


def _mean(makespans: list[int]) -> Fraction:
    return Fraction(sum(makespans), len(makespans))


def test_the_upper_corner_of_ranges_is_optimal() -> None:
    """It is one of the scenarios, so its optimum is that of the worst case."""
    scenarios = _scenarios({}, {(0, 1): 30, (1, 2): 7})
    answer = robust(scenarios, "worst", solver=TO_THE_END)
    assert answer.value == answer.bound == answer.makespans["1"]
    assert answer.planned.optimal
    assert highest([s.problem for s in scenarios]).costs == scenarios[1].problem.costs


def test_weights_pull_the_mean() -> None:
    plain = uniform(3, 6, {}, 3, TIMES)
    slow = uniform(3, 6, {(0, 1): 40}, 3, TIMES)

    def makespans_with(weight_of_plain: Fraction) -> dict[str, float]:
        scenarios = [Scenario("plain", plain, weight_of_plain), Scenario("slow", slow)]
        return robust(scenarios, "mean", solver=SHORT).makespans

    light = makespans_with(Fraction(1, 1000))
    heavy = makespans_with(Fraction(1000))
    assert light["slow"] <= heavy["slow"]
    assert heavy["plain"] <= light["plain"]


def test_comparison() -> None:
    problem = uniform(4, 8, {(1, 2): 20}, None, TIMES)
    *_, comparison = compare(problem, [0, 0.5, 1], "heuristic", SHORT, lambda text: None)
    assert comparison.columns[:2] == ["heuristic", KEPT]
    assert [row.links[0].latency for row in comparison.rows] == [0, 10, 20]

    for row in comparison.rows:
        assert row.makespans["heuristic"] == min(row.makespans.values()) >= row.bound
    for earlier, later in itertools.pairwise(comparison.rows):
        assert earlier.makespans["zero-bubble"] <= later.makespans["zero-bubble"]

    assert comparison.rows[0].makespans[KEPT] == comparison.rows[0].makespans["heuristic"]
    assert comparison.rows[2].makespans[KEPT] > comparison.rows[2].makespans["heuristic"]

    picture = ET.fromstring(curves.svg(comparison, "<title>"))
    assert len(picture.findall("{*}polyline")) == len(comparison.columns) + 1
