"""Schedules for given arrivals: proved, at the bound or near it, never worse than without them."""

import itertools
from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from latecomer.synth.answer import checked
from latecomer.synth.arrivals import show
from latecomer.synth.arrivals.envelope import WaitThenComplete
from latecomer.synth.arrivals.exact import Question
from latecomer.synth.arrivals.generate import ArrivalsAnswer, search
from latecomer.synth.arrivals.instance import Arrivals
from latecomer.synth.arrivals.listing import Priorities, list_schedule
from latecomer.synth.arrivals.overlap import on_a_cube
from latecomer.synth.arrivals.portfolio import Portfolio
from latecomer.synth.arrivals.request import arrival_rounds, instance, late_ranks
from latecomer.synth.arrivals.trees import balanced
from latecomer.synth.cost import Setting, completion_cost
from latecomer.synth.solvers.choice import SOLVERS, Solving, solve
from latecomer.synth.solvers.model import Exhausted, Found
from latecomer.synth.standard import rhd, ring
from latecomer.synth.straggler.generate import search as search_straggler
from latecomer.synth.straggler.instance import Instance
from latecomer.verify import Verdict, check
from latecomer.verify.core.bounds import lower_bound
from latecomer.verify.errors import ArgumentError
from tests.verify.search import fewest_rounds

Request = tuple[int, dict[int, int], int]
"""Ranks, arrivals, m."""


