"""The coarse model: what follows from the numbers, and what whole executors do beside it."""

from __future__ import annotations

import itertools
import statistics

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bench.scale import fine_steps_s, small_arrivals, small_setting
from latecomer.runtime.policy.candidates import costs_of_candidates
from latecomer.runtime.policy.cost_model import AlphaBeta, Profile
from latecomer.runtime.policy.options import Options
from latecomer.runtime.simulation.arrivals import OneLate, Tails
from latecomer.runtime.simulation.cluster import Cluster, Links, StepWork
from latecomer.runtime.simulation.comparison import Setting, compare

RANKS = 64  # closed forms only: nothing is searched
LINK = AlphaBeta(20e-6, 8 / 25e9)


def cluster(mode, arrivals, work, *, late=(), seed=0):
    options = Options(mode, late=late)
    candidates = costs_of_candidates(arrivals.ranks, options.at_most_late(arrivals.ranks))
    profile = Profile(arrivals.ranks, native=LINK, schedule=LINK)
    return Cluster(options, candidates, profile, work, arrivals, seed=seed), profile


def test_native_takes_a_ring_from_the_last_arrival_on():
    job, profile = cluster("native", OneLate(RANKS, 1, 0.5), StepWork(2**24, buckets=3))
    steps = list(job.run(4))
    expected_s = 0.5 + 3 * profile.native_s(2**24)
    assert [took.end_s for took in steps] == pytest.approx([expected_s] * 4)
    assert {took.last_s for took in steps} == {0.5}
    assert job.figures.early == 0
    assert job.figures.messages == 0  # natively nobody asks


def test_buckets_that_are_ready_early_are_reduced_meanwhile():
    alone, profile = cluster("native", OneLate(RANKS, 1, 1.0), StepWork(2**24, 4, overlap_s=0.9))
    (took,) = alone.run(1)
    assert took.end_s == pytest.approx(1.0 + profile.native_s(2**24))


def test_a_schedule_returns_what_the_theorem_says():
    """Beyond the wait: the completion of the best number of chunks, which lies near S * beta."""
    nbytes = 2**26
    job, profile = cluster("static", OneLate(RANKS, 1, 0.5), StepWork(nbytes), late=(RANKS - 1,))
    (took,) = job.run(1)
    completion_s = took.end_s - 0.5
    assert nbytes * LINK.beta_s <= completion_s < 1.2 * nbytes * LINK.beta_s
    assert completion_s < 0.65 * profile.native_s(nbytes)


def test_auto_finds_who_is_late_and_is_as_good_as_static():
    work = StepWork(2**26)
    auto, _ = cluster("auto", OneLate(RANKS, 1, 0.5), work)
    static, _ = cluster("static", OneLate(RANKS, 1, 0.5), work, late=(RANKS - 1,))
    autos = list(auto.run(12))
    (static_step,) = static.run(1)
    assert autos[-1].end_s == pytest.approx(static_step.end_s, rel=0.02)
    assert auto.figures.early >= 9
    assert auto.figures.messages > 0


def test_the_same_seed_is_the_same_job():
    def ends(seed):
        job, _ = cluster("auto", Tails(RANKS, 5, 1.2, 0.02), StepWork(2**22), seed=seed)
        return [took.end_s for took in job.run(6)]

    assert ends(1) == ends(1)
    assert ends(1) != ends(2)


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(0, 5)), min_size=1, max_size=12))
@example([(0.0, 2.0), (1.0, 0.0)])
def test_links_do_one_thing_at_a_time_and_all_of_it(works):
    links = Links()
    ends = [links.serve(from_s, work_s) for from_s, work_s in works]
    for (from_s, work_s), end_s in zip(works, ends, strict=True):
        assert end_s >= from_s + work_s - 1e-9
    busy = sorted(links._busy)
    for (_, until_s), (since_s, _) in itertools.pairwise(busy):
        assert since_s >= until_s - 1e-9
    done_s = sum(until_s - since_s for since_s, until_s in busy)
    assert done_s == pytest.approx(sum(work_s for _, work_s in works), abs=1e-6)


@pytest.mark.parametrize(
    ("mode", "late"),
    [
        ("native", "tails"),
        ("predict", "one late"),
        ("predict", "tails"),
        ("auto", "another in each step"),
        ("auto", "tails"),
    ],
)
def test_whole_executors_take_as_long(mode, late):
    """On 8 hosts here; ``python -m bench.scale coarse`` has 16 hosts and all modes."""
    setting = small_setting(small_arrivals(8)[late], steps=6)
    comparison = compare(setting, [mode])
    coarse_s = comparison.results[-1].step_s
    fine_s = statistics.fmean(fine_steps_s(setting, mode))
    assert coarse_s == pytest.approx(fine_s, rel=0.1)


def test_a_network_that_is_half_as_fast_is_noticed():
    setting = small_setting(small_arrivals(8)["none late"], steps=4)
    slower = Setting(
        setting.arrivals, setting.latency_s, setting.bandwidth / 2, setting.work, setting.steps
    )
    coarse_s = compare(setting, ["native"]).native.step_s
    assert statistics.fmean(fine_steps_s(slower, "native")) > 1.5 * coarse_s
