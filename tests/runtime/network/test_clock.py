"""The clock's estimate is never wrong by more than it says, whatever the network does."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latecomer.runtime.network.clock import (
    BURST,
    DRIFT,
    PERIOD_S,
    ROUNDING_S,
    UNKNOWN_S,
    Aligned,
    Alignment,
    Clock,
)

FATES = st.sampled_from(["whole", "lost", "doubled", "very late"])
TRIPS = st.lists(st.tuples(st.floats(0, 0.2), st.floats(0, 0.2), FATES), min_size=1, max_size=40)
"""Each to the reference and back."""


def _asked(clock, now_s):
    """The ping that it sends now, if any."""
    clock.handle_timer(now_s)
    return next((message for _, message in clock.messages_to_send(now_s)), None)


def _answer(ping, at_s):
    """What the reference answers."""
    reference = Clock(0)
    reference.receive_message(ping, 1, at_s)
    ((rank, pong),) = reference.messages_to_send(at_s)
    assert rank == 1
    return pong


def _run(trips, offset_s, drift, *, is_shared=False):
    """A clock after these pings; the time at the end, own clock; the true offset then."""
    clock = Clock(1, is_shared=is_shared)
    now_s = 0.0
    delayed_pongs = []

    def reference(at_s):
        return at_s * (1 + drift) + offset_s

    for there_s, back_s, fate in trips:
        now_s = max(now_s, clock.get_timer())
        ping = _asked(clock, now_s)
        assert ping is not None
        assert _asked(clock, now_s) is None
        pong = _answer(ping, reference(now_s + there_s))

        now_s = now_s + there_s + back_s
        if fate == "very late":
            delayed_pongs.append(pong)
        elif fate != "lost":
            for _ in range(2 if fate == "doubled" else 1):
                clock.receive_message(pong, 0, now_s)
    for pong in delayed_pongs:
        clock.receive_message(pong, 0, now_s)
    return clock, now_s, reference(now_s) - now_s


@given(TRIPS, st.floats(-1e4, 1e4), st.floats(-DRIFT / 2, DRIFT / 2))
def test_the_true_offset_is_within_the_uncertainty(trips, offset_s, drift):
    clock, now_s, truth_s = _run(trips, offset_s, drift)
    alignment = clock.alignment(now_s)
    assert abs(alignment.offset_s - truth_s) <= alignment.uncertainty_s + 1e-9


@given(TRIPS, st.floats(-1e4, 1e4))
def test_a_shared_clock_is_exact_unless_the_answers_prove_that_it_is_another(trips, offset_s):
    shared, now_s, _ = _run(trips, 0.0, 0.0, is_shared=True)
    if math.isfinite(shared.alignment(now_s).uncertainty_s):
        assert shared.alignment(now_s) == Alignment(0.0, 0.0)

    claimed, now_s, _ = _run(trips, offset_s, 0.0, is_shared=True)
    other, _, _ = _run(trips, offset_s, 0.0)
    is_disproved = claimed.alignment(now_s) == other.alignment(now_s)
    assert is_disproved or abs(offset_s) <= 0.4 + ROUNDING_S  # the longest trip there and back


def test_a_shared_clock_is_not_believed_before_the_first_answer():
    assert Clock(1, is_shared=True).alignment(0.0).uncertainty_s == math.inf


def test_the_shortest_trip_counts_and_ages():
    clock, now_s, truth_s = _run([(0.2, 0.0, "whole"), (1e-4, 1e-4, "whole")], 3600.0, 0.0)
    alignment = clock.alignment(now_s)
    assert abs(alignment.offset_s - truth_s) < 1e-6
    assert 0.9e-4 < alignment.uncertainty_s < 2e-4
    assert clock.alignment(now_s + 100).uncertainty_s > 100 * DRIFT


def test_nothing_is_claimed_before_an_answer_nor_about_what_was_not_asked():
    clock = Clock(2)
    assert clock.alignment(0.0).uncertainty_s == math.inf
    assert clock.alignment(0.0).finite == Alignment(0.0, UNKNOWN_S)
    assert Alignment(1.0, 2.0).finite == Alignment(1.0, 2.0)

    pong = _answer(_asked(clock, 5.0), 9.0)
    clock.receive_message(pong, 0, 5.0)
    assert clock.alignment(5.0).uncertainty_s == 0.0
    assert clock.next_event() == Aligned()
    assert clock.next_event() is None

    clock_that_did_not_ask = Clock(3)
    clock_that_did_not_ask.receive_message(pong, 0, 5.0)
    assert clock_that_did_not_ask.alignment(5.0).uncertainty_s == math.inf
    assert clock_that_did_not_ask.next_event() is None


def test_the_reference_never_asks_and_others_ask_again_and_again():
    assert Clock(0).get_timer() is None
    assert Clock(0).alignment(1.0).uncertainty_s == 0.0
    clock = Clock(1)
    now_s = 0.0
    for _ in range(BURST):
        now_s = max(now_s, clock.get_timer())
        ping = _asked(clock, now_s)
        clock.receive_message(_answer(ping, now_s), 0, now_s)
    assert clock.get_timer() - now_s == PERIOD_S


def test_a_burst_that_nobody_hears_goes_on_ever_more_slowly():
    """The reference may begin to listen later than the others ask; 2 s are waited for it."""
    clock = Clock(1)
    times_s = []
    for _ in range(200):
        now_s = max(0.0, clock.get_timer())
        assert _asked(clock, now_s) is not None
        times_s.append(now_s)

    gaps_s = [round(later - earlier, 6) for earlier, later in itertools.pairwise(times_s)]
    assert gaps_s == sorted(gaps_s)
    assert max(gaps_s) == pytest.approx(PERIOD_S)
    for listens_s in (0.2, 0.5, 1.0, 1.5):
        assert any(listens_s <= time_s <= listens_s + 0.35 for time_s in times_s)
