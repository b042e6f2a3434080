"""What the solver adds: never worse than the methods, never below the bound, the true optimum."""

from __future__ import annotations

import os
import random
import signal
import threading

from hypothesis import given, settings

from synth.pipeline.cpsat import solve
from synth.pipeline.evaluate import makespan
from synth.pipeline.plan import Solver, plan
from synth.pipeline.portfolio import portfolio, split
from synth.pipeline.problem import Problem
from tests.synth.pipeline.exhaustive import optimum
from tests.synth.pipeline.problems import chain, problems, uniform
from verify.core.verdict import Verdict
from verify.pipeline import Link, check

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
        problem, best = chain(n, times, links, memory), optimum(n, times, [delays], memory)
        found = plan(problem, "cp-sat", solver=SOLVER)
        assert found.optimal
        assert found.measures.makespan == best
        assert problem.closed_form <= best


def test_known_optimum_under_a_limit() -> None:
    """Above the closed form, so it takes a search to prove it."""
    problem = uniform(4, 6, {(0, 1): 30}, memory=3, durations=(8, 10, 5))
    found = plan(problem, solver=SOLVER)
    assert found.optimal
    assert found.proof == "cp-sat, searched everything"
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
