"""Schedules for one straggler: at the bound where it is reached, honest where it is not."""

import itertools
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from latecomer.synth import generate
from latecomer.synth.solvers.choice import SOLVERS
from latecomer.synth.straggler.broadcast import Broadcast
from latecomer.synth.straggler.closed_form import ClosedForm
from latecomer.synth.straggler.generate import failures, search
from latecomer.synth.straggler.greedy import Greedy
from latecomer.synth.straggler.instance import Instance
from latecomer.synth.straggler.pairing import Pairing
from latecomer.synth.straggler.reduce_scatter import rotation, tournament
from latecomer.verify import Verdict, check, encode
from latecomer.verify.errors import SearchTimeout
from latecomer.verify.renaming import renamed

both_solvers = pytest.mark.parametrize("solver", SOLVERS)


SMALL = [
    *((n, 1, "duplex") for n in range(2, 13)),
    *((8, m, "duplex") for m in (2, 3, 4, 8)),
    *((n, 1, "matching") for n in (2, 3, 4, 5, 6, 8, 9, 10, 12)),
]
LARGER = [
    *((n, m, "duplex") for n in (13, 16, 20, 31, 33, 57, 64, 100) for m in (1, 2, 4)),
    *((n, m, "matching") for n, m in ((2, 3), (16, 2), (64, 1))),
]


@pytest.mark.parametrize(
    ("solver", "n", "m", "ports"),
    [*((s, *case) for s in SOLVERS for case in SMALL), *(("z3", *case) for case in LARGER)],
)
def test_they_reach_the_bound(solver, n: int, m: int, ports) -> None:
    generated = search(n, m=m, ports=ports, solver=solver)
    schedule = generated.schedule
    report = generated.report
    k = (n - 1) * m
    assert report == check(schedule)
    assert (report.verdict, report.optimal) == (Verdict.PROVED, True)

    bound = k + (n - 1).bit_length() - 1
    assert schedule.completion_rounds == bound == report.lower_bound
    assert schedule.meta["optimal"] is True
    assert "gap" not in schedule.meta
    assert generated.claim.startswith("optimal")
    assert (schedule.chunks, schedule.late, schedule.ports) == (k, (n - 1,), ports)


@pytest.mark.parametrize(("n", "m"), [(9, 1), (13, 2), (23, 1), (40, 1)])
def test_balanced_owners(n: int, m: int) -> None:
    generated = search(n, m=m, owners="balanced")
    assert generated.winner.owners == generated.schedule.meta["owners"] == "balanced"

    waiting, completion = generated.schedule.phases
    assert len(waiting.rounds) == (n - 2) * m
    for transfers in completion.rounds:
        for t in transfers:
            if t.op == "reduce":
                assert t.chunk % (n - 1) in (t.src, t.dst)  # the owner gives, or it receives
    assert generated.gap <= 1


@pytest.mark.parametrize("maker", [Greedy(Instance(12, 11), 0), Pairing(Instance(18, 17), 0)])
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
    other_attempts = tuple(a for a in generated.attempts if (a.rounds, a.method) != (5, "general"))
    assert "5 rounds: search gave up" in failures(generated.report, other_attempts)


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_any_rank_can_be_late(n: int) -> None:
    last = generate(n)
    for late in {0, n // 2, n - 1}:
        schedule = generate(n, late=late)
        assert schedule.late == (late,)

        absent_by_phase = [(phase.name, phase.absent) for phase in schedule.phases]
        if n > 2:
            assert absent_by_phase == [("reduce_scatter", (late,)), ("completion", ())]
        else:
            assert absent_by_phase == [("completion", ())]
        assert check(schedule).verdict is Verdict.PROVED

        helpers = [rank for rank in range(n) if rank != late]
        assert schedule == renamed(last, dict(enumerate([*helpers, late])))


@both_solvers
def test_the_seed_matters(solver) -> None:
    assert len({encode(generate(9, seed=seed, solver=solver)) for seed in range(3)}) > 1


@pytest.mark.parametrize(
    "command",
    [
        "--n 9 --seed 5",
        "--n 12 --solver cp-sat",
        "--n 10 --ports matching",
        "--n 13 --owners balanced --m 2",
        "--n 9 --late 7,8 --arrivals 2,5 --m 2 --seed 3",
        "--n 3 --late 1,2 --delay 3",
        "--nodes 2 --per-node 2 --bytes 1MiB",
    ],
)
def test_no_clock_decides(synth, tmp_path, monkeypatch, command: str) -> None:
    """The same command writes the same file, also where each look at the clock is a day later."""
    for file in ("one.json", "again.json"):
        assert synth("generate", *command.split(), "-q", "-o", file) == (0, "", "")
        monkeypatch.setattr(time, "monotonic", itertools.count(step=86400).__next__)
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "again.json").read_bytes()


