"""What an operation could gain: within the limit, and as an exhaustive reading of it says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latecomer.runtime.simulation.arrivals import read
from latecomer.runtime.whatif.gains import Link, ceiling_s, exposed_bytes, gain_of, least_s
from latecomer.runtime.whatif.operations import Operation, of_arrivals

LINK = Link(latency_s=20e-6, bandwidth=1e9)
SIZES = st.integers(1, 2**31)
ARRIVALS = st.lists(st.floats(0, 5), min_size=2, max_size=12)


@given(ARRIVALS, SIZES)
def test_nothing_is_gained_beyond_the_limit(arrivals_s, nbytes):
    gain = gain_of(Operation(tuple(arrivals_s)), nbytes, LINK)
    size = len(arrivals_s)
    assert 0 <= gain.limit_s <= ceiling_s(size, nbytes, LINK) * (1 + 1e-9) + 1e-12
    assert 0 <= gain.now_s <= gain.limit_s
    assert bool(gain.reason) == (gain.now_s == 0)


@given(st.integers(3, 12), SIZES)
def test_ranks_that_come_together_gain_nothing(size, nbytes):
    gain = gain_of(Operation((0.0,) * size), nbytes, LINK)
    assert gain.limit_s == pytest.approx(0, abs=1e-9)
    assert gain.now_s == 0


@given(ARRIVALS.filter(lambda arrivals_s: len(arrivals_s) > 2), SIZES)
def test_the_later_the_last_comes_the_more_can_be_gained(arrivals_s, nbytes):
    *others_s, last_s = sorted(arrivals_s)  # one that was early has sent something by then
    later_s = [*others_s, last_s + 0.5]
    least_before_s, least_after_s = (least_s(each, nbytes, LINK) for each in (arrivals_s, later_s))
    assert least_after_s <= least_before_s + 1e-12


def test_why_nothing_is_gained():
    def reason(arrivals_s, nbytes=10**9, **options):
        return gain_of(Operation(tuple(arrivals_s), **options), nbytes, LINK).reason

    assert reason([0, 9]) == "two ranks"
    assert reason([0, 0, 0, 9], kind="reduce_scatter") == "not an all-reduce"
    assert reason([0, 0, 0, 0.001]) == "too close"
    assert reason([0, 0, 9], nbytes=100) == "too small"
    assert reason([0, 0, 0, 9]) == ""


def test_what_is_left_of_an_overlapped_buffer():
    size, bucket = 4, 25 * 2**20
    assert exposed_bytes(10**9, bucket, 0.0, LINK, size) == 10**9
    assert exposed_bytes(10**9, bucket, 60.0, LINK, size) == bucket
    assert exposed_bytes(10**6, bucket, 60.0, LINK, size) == 10**6
    half_s = 0.5 * 10**9 * 1.5 / LINK.bandwidth  # a ring of four takes 1.5 S beta
    assert exposed_bytes(10**9, bucket, half_s, LINK, size) == pytest.approx(5 * 10**8)


@pytest.mark.parametrize(
    ("name", "nbytes", "gbit", "expected_ms"),
    [
        ("AR", 2**29, 400, 5),
        ("AR", 2**31, 100, 84),
        ("AR", 2**31, 25, 339),
        ("SE", 2**29, 400, 9),
        ("SE", 2**31, 100, 135),
        ("SE", 2**31, 25, 393),
        ("ST", 2**31, 25, 0),
    ],
)
def test_what_was_found_before_by_other_means(name, nbytes, gbit, expected_ms):
    """By a study of the same traces, with a model of its own: means of all steps."""
    recording = of_arrivals(read(f"examples/arrivals/{name}.json"))
    link = Link(latency_s=20e-6, bandwidth=gbit * 1e9 / 8)
    gains_s = [gain_of(each, nbytes, link).now_s for each in recording.operations]
    assert 1e3 * sum(gains_s) / len(gains_s) == pytest.approx(expected_ms, rel=0.1, abs=0.6)
