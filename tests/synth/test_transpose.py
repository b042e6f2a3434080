"""Transpose AllReduce: proved for all small sizes, with the rounds that are claimed for it."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.cost import completion_cost
from synth.transpose.generate import EXCHANGES, transpose
from verify import Incast, Phase, Schedule, Transfer, Verdict, check
from verify.core.semantics import exactly_once
from verify.errors import ArgumentError


def _divisors(n: int) -> list[int]:
    return [g for g in range(1, n + 1) if n % g == 0]


@st.composite
def settings_of(draw):
    n = draw(st.integers(2, 24))
    return {
        "n": n,
        "incast": draw(st.integers(1, n - 1)),
        "groups": draw(st.sampled_from(_divisors(n))),
        "exchange": draw(st.sampled_from(EXCHANGES)),
    }


def _folded(groups: int) -> int:
    """Rounds of recursive doubling, with a fold before and after if it is no power of two."""
    return int(math.log2(groups)) + 2 * (not math.log2(groups).is_integer())


@settings(max_examples=150, deadline=None)
@given(settings_of())
def test_proved_with_the_rounds_that_are_claimed(given) -> None:
    schedule = transpose(**given)
    report = check(schedule)
    assert report.verdict is Verdict.PROVED, report.counterexample
    incast, groups = given["incast"], given["groups"]
    size = given["n"] // groups
    inside, between = (2 * math.ceil((m - 1) / incast) for m in (size, groups))
    if given["exchange"] == "doubling":
        between = _folded(groups)
    assert schedule.rounds == inside + between
    if groups == 1:
        assert schedule.ports == Incast(incast)
        assert schedule.chunks == given["n"]


@pytest.mark.parametrize("n", range(2, 40))
def test_one_sender_at_a_time_is_optimal(n: int) -> None:
    report = check(transpose(n))
    assert (report.completion_rounds, report.lower_bound) == (2 * (n - 1), 2 * (n - 1))
    assert report.optimal is True


@pytest.mark.parametrize(("n", "incast"), [(9, 2), (9, 4), (9, 8), (17, 16), (8, 7), (31, 3)])
def test_an_incast_that_divides_is_optimal(n: int, incast: int) -> None:
    assert check(transpose(n, incast=incast)).optimal is True


@pytest.mark.parametrize("n", [2, 5, 8, 13])
@pytest.mark.parametrize("incast", [1, 2, 3, 7])
def test_nothing_takes_a_detour(n: int, incast: int) -> None:
    """Chunk c: first n - 1 contributions straight to rank c, then n - 1 sums straight from it."""
    if incast >= n:
        return
    scatter, gather = transpose(n, incast=incast).phases
    contributions = [t for moves in scatter.rounds for t in moves]
    sums = [t for moves in gather.rounds for t in moves]
    pairs = {(a, b) for a in range(n) for b in range(n) if a != b}
    assert all(t.op == "reduce" and t.chunk == t.dst for t in contributions)
    assert all(t.op == "copy" and t.chunk == t.src for t in sums)
    for transfers in (contributions, sums):
        assert {(t.src, t.dst) for t in transfers} == pairs
        assert len(transfers) == len(pairs)


def test_as_many_rounds_as_the_source_or_fewer() -> None:
    """2 (n/G - 1) + (G - 1), but for three groups, where that can't be had."""
    for size, groups in itertools.product(range(1, 9), range(2, 33)):
        source = 2 * (size - 1) + groups - 1
        ours = transpose(size * groups, groups=groups).rounds
        assert ours <= source + (groups == 3)
    assert transpose(64, groups=16).rounds == 10


def test_three_groups_need_three_rounds() -> None:
    """No two rounds with one send and one receive each add up three sums everywhere."""
    moves = []
    for to in itertools.product([None, 0, 1, 2], repeat=3):
        pairs = [(src, dst) for src, dst in enumerate(to) if dst is not None]
        if all(a != b for a, b in pairs) and len({b for _, b in pairs}) == len(pairs):
            for ops in itertools.product(("copy", "reduce"), repeat=len(pairs)):
                together = zip(pairs, ops, strict=True)
                moves.append(tuple(Transfer(a, b, 0, op) for (a, b), op in together))
    assert len(moves) > 60
    for rounds in itertools.product(moves, repeat=2):
        schedule = Schedule(ranks=3, chunks=1, phases=(Phase("all", (), rounds),))
        assert exactly_once(schedule).verdict is Verdict.REFUTED


@pytest.mark.parametrize(("groups", "same"), [(2, True), (3, False), (4, False)])
def test_why_not_the_exchange_of_the_source(groups: int, same: bool) -> None:
    """Everybody adds everybody's sums: from three groups on, in different orders."""
    everybody = tuple(
        Transfer((g + shift) % groups, g, 0, "reduce")
        for g in range(groups)
        for shift in range(1, groups)
    )
    report = check(
        Schedule(
            ranks=groups,
            chunks=1,
            ports=Incast(groups - 1),
            phases=(Phase("exchange", (), (everybody,)),),
        )
    )
    assert report.results["exactly_once"].verdict is Verdict.PROVED
    assert (report.results["same_bits"].verdict is Verdict.PROVED) == same


def test_fewest_rounds_or_fewest_bytes() -> None:
    flat, fast, small = (
        completion_cost(s)
        for s in (
            transpose(64),
            transpose(64, groups=8),
            transpose(64, groups=8, exchange="transpose"),
        )
    )
    assert fast.messages < small.messages < flat.messages
    assert flat.share == small.share < fast.share


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"n": 1}, "--n"),
        ({"n": 1025}, "--n"),
        ({"n": 8, "incast": 0}, "--incast"),
        ({"n": 8, "incast": 8}, "--incast"),
        ({"n": 8, "groups": 0}, "--groups"),
        ({"n": 8, "groups": -2}, "--groups"),
        ({"n": 8, "groups": 3}, "--groups"),
        ({"n": 8, "exchange": "ring"}, "--exchange"),
    ],
)
def test_bad_arguments(given, name: str) -> None:
    with pytest.raises(ArgumentError) as error:
        transpose(**given)
    assert error.value.name == name


@settings(max_examples=100, deadline=None)
@given(settings_of())
def test_cost_as_documented(given) -> None:
    n, groups = given["n"], given["groups"]
    size = n // groups
    share = Fraction(2 * (n - 1), n)
    if given["exchange"] == "doubling":
        share = Fraction(2 * (size - 1) + _folded(groups), size)
    cost = completion_cost(transpose(**given), "round")
    assert cost.share == share
    assert cost.messages == transpose(**given).rounds


@pytest.mark.parametrize("n", range(2, 34))
def test_at_most_one_round_above_the_bound(n: int) -> None:
    for incast in range(1, n):
        report = check(transpose(n, incast=incast))
        gap = report.completion_rounds - report.lower_bound
        assert gap in (0, 1)
        assert gap == 0 or (n - 1) % incast
