"""Searched schedules: at the bound where the bound is reached, honest where it is not."""

import time

import pytest

from synth import generate
from synth.solvers.choice import SOLVERS
from synth.straggler.generate import failures, search
from synth.straggler.greedy import Greedy
from synth.straggler.instance import Instance
from synth.straggler.pairing import Pairing
from verify import Verdict, check, encode
from verify.errors import SearchTimeout
from verify.renaming import renamed

both_solvers = pytest.mark.parametrize("solver", SOLVERS)


def assert_at_bound(generated, n: int, m: int) -> None:
    schedule, report = generated.schedule, generated.report
    assert report == check(schedule)
    assert report.verdict is Verdict.PROVED
    assert schedule.chunks == (n - 1) * m
    bound = (n - 1) * m + (n - 1).bit_length() - 1
    assert schedule.completion_rounds == bound == report.lower_bound
    assert report.optimal is True
    assert schedule.meta["optimal"] is True
    assert "gap" not in schedule.meta
    assert generated.gap == 0
    assert generated.claim.startswith("optimal")


@both_solvers
@pytest.mark.parametrize(
    ("n", "m", "ports"),
    [
        *((n, 1, "duplex") for n in range(2, 13)),
        *((8, m, "duplex") for m in (2, 3, 4, 8)),
        *((n, 1, "matching") for n in (2, 3, 4, 5, 6, 8, 9, 10, 12)),
    ],
)
def test_small_ones_reach_the_bound(n: int, m: int, ports, solver) -> None:
    generated = search(n, m=m, ports=ports, solver=solver)
    assert_at_bound(generated, n, m)
    assert generated.schedule.late == (n - 1,)
    assert generated.schedule.ports == ports


@pytest.mark.parametrize(
    ("n", "m", "ports"),
    [
        *((n, m, "duplex") for n in (13, 16, 20, 31, 33, 57, 64, 100) for m in (1, 2, 4)),
        *((n, m, "matching") for n, m in ((2, 3), (16, 2), (64, 1))),
    ],
)
def test_larger_ones_reach_the_bound(n: int, m: int, ports) -> None:
    assert_at_bound(search(n, m=m, ports=ports), n, m)


@pytest.mark.parametrize(("n", "m"), [(9, 1), (13, 2), (23, 1), (40, 1)])
def test_balanced_owners(n: int, m: int) -> None:
    generated = search(n, m=m, owners="balanced")
    assert generated.winner.owners == generated.schedule.meta["owners"] == "balanced"
    waiting, completion = generated.schedule.phases
    assert len(waiting.rounds) == (n - 2) * m
    exchanges = [t for moves in completion.rounds for t in moves if t.op == "reduce"]
    assert all(t.chunk % (n - 1) in (t.src, t.dst) for t in exchanges)
    assert generated.gap <= 1


def test_matching_of_seven_reaches_its_own_bound() -> None:
    report = search(7, ports="matching").report
    assert (report.completion_rounds, report.lower_bound, report.optimal) == (9, 9, True)


@pytest.mark.parametrize(("n", "m"), [(18, 1), (20, 2)])
def test_pairing(n: int, m: int) -> None:
    instance = Instance(n, m, "matching")
    rounds = Pairing(instance, seed=0).run(until=time.monotonic() + 60)
    assert instance.bound <= len(rounds) <= instance.bound + 1


@pytest.mark.parametrize("maker", [Greedy(Instance(12), 0), Pairing(Instance(18), 0)])
def test_running_out_of_time_gives_no_schedule(maker) -> None:
    with pytest.raises(SearchTimeout, match="gave up"):
        maker.run(until=time.monotonic())


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
    # only the general form exhausts the normal form
    others = tuple(a for a in generated.attempts if (a.rounds, a.method) != (5, "general"))
    assert "5 rounds: search timed out" in failures(generated.report, others)


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_any_rank_can_be_late(n: int) -> None:
    last = generate(n)
    for late in {0, n // 2, n - 1}:
        schedule = generate(n, late=late)
        assert schedule.late == (late,)
        waiting = [("reduce_scatter", (late,))] if n > 2 else []
        assert [(p.name, p.absent) for p in schedule.phases] == [*waiting, ("completion", ())]
        assert check(schedule).verdict is Verdict.PROVED
        helpers = [rank for rank in range(n) if rank != late]
        assert schedule == renamed(last, dict(enumerate([*helpers, late])))


@both_solvers
def test_equal_seeds_give_equal_files(solver) -> None:
    one, again = (encode(generate(9, seed=5, solver=solver)) for _ in range(2))
    assert one == again
    seeds = {encode(generate(9, seed=seed, solver=solver)) for seed in range(3)}
    assert len(seeds) > 1
