"""What was saved, against operations whose times are known."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latecomer.runtime.telemetry.gain import ENOUGH, Gain, gain_of
from latecomer.runtime.telemetry.records import NATIVE, Rank, Record
from latecomer.runtime.telemetry.summary import summarize

SCHEDULE = "one late, k = 2"
SIZE = 3
LATE_RANK = 2
LATENESS_S = 0.5


def _operation(
    number, took_s, *, natively, nbytes=1000, reason="because", failed=False, on_time=False
):
    """By rank: rank 2 comes last, and the result is there ``took_s`` after that."""
    records = {}
    for rank in range(SIZE):
        arrived_s = 10.0 * number + LATENESS_S * (rank == LATE_RANK)
        done_s = 10.0 * number + LATENESS_S + took_s
        records[rank] = Record(
            operation=number,
            rank=rank,
            arrived_s=arrived_s,
            decided_s=arrived_s,
            done_s=math.nan if failed else done_s,
            uncertainty_s=0.0,
            bytes=nbytes,
            way=NATIVE if natively else SCHEDULE,
            late=() if natively or on_time else (LATE_RANK,),
            reason=reason,
        )
    return records


def _operations(native_s, schedule_s, first=1):
    """Native ones first; numbers from ``first`` on, behind an operation 0 that says nothing."""
    operations = [_operation(0, 99.0, natively=True, nbytes=7)]
    for number, took_s in enumerate([*native_s, *schedule_s], start=first):
        operations.append(_operation(number, took_s, natively=number < first + len(native_s)))
    return operations


def test_what_natively_would_have_taken_longer_was_saved():
    gain = gain_of(_operations([0.3, 0.3, 0.3, 0.3], [0.1, 0.2]))
    assert gain.compared == 2
    assert gain.not_compared == 0
    assert gain.saved_s == pytest.approx(0.3)  # (0.3 - 0.1) + (0.3 - 0.2)
    assert gain.least_s == pytest.approx(gain.saved_s)
    assert gain.most_s == pytest.approx(gain.saved_s)
    assert "saved 0.30 s (0.30 to 0.30) of 99.5 s: 2 operations ran by a schedule, 2" in str(gain)


def test_schedules_that_waited_for_all_count_too():
    operations = _operations([0.3] * 4, [0.1])
    operations.append(_operation(6, 0.2, natively=False, on_time=True))
    gain = gain_of(operations)
    assert (gain.compared, gain.without_late) == (2, 1)
    assert gain.saved_s == pytest.approx(0.3)


def test_what_took_longer_than_natively_was_lost():
    gain = gain_of(_operations([0.1] * 4, [0.4]))
    assert gain.saved_s == pytest.approx(-0.3)
    assert str(gain).startswith("lost 0.30 s (0.30 to 0.30) of ")


def test_noise_of_the_native_times_is_what_is_not_known():
    gain = gain_of(_operations([0.1, 0.2, 0.4, 0.5], [0.3]))
    assert gain.least_s < 0 < gain.most_s
    assert f"between {-gain.least_s:.2f} lost and {gain.most_s:.2f} saved" in str(gain)


times_s = st.floats(0.001, 5.0)


@given(st.lists(times_s, min_size=ENOUGH, max_size=9), st.lists(times_s, min_size=1, max_size=9))
def test_the_span_holds_the_median_and_grows_with_nothing_else(native_s, schedule_s):
    gain = gain_of(_operations(native_s, schedule_s))
    ordered = sorted(native_s)
    middle = len(ordered) // 2
    median_s = ordered[middle] if len(ordered) % 2 else sum(ordered[middle - 1 : middle + 1]) / 2
    assert gain.saved_s == pytest.approx(sum(median_s - took_s for took_s in schedule_s), abs=1e-6)
    assert gain.least_s <= gain.saved_s + 1e-9
    assert gain.saved_s <= gain.most_s + 1e-9
    assert gain.most_s <= sum(ordered[-1] - took_s for took_s in schedule_s) + 1e-6
    assert gain.least_s >= sum(ordered[0] - took_s for took_s in schedule_s) - 1e-6


def test_sizes_are_compared_with_their_like_only():
    operations = _operations([0.3] * 4, [0.1])
    operations.append(_operation(6, 0.1, natively=False, nbytes=2000))
    gain = gain_of(operations)
    assert (gain.compared, gain.not_compared) == (1, 1)
    assert "1 operations by a schedule are not compared" in str(gain)


def test_few_native_operations_say_nothing_and_the_first_one_is_not_counted():
    gain = gain_of(_operations([0.3] * (ENOUGH - 1), [0.1]))
    assert (gain.compared, gain.not_compared) == (0, 1)
    assert gain.saved_s == 0

    without_the_first = _operations([0.3] * ENOUGH, [0.1])[1:]
    assert gain_of(without_the_first).compared == 0


def test_what_has_failed_is_left_out():
    operations = _operations([0.3] * 4, [0.1])
    operations.append(_operation(6, 0.1, natively=False, failed=True))
    assert gain_of(operations).compared == 1


def test_where_all_ran_natively_the_usual_reason_is_said():
    operations = [
        _operation(number, 0.1, natively=True, reason="small" if number else "all are there")
        for number in range(4)
    ]
    assert str(gain_of(operations)) == (
        "nothing was saved: all ran natively, mostly because: small"
    )
    assert str(gain_of([])) == ""
    assert gain_of([]) == Gain()


def test_the_summary_says_it_and_has_it_for_machines():
    operations = _operations([0.3] * 4, [0.1])
    ranks = [Rank(rank, tuple(records[rank] for records in operations)) for rank in range(SIZE)]
    summary = summarize(ranks, SIZE)
    assert "saved 0.20 s (0.20 to 0.20)" in str(summary)
    assert (
        '"gain": {"compared": 1, "without_late": 1, "not_compared": 0, "saved_s": 0.'
        in summary.as_json()
    )
