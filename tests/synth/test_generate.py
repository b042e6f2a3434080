"""Searched schedules: at the bound where the bound is reached, honest where it is not."""

import time

import pytest

from synth import generate
from synth.cost import MOST_M, Setting
from synth.solvers.choice import SOLVERS
from synth.straggler.choose import choose
from synth.straggler.generate import LARGEST, failures, search
from synth.straggler.greedy import Greedy
from synth.straggler.instance import Instance
from synth.straggler.pairing import Pairing
from verify import Verdict, check, encode
from verify.errors import ArgumentError, SearchTimeout
from verify.renaming import renamed

both_solvers = pytest.mark.parametrize("solver", SOLVERS)


def log2_ceil(n: int) -> int:
    return (n - 1).bit_length()


def assert_at_bound(generated, n: int, m: int) -> None:
    schedule, report = generated.schedule, generated.report
    assert report == check(schedule)
    assert report.verdict is Verdict.PROVED
    assert schedule.chunks == (n - 1) * m
    assert schedule.completion_rounds == (n - 1) * m + log2_ceil(n) - 1 == report.lower_bound
    assert report.optimal is True
    assert schedule.meta["optimal"] is True
    assert "gap" not in schedule.meta
    assert generated.gap == 0
    assert generated.claim.startswith("optimal")


@both_solvers
@pytest.mark.parametrize("n", range(2, 13))
def test_duplex_reaches_the_bound(n: int, solver) -> None:
    generated = search(n, solver=solver)
    assert_at_bound(generated, n, 1)
    assert generated.schedule.late == (n - 1,)
    assert generated.schedule.ports == "duplex"


@both_solvers
@pytest.mark.parametrize("m", [2, 3, 4, 8])
def test_more_chunks_per_helper(m: int, solver) -> None:
    assert_at_bound(search(8, m=m, solver=solver), 8, m)


@pytest.mark.parametrize("m", [1, 2, 4])
@pytest.mark.parametrize("n", [13, 16, 20, 31, 33, 57, 64, 100])
def test_more_ranks(n: int, m: int) -> None:
    assert_at_bound(search(n, m=m), n, m)


@pytest.mark.parametrize(("n", "m"), [(9, 1), (13, 2), (23, 1), (40, 1)])
def test_balanced_owners(n: int, m: int) -> None:
    generated = search(n, m=m, owners="balanced")
    assert generated.winner.owners == generated.schedule.meta["owners"] == "balanced"
    waiting, completion = generated.schedule.phases
    assert len(waiting.rounds) == (n - 2) * m
    exchanges = [t for moves in completion.rounds for t in moves if t.op == "reduce"]
    assert all(t.chunk % (n - 1) in (t.src, t.dst) for t in exchanges)
    assert generated.gap <= 1


def test_greedy_that_runs_out_of_time_is_not_a_schedule() -> None:
    with pytest.raises(SearchTimeout, match="gave up"):
        Greedy(Instance(12), seed=0).run(until=time.monotonic())


@pytest.mark.parametrize("n", [3, 6, 8])
@pytest.mark.parametrize("m", [1, 2])
def test_free_owners(n: int, m: int) -> None:
    generated = search(n, m=m, owners="free")
    assert_at_bound(generated, n, m)
    assert generated.method.startswith("closed form")
    assert generated.schedule.meta["owners"] == "free"


@both_solvers
@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 8, 9, 10, 12])
def test_matching_reaches_the_bound(n: int, solver) -> None:
    generated = search(n, ports="matching", solver=solver)
    assert_at_bound(generated, n, 1)
    assert generated.schedule.ports == "matching"


@pytest.mark.parametrize(("n", "m"), [(2, 3), (16, 2), (64, 1)])
def test_matching_of_powers_of_two(n: int, m: int) -> None:
    assert_at_bound(search(n, m=m, ports="matching"), n, m)


@pytest.mark.parametrize(("n", "rounds"), [(3, 3), (5, 6), (7, 9), (9, 11)])
def test_matching_of_odd_numbers_reaches_its_own_bound(n: int, rounds: int) -> None:
    report = search(n, ports="matching").report
    assert (report.completion_rounds, report.lower_bound, report.optimal) == (rounds, rounds, True)


@pytest.mark.parametrize(("n", "m"), [(18, 1), (20, 2)])
def test_pairing(n: int, m: int) -> None:
    instance = Instance(n, m, "matching")
    rounds = Pairing(instance, seed=0).run(until=time.monotonic() + 60)
    assert instance.bound <= len(rounds) <= instance.bound + 1
    with pytest.raises(SearchTimeout, match="gave up"):
        Pairing(instance, seed=0).run(until=time.monotonic())