@given(n=st.integers(2, 300), k=st.integers(1, 80))
@settings(max_examples=150, deadline=None)
def test_a_broadcast_of_any_number_of_chunks(n: int, k: int) -> None:
    broadcast = Broadcast(n, k)
    root = n - 1
    assert broadcast.rounds == k + (n - 1).bit_length() - 1

    chunks_of: list[set[int]] = [set() for _ in range(n)]
    chunks_of[root] = set(range(k))
    for t in range(broadcast.rounds):
        sources, destinations, chunks = broadcast.moves(t)
        senders = sources.tolist()
        receivers = destinations.tolist()
        moves = list(zip(senders, receivers, chunks.tolist(), strict=True))
        assert len(set(senders)) == len(senders)
        assert len(set(receivers)) == len(receivers)
        assert root not in receivers

        if t < k:
            assert [chunk for src, _, chunk in moves if src == root] == [t]
            assert broadcast.beside(t) not in senders

        for src, dst, chunk in moves:
            assert chunk in chunks_of[src]
            assert chunk not in chunks_of[dst]
        for _, dst, chunk in moves:
            chunks_of[dst].add(chunk)

    assert all(len(chunks) == k for chunks in chunks_of)


@settings(deadline=None)
@given(n=st.integers(2, 130), k=st.integers(1, 40))
@example(n=5, k=1)
def test_the_closed_form_is_at_the_bound_for_every_n_and_k(n: int, k: int) -> None:
    is_power_of_two = n.bit_count() == 1
    for ports in ("duplex", "matching") if is_power_of_two else ("duplex",):
        generated = search(n, chunks=k, ports=ports, owners="free")
        assert generated.report.verdict is Verdict.PROVED
        assert generated.optimal
        assert generated.value == k + (n - 1).bit_length() - 1
        assert generated.method.startswith("closed form")
        assert generated.schedule.meta["owners"] == "free"
        assert generated.schedule.ports == ports


@pytest.mark.parametrize("k", [1, 2, 7, 40])
@pytest.mark.parametrize("n", [*range(3, 40), 64, 100])
def test_the_wait_is_hardly_longer_than_a_reduce_scatter(n: int, k: int) -> None:
    instance = Instance(n, k)
    waiting = ClosedForm(instance).waiting()
    assert len(waiting) <= instance.bound + instance.fewest_hops - 1
    if k == 1:
        assert len(waiting) == (n - 2).bit_length()  # the fewest that sum up n - 1 ranks


@pytest.mark.parametrize("k", [1, 5, 11, 24])
@pytest.mark.parametrize("helpers", range(1, 12))
@pytest.mark.parametrize("make", [rotation, tournament])
def test_the_helpers_reduce_scatter(make, helpers: int, k: int) -> None:
    """Every raw chunk goes once to its owner, in as few rounds as the ports allow."""
    rounds = make(helpers, k)
    moves = [t for transfers in rounds for t in transfers]
    expected = [
        (src, chunk % helpers, chunk, "reduce")
        for src in range(helpers)
        for chunk in range(k)
        if chunk % helpers != src
    ]
    assert sorted((t.src, t.dst, t.chunk, t.op) for t in moves) == sorted(expected)

    one_sits_out = make is tournament and helpers % 2 == 1
    rounds_per_chunk = helpers if one_sits_out and helpers > 1 else helpers - 1
    chunks_per_helper = -(-k // helpers)
    assert len(rounds) == chunks_per_helper * rounds_per_chunk

    for transfers in rounds:
        senders = {t.src for t in transfers}
        receivers = {t.dst for t in transfers}
        assert len(senders) == len(receivers) == len(transfers)
        assert len(transfers) <= helpers - one_sits_out
        if make is tournament:
            pairs = {frozenset((t.src, t.dst)) for t in transfers}
            assert 2 * len(pairs) == len(senders | receivers)