def assert_sound(answer: ArrivalsAnswer, arrivals: dict[int, int]) -> None:
    """Proved, in phases that end at the arrivals, and no worse than any other method."""
    schedule = answer.schedule
    report = check(schedule)
    assert report.verdict is Verdict.PROVED
    assert report == answer.report
    assert schedule.late == tuple(sorted(arrivals))
    assert report.lower_bound <= answer.bound <= report.completion_rounds
    assert schedule.meta["method"] == answer.method

    ends = 0
    for phase in schedule.phases[: len(answer.arrivals.times) - 1]:
        ends += len(phase.rounds)
        still_late = {
            rank for rank, arrival in enumerate(answer.arrivals.arrival) if arrival >= ends
        }
        assert set(phase.absent) == still_late

    cost = completion_cost(schedule)
    for candidate in answer.candidates:
        assert cost.share <= candidate.cost.share
        if candidate.schedule is not None:
            assert check(candidate.schedule).verdict is Verdict.PROVED
    for standard in (ring, rhd):
        assert cost.share <= completion_cost(standard(schedule.ranks)).share


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16])
def test_one_late_rank_any_delay(n: int) -> None:
    for delay in range(0, n + 1, 1 + n // 6):
        answer = search(n, {n - 1: delay}, effort=0.1)
        assert_sound(answer, {n - 1: delay})
        assert answer.gap <= 1 or answer.method == "rhd"


@pytest.mark.parametrize("delay", range(0, 29, 4))
def test_eight_ranks_in_fine_chunks_reach_the_bound_at_every_delay(delay: int) -> None:
    arrivals = instance(8, {7: delay}, 4)
    lengths = []
    for seed in range(6):
        trees = balanced(arrivals, staged=True, seed=seed)
        for priorities in (Priorities(), Priorities(order=20, copy_load=100)):
            lengths.append(len(list_schedule(arrivals, trees, priorities, seed)))

    assert min(lengths) - arrivals.last == arrivals.bound
    straight_line = -(-(2 * 28 * 7 - delay * 7) // 8)
    assert arrivals.bound == max(30, straight_line)


@pytest.mark.parametrize("n", [2, 3, 6, 8, 11, 16, 32])
def test_a_long_delay_reaches_the_bound_of_one_straggler(n: int) -> None:
    for delay in (n - 2, 10 * n, 10**9):
        answer = search(n, {0: delay})
        assert_sound(answer, {0: delay})
        assert answer.gap == 0
        if answer.schedule.chunks == n - 1:
            assert answer.report.completion_rounds == Instance(n, n - 1).bound


@pytest.mark.parametrize(
    ("n", "arrivals", "m", "gap"),
    [
        (8, {6: 3, 7: 9}, 1, 1),
        (8, {4: 5, 5: 10, 6: 15, 7: 20}, 6, 1),
        (8, {5: 40, 6: 80, 7: 120}, 5, 1),
        (16, {12: 5, 13: 10, 14: 15, 15: 20}, 4, 1),
        (6, {1: 1, 2: 2, 3: 3, 4: 4, 5: 5}, 9, 1),
        (8, {7: 4}, 1, 0),
        (13, {12: 8}, 1, 0),
        (16, {3: 25}, 2, 0),
        (8, {6: 40, 7: 40}, 4, 2),
        (8, {5: 40, 6: 40, 7: 40}, 4, 2),
        (5, {3: 9, 4: 9}, 1, 0),
    ],
)
def test_late_ranks(n: int, arrivals: dict[int, int], m: int, gap: int) -> None:
    answer = search(n, arrivals, m=m, effort=0.2)
    assert_sound(answer, arrivals)
    assert answer.gap <= gap


@st.composite
def requests(draw: st.DrawFn) -> Request:
    n = draw(st.integers(2, 10))
    late = draw(st.sets(st.integers(0, n - 1), min_size=1, max_size=n - 1))
    arrivals = {rank: draw(st.integers(0, 2 * n)) for rank in late}
    m = draw(st.integers(1, 3))
    return n, arrivals, m


@settings(max_examples=25, deadline=None)
@given(requests())
def test_any_arrivals(request: Request) -> None:
    n, arrivals, m = request
    assert_sound(search(n, arrivals, m=m, effort=0.02), arrivals)


@settings(max_examples=150, deadline=None)
@given(requests(), st.booleans(), st.integers(0, 1000))
def test_the_bound_is_not_below_the_verifiers(request: Request, staged: bool, seed: int) -> None:
    n, arrival_of, m = request
    arrivals = instance(n, arrival_of, m)
    trees = balanced(arrivals, staged=staged, seed=seed)
    rounds = list_schedule(arrivals, trees, Priorities(noise=seed), seed)
    schedule = arrivals.schedule(rounds)
    assert check(schedule).verdict is Verdict.PROVED
    assert lower_bound(schedule) <= arrivals.bound <= len(rounds) - arrivals.last


@settings(max_examples=100, deadline=None)
@given(requests())
def test_long_waits_are_cut_without_changing_the_bound(request: Request) -> None:
    n, arrivals, m = request
    k = (n - len(arrivals)) * m
    by_rank = tuple(50 * arrivals.get(rank, 0) for rank in range(n))
    whole = Arrivals(k, by_rank, tuple(sorted(arrivals)))
    assert whole.without_idle_waits().bound == whole.bound


def test_more_delay_never_needs_more_rounds_by_the_bound() -> None:
    for n in range(2, 20):
        bounds = [instance(n, {n - 1: delay}, 2).bound for delay in range(3 * n)]
        assert bounds == sorted(bounds, reverse=True)
        assert bounds[-1] == Instance(n, 2 * (n - 1)).bound


@pytest.mark.parametrize("solver", SOLVERS)
def test_exhausted_questions_raise_the_bound(solver) -> None:
    """Three ranks on time, two chunks: the formulas say 3 rounds, and there is no such schedule."""
    solving = Solving(solver, 0, 1.0, None)
    portfolio = Portfolio(instance(3, {2: 0}, 1), solving, setting=None, progress=print)
    portfolio.try_lists(thoroughly=True)
    assert (portfolio.best.rounds, portfolio.least(portfolio.arrivals)) == (4, 3)

    portfolio.try_exact()
    assert (portfolio.best.rounds, portfolio.least(portfolio.arrivals)) == (4, 4)


@pytest.mark.parametrize("arrivals", [{7: 0}, {7: 3}, {7: 9}, {3: 2, 5: 7}])
def test_the_schedule_to_beat_is_a_schedule(arrivals: dict[int, int]) -> None:
    """Waiting for the whole ReduceScatter: made, proved, and as long as it was said to be."""
    wait = WaitThenComplete(instance(8, arrivals, 1).with_chunks(7), 7, lambda chunks: Fraction(1))
    schedule = wait.schedule(search_straggler(8, late=wait.last_rank))
    assert check(schedule).verdict is Verdict.PROVED
    assert schedule.completion_rounds == wait.bound


@settings(max_examples=60, deadline=None)
@given(st.integers(3, 40), st.integers(1, 40), st.integers(0, 60), st.integers(0, 99))
@example(23, 2, 6, 26)  # the late rank gave a sum on that it got in the same round
def test_an_overlap_is_right_or_lacks_rounds(n: int, k: int, delay: int, seed: int) -> None:
    arrivals = Arrivals(k, (0,) * (n - 1) + (delay,), (n - 1,))
    overlap = on_a_cube(arrivals, 0, seed)
    report = check(arrivals.schedule(overlap.rounds))
    assert (report.verdict is Verdict.PROVED) == (overlap.missing == 0)
    assert len(overlap.rounds) == delay + arrivals.dissemination_bound


def test_latency_decides_where_a_link_is_given() -> None:
    slow_start = search(8, {7: 0}, m=4, setting=Setting(8, 1.0, 1e9))
    assert slow_start.method == "doubling"
    large = search(8, {7: 12}, m=4, setting=Setting(2**30, 1e-9, 1e9))
    assert large.method == "list"


def test_the_number_of_chunks_follows_the_link_where_it_is_left_open() -> None:
    large_setting = Setting(2**32, 3e-6, 450e9)
    large = search(8, {7: 3}, setting=large_setting, effort=0.1)
    small = search(8, {7: 3}, setting=Setting(2**26, 3e-6, 450e9), effort=0.1)
    assert_sound(large, {7: 3})
    assert_sound(small, {7: 3})
    assert large.schedule.chunks > small.schedule.chunks

    for n, method in ((8, "doubling"), (6, "list, 2 chunks")):
        assert search(n, {n - 1: 3}, setting=Setting(2**16, 3e-6, 450e9)).method == method

    assert search(8, {7: 3}, m=1, setting=large_setting).schedule.chunks == 7
    assert search(8, {7: 3}).schedule.chunks == 7


def test_what_is_printed_names_the_winner_and_all_others() -> None:
    setting = Setting(2**30, 3e-6, 450e9)
    answer = search(8, {6: 3, 7: 9}, m=2, setting=setting, effort=0.1)
    text = show.text("file.json", answer, setting)
    assert "rank 6 at round 3, 7 at round 9" in text
    assert f"lower bound {answer.bound}: {answer.claim}" in text

    facts = show.facts("file.json", answer, setting)
    assert facts["arrivals"] == {6: 3, 7: 9}
    assert facts["method"] == answer.schedule.meta["method"]
    for candidate, printed in zip(answer.candidates, facts["candidates"], strict=True):
        assert candidate.method in text
        assert printed["made"] is (candidate.schedule is not None)


def test_what_was_typed() -> None:
    assert late_ranks(None) == []
    assert late_ranks(["6,7"]) == late_ranks(["6", "7"]) == [6, 7]
    assert arrival_rounds(8, [], None, "2") == {7: 2}
    assert arrival_rounds(8, [3], None, "2") == {3: 2}
    assert arrival_rounds(8, [6, 7], None, "2") == {6: 2, 7: 2}
    assert arrival_rounds(8, [6, 7], "3,9", None) == {6: 3, 7: 9}


def test_times_become_rounds() -> None:
    second_per_round = Setting(buffer_bytes=6 * 900, alpha_s=0.1, bandwidth=1000)
    in_seconds = arrival_rounds(8, [6, 7], "3s,9200ms", None, m=1, setting=second_per_round)
    assert in_seconds == {6: 3, 7: 9}

    half_second_per_round = Setting(buffer_bytes=6 * 800, alpha_s=0.1, bandwidth=1000)
    in_halves = arrival_rounds(8, [6, 7], None, "3s", m=2, setting=half_second_per_round)
    assert in_halves == {6: 6, 7: 6}

    with pytest.raises(ArgumentError, match="no rank is there to wait"):
        arrival_rounds(2, [0, 1], None, "3s", m=1, setting=second_per_round)


# the exact question, against a search through all states that knows nothing of it


def fewest_by_solver(arrivals: Arrivals, solver: str) -> int:
    """From no rounds on, not trusting the lower bound."""
    for rounds in itertools.count():
        question = Question(arrivals, rounds)
        answer = solve(question.model, solver, seed=0, work=30)
        if isinstance(answer, Found):
            report = checked(arrivals.schedule(question.decode(answer)))
            assert report.verdict is Verdict.PROVED
            assert report.completion_rounds == rounds
            return rounds
        assert isinstance(answer, Exhausted)
    raise AssertionError


CASES = [
    (2, 1, (0,)),
    (2, 1, (4,)),
    (2, 2, (0,)),
    (2, 3, (1,)),
    (3, 1, (0, 0)),
    (3, 1, (0, 1)),
    (3, 1, (0, 2)),
    (3, 1, (1, 1)),
    (3, 1, (1, 2)),
    (3, 2, (0, 0)),
    (3, 2, (0, 1)),
    (3, 2, (1, 2)),
    (4, 1, (0, 0, 0)),
    (4, 1, (0, 0, 1)),
    (4, 1, (0, 1, 1)),
]
"""Ranks, chunks, and the arrivals of all ranks but rank 0."""


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(("n", "chunks", "late"), CASES)
def test_as_few_as_brute_force(n: int, chunks: int, late: tuple[int, ...], solver: str) -> None:
    arrivals = Arrivals(chunks, (0, *late), tuple(range(1, n)))
    fewest = fewest_rounds(chunks, arrivals.arrival)
    assert fewest_by_solver(arrivals, solver) == fewest
    assert arrivals.bound <= fewest
