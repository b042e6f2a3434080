"""Halves of AllReduce: proved where they are right, refuted where a naive run finds them wrong."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from latecomer import synth
from latecomer.synth.candidates import halves
from latecomer.verify import Phase, Schedule, Transfer, Verdict
from latecomer.verify.core.verdict import overall
from latecomer.verify.halves import check_half


def _verdict(schedule: Schedule, half: str) -> Verdict:
    return overall(result.verdict for result in check_half(schedule, half).values())


def _is_right(schedule: Schedule, half: str) -> bool:
    """By a run on bags of contributions; shares no code with ``verify``.

    Before an all-gather every rank holds its own share, and something of its own, which may come
    into nobody's result, wherever another has its share.
    """
    n = schedule.ranks
    k = schedule.chunks
    owner = [chunk // (k // n) for chunk in range(k)]
    held = {(rank, chunk): Counter([rank]) for rank in range(n) for chunk in range(k)}
    for phase in schedule.phases:
        for transfers in phase.rounds:
            before = {place: Counter(bag) for place, bag in held.items()}
            for each in transfers:
                moved = before[each.src, each.chunk]
                place = each.dst, each.chunk
                held[place] = moved if each.op == "copy" else held[place] + moved
    if half == "reduce_scatter":
        return all(held[owner[chunk], chunk] == Counter(range(n)) for chunk in range(k))
    return all(bag == Counter([owner[chunk]]) for (_, chunk), bag in held.items())


@pytest.mark.parametrize("n", [*range(2, 18), 31, 32])
def test_all_that_are_offered_are_proved(n: int) -> None:
    names = set()
    for name, half, schedule in halves(n):
        names.add((name, half))
        assert _is_right(schedule, half)
        assert _verdict(schedule, half) is Verdict.PROVED
        other = "all_gather" if half == "reduce_scatter" else "reduce_scatter"
        assert _verdict(schedule, other) is Verdict.REFUTED
    assert len(names) == (2 if n == 2 else 6)


def _mutant(schedule: Schedule, rng: random.Random) -> Schedule:
    """The same with one transfer changed, left out, doubled or put elsewhere."""
    rounds = [list(transfers) for transfers in schedule.phases[0].rounds]
    row = rng.choice([transfers for transfers in rounds if transfers])
    at = rng.randrange(len(row))
    kind = rng.choice(["drop", "double", "elsewhere", "src", "dst", "chunk", "op"])
    n = schedule.ranks
    if kind == "drop":
        del row[at]
    elif kind == "double":
        rng.choice(rounds).append(row[at])
    elif kind == "elsewhere":
        rng.choice(rounds).append(row.pop(at))
    elif kind == "op":
        row[at] = replace(row[at], op="copy" if row[at].op == "reduce" else "reduce")
    else:
        row[at] = replace(row[at], **{kind: rng.randrange(n)})
    phase = replace(schedule.phases[0], rounds=tuple(map(tuple, rounds)))
    return replace(schedule, phases=(phase,))


@settings(max_examples=400, deadline=None)
@given(st.integers(2, 7), st.integers(0, 2**32))
def test_what_a_run_finds_wrong_is_refuted(n: int, seed: int) -> None:
    rng = random.Random(seed)
    _, half, schedule = rng.choice(list(halves(n)))
    mutant = _mutant(schedule, rng)
    results = check_half(mutant, half)
    contents = results["scattered" if half == "reduce_scatter" else "gathered"]
    if results["well_formed"].verdict is not Verdict.PROVED:
        assert contents.verdict is Verdict.UNKNOWN
    elif results["hazards"].verdict is Verdict.PROVED:  # else what a round does is not defined
        assert (contents.verdict is Verdict.PROVED) == _is_right(mutant, half)


def test_a_refutation_says_who_lacks_what() -> None:
    whole = synth.direct(3)
    scatter = replace(whole, phases=whole.phases[:1])
    (transfers,) = scatter.phases[0].rounds
    less = replace(scatter.phases[0], rounds=(transfers[1:],))
    result = check_half(replace(scatter, phases=(less,)), "reduce_scatter")["scattered"]
    assert result.counterexample is not None
    assert (result.counterexample.rank, result.counterexample.chunk) == (0, 0)
    assert result.counterexample.found == "rank 0's, rank 2's"


def test_chunks_that_ranks_have_no_equal_shares_of_are_refuted() -> None:
    moves = (Transfer(0, 1, 0, "reduce"), Transfer(1, 0, 1, "reduce"))
    schedule = Schedule(ranks=2, chunks=3, phases=(Phase("all", (), (moves,)),))
    result = check_half(schedule, "reduce_scatter")["scattered"]
    assert result.counterexample is not None
    assert "equal shares" in result.counterexample.expected
