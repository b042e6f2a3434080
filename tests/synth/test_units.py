"""Quantities: what is read, what is refused, and that texts are exact."""

import contextlib
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synth import units
from verify.errors import ArgumentError


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
        (units.parse_bandwidth, "0GB/s|450GB|450Gb/s|inf GB/s|٤GB/s"),
    ],
)
def test_refused(parse, texts: str) -> None:
    for text in texts.split("|"):
        with pytest.raises(ArgumentError):
            parse("--x", text)
