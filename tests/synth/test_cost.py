"""The alpha-beta model against values worked out by hand; quantities as they are typed."""

import contextlib
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from latecomer import synth
from latecomer.synth import units
from latecomer.synth.cost import (
    FAMILIES,
    Cost,
    Link,
    best,
    best_chunks,
    completion_cost,
    direct_cost,
    family_cost,
    predict,
    rhd_cost,
    ring_cost,
    straggler_cost,
    waiting_cost,
)
from latecomer.synth.straggler.generate import search
from latecomer.verify import Phase, Schedule, Transfer
from latecomer.verify.errors import ArgumentError

SIZES = st.integers(1, 2**40)
LINKS = st.builds(Link, st.floats(1e-9, 1e-2), st.floats(1e3, 1e13))


def test_busiest_rank_counts_and_empty_rounds_are_free() -> None:
    rounds = (
        (Transfer(0, 1, 0, "copy"), Transfer(0, 1, 1, "copy"), Transfer(2, 1, 2, "copy")),
        (),
        (Transfer(0, 1, 3, "copy"), Transfer(0, 2, 3, "copy"), Transfer(1, 0, 3, "copy")),
    )
    schedule = Schedule(ranks=3, chunks=4, phases=(Phase("all", (), rounds),))
    assert completion_cost(schedule) == Cost(2 + 2, Fraction(3 + 2, 4))
    assert completion_cost(schedule, "round") == Cost(2, Fraction(3 + 2, 4))
    assert waiting_cost(schedule) == Cost(0, Fraction(0))


@settings(deadline=None)
@given(n=st.integers(2, 33), size=SIZES, link=LINKS)
def test_closed_forms_are_what_the_rounds_say(n: int, size: int, link: Link) -> None:
    costs = {synth.ring: ring_cost(n), synth.rhd: rhd_cost(n), synth.direct: direct_cost(n)}
    for make, cost in costs.items():
        assert completion_cost(make(n)) == cost
        assert predict(make(n), size, link) == cost.over(size, link)
    assert completion_cost(synth.direct(n), "round") == direct_cost(n, "round")


@settings(max_examples=25, deadline=None)
@given(n=st.integers(2, 9), m=st.integers(1, 3), late=st.integers(0, 8), size=SIZES, link=LINKS)
def test_straggler_at_the_bound(n: int, m: int, late: int, size: int, link: Link) -> None:
    generated = search(n, m=m, late=late % n)
    assume(generated.gap == 0)
    cost = straggler_cost(n, (n - 1) * m)
    assert completion_cost(generated.schedule) == cost
    assert predict(generated.schedule, size, link) == cost.over(size, link)


@settings(deadline=None)
@given(n=st.integers(2, 200), size=SIZES, link=LINKS, most_chunks=st.integers(1, 40))
def test_the_best_number_of_chunks_is_best_of_all(
    n: int, size: int, link: Link, most_chunks: int
) -> None:
    k = best_chunks(n, size, link, most_chunks)
    assert 1 <= k <= most_chunks
    least = min(straggler_cost(n, chunks).over(size, link) for chunks in range(1, most_chunks + 1))
    assert straggler_cost(n, k).over(size, link) == pytest.approx(least, rel=1e-12)


@settings(deadline=None)
@given(n=st.integers(2, 200), size=SIZES, link=LINKS)
def test_best_is_no_slower_than_any_family(n: int, size: int, link: Link) -> None:
    choice = best(n, size, link)
    assert choice.reason.startswith(choice.family)
    assert (choice.chunks is not None) == (choice.family == "straggler")
    for family in FAMILIES:
        for k in (1, 2, n - 1, 8 * n):
            assert choice.seconds <= family_cost(family, n, k).over(size, link) * (1 + 1e-12)


def test_by_hand() -> None:
    link = Link(3e-6, 450e9)
    assert best(8, 1024, link).family == "doubling"  # as quick as one chunk, with no rank named
    assert best(6, 1024, link).chunks == 1

    large = best(8, 2**30, link)
    assert (large.family, large.chunks) == ("straggler", 40)
    assert large.reason == (
        "straggler at the lower bound with 40 chunks: 42 alpha + 1.05 S*beta; "
        "next is rhd, 6 alpha + 1.75 S*beta, 1.59 times the time"
    )

    # without latency more chunks are better
    without_latency = Link(0, 1e9)
    assert best_chunks(8, 1024, without_latency, most=16) == 16
    assert best_chunks(2, 1024, without_latency, most=16) == 1

    cost = Cost(9, Fraction(9, 7))
    assert str(cost) == "9 alpha + 1.286 S*beta"
    assert cost.seconds(7 * 10**9, 1e-3, 1e9) == pytest.approx(9e-3 + 9)


@given(st.integers(1, 10**12), st.sampled_from(sorted(units.BYTES)))
def test_bytes_are_number_times_unit(number: int, unit: str) -> None:
    assert units.parse_bytes("--bytes", f"{number}{unit}") == number * units.BYTES[unit]


@given(st.integers(1, 2**60))
def test_format_bytes_is_exact(number: int) -> None:
    assert units.parse_bytes("--bytes", units.format_bytes(number)) == number


@given(
    st.decimals(0, 10**6, places=3, allow_nan=False),
    st.sampled_from(sorted(units.SECONDS)),
    st.sampled_from(["", " ", "  "]),
)
def test_seconds(number, unit: str, space: str) -> None:
    expected = float(Fraction(number) * units.SECONDS[unit])
    assert units.parse_seconds("--alpha", f"{space}{number}{space}{unit}{space}") == expected


@given(st.floats(1e-9, 1e6))
def test_format_seconds_keeps_four_digits(seconds: float) -> None:
    text = units.format_seconds(seconds)
    number, unit = text.split()
    assert float(number) * float(units.SECONDS[unit]) == pytest.approx(seconds, rel=1e-3)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("450GB/s", 450e9), ("100 Gbit/s", 12.5e9), ("8Mbit/s", 1e6), ("1.5kB/s", 1500.0)],
)
def test_bandwidth(text: str, expected: float) -> None:
    assert units.parse_bandwidth("--bandwidth", text) == expected
    assert units.parse_bandwidth("--bandwidth", units.format_bandwidth(expected)) == expected


@given(st.text(max_size=12))
def test_any_text_is_read_or_refused(text: str) -> None:
    for parse in (units.parse_bytes, units.parse_seconds, units.parse_bandwidth):
        with contextlib.suppress(ArgumentError):
            assert parse("--x", text) >= 0


@pytest.mark.parametrize(
    ("parse", "texts"),
    [
        (units.parse_bytes, "|1|GiB|1Gb|1gib|-1GiB|1e3GiB|0GiB|0.5B|1GiB/s|1 G iB"),
        (units.parse_bandwidth, "0GB/s|450GB|450GBit|inf GB/s|٤GB/s"),
    ],
)
def test_refused_quantities(parse, texts: str) -> None:
    for text in texts.split("|"):
        with pytest.raises(ArgumentError):
            parse("--x", text)