def test_pairing_is_what_is_left_for_many_ranks() -> None:
    generated = search(34, ports="matching")
    assert generated.report.verdict is Verdict.PROVED
    assert generated.method.startswith("pairing")
    assert generated.gap <= 1


@both_solvers
def test_a_gap_says_why(solver) -> None:
    generated = search(3, m=2, owners="balanced", solver=solver)
    assert generated.report.verdict is Verdict.PROVED
    assert generated.report.optimal == "unknown"
    assert generated.gap == generated.schedule.meta["gap"] == 1
    assert "optimal" not in generated.schedule.meta
    assert "5 rounds: no schedule of this normal form" in generated.claim
    assert "12 constructive tries" in generated.claim
    assert "impossible" not in generated.claim
    exhausted = {(a.rounds, a.method) for a in generated.attempts if a.result == "exhausted"}
    assert {(5, "cyclic"), (5, "general")} <= exhausted


def test_only_the_general_form_exhausts_the_normal_form() -> None:
    found = search(3, m=2, owners="balanced")
    others = tuple(a for a in found.attempts if (a.rounds, a.method) != (5, "general"))
    assert "5 rounds: search timed out" in failures(found.report, others)


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_any_rank_can_be_late(n: int) -> None:
    last = generate(n)
    for late in {0, n // 2, n - 1}:
        schedule = generate(n, late=late)
        assert schedule.late == (late,)
        assert check(schedule).verdict is Verdict.PROVED
        helpers = [rank for rank in range(n) if rank != late]
        assert schedule == renamed(last, dict(enumerate([*helpers, late])))


def test_phases() -> None:
    waiting, completion = generate(5, late=1, m=2).phases
    assert (waiting.name, waiting.absent, len(waiting.rounds)) == ("reduce_scatter", (1,), 6)
    assert (completion.name, completion.absent) == ("completion", ())
    assert [phase.name for phase in generate(2, m=3).phases] == ["completion"]


@both_solvers
def test_equal_seeds_give_equal_files(solver) -> None:
    one, again = (encode(generate(9, seed=5, solver=solver)) for _ in range(2))
    assert one == again
    seeds = {encode(generate(9, seed=seed, solver=solver)) for seed in range(3)}
    assert len(seeds) > 1


def test_a_time_out_is_reported_as_a_time_out() -> None:
    with pytest.raises(SearchTimeout, match="Whether one exists is unknown"):
        search(64, owners="balanced", time_limit_s=0.05)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("--n", {"n": 1}),
        ("--n", {"n": 5000}),
        ("--late", {"n": 4, "late": 4}),
        ("--late", {"n": 4, "late": -1}),
        ("--m", {"n": 4, "m": 0}),
        ("--n, --m", {"n": 4, "m": LARGEST}),
        ("--ports", {"n": 4, "ports": "simplex"}),
        ("--owners", {"n": 4, "owners": "mine"}),
        ("--owners", {"n": 6, "owners": "free", "ports": "matching"}),
        ("--seed", {"n": 4, "seed": -1}),
        ("--time-limit", {"n": 4, "time_limit_s": 0.0}),
        ("--time-limit", {"n": 4, "time_limit_s": float("nan")}),
        ("--solver", {"n": 4, "solver": "guess"}),
    ],
)
def test_bad_arguments(name: str, arguments) -> None:
    with pytest.raises(ArgumentError) as caught:
        search(**arguments)
    assert caught.value.name == name


def chosen(buffer_bytes: int, alpha_s: float):
    return choose(
        6,
        Setting(buffer_bytes, alpha_s, 1e9),
        late=None,
        m=None,
        ports="duplex",
        owners="auto",
        seed=0,
        time_limit_s=60,
        solver="cp-sat",
        progress=lambda text: None,
    )


def test_a_small_buffer_wants_few_chunks_and_a_large_one_many() -> None:
    small, candidates = chosen(1000, 1e-3)
    assert small.schedule.chunks == 5
    assert [c.m for c in candidates if c.found] == [1]
    large, candidates = chosen(10**9, 1e-9)
    assert large.schedule.chunks == 5 * MOST_M
    assert [c.m for c in candidates] == list(range(1, MOST_M + 1))
    # (k + L - 1)(alpha + S/k beta) with k = 5m, L = 3, at the bound for every m
    for c in candidates:
        k = 5 * c.m
        assert c.predicted_s == pytest.approx((k + 2) * (1e-9 + 1 / k))
