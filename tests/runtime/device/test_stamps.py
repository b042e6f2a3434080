"""A device's clock on the host's: bounds that cause and effect give are never wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latecomer.runtime.device.stamps import DRIFT, DeviceClock, StampArrivals

SMALL = st.floats(1e-6, 0.5)


@given(
    st.floats(-1e6, 1e6),
    st.floats(-DRIFT / 2, DRIFT / 2),
    st.lists(st.tuples(SMALL, SMALL, SMALL), min_size=1, max_size=20),
)
def test_the_time_is_within_what_is_said_however_long_launches_take(offset_s, drift, launches):
    """Host, then device, then host: each so much later; the device's clock is fast or slow."""
    clock = DeviceClock()
    now_s = 1000.0

    def device(host_s):
        return (host_s - offset_s) * (1 + drift)

    for before_s, takes_s, after_s in launches:
        began_s = now_s + before_s
        ended_s = began_s + takes_s
        clock.observe(now_s, device(began_s), ended_s)

        rounding_s = 1e-9 + 1e6 * DRIFT  # a clock that has run for long is far off, but steadily
        assert clock.uncertainty_s <= (ended_s - now_s) / 2 + rounding_s
        estimated_s = clock.host_s(device(began_s))
        assert now_s - 1e-6 <= estimated_s <= ended_s + 1e-6
        if drift == 0:
            assert abs(estimated_s - began_s) <= clock.uncertainty_s + 1e-6

        now_s = ended_s + after_s


def test_narrow_bounds_are_kept_and_widen():
    clock = DeviceClock()
    clock.observe(10.0, 1.0, 10.002)
    assert clock.uncertainty_s == pytest.approx(0.001)
    clock.observe(20.0, 15.0, 30.0)  # hours behind, as far as this launch says
    assert clock.uncertainty_s == pytest.approx(0.001 + DRIFT * 19.998)
    assert clock.host_s(15.0) == pytest.approx(24.001)


def test_a_clock_that_was_set_is_learned_anew():
    clock = DeviceClock()
    clock.observe(10.0, 1.0, 10.002)
    clock.observe(11.0, 500.0, 11.002)
    assert clock.host_s(500.0) == pytest.approx(11.001)


def test_arrivals_are_taken_once_and_lie_within_their_operation():
    clock = DeviceClock()
    source = StampArrivals(clock)
    source.add(0, 5.0, 1_000_000_000, 5.5)
    source.add(1, 6.0, None, 6.5)  # its stamp is gone: no later than this

    (first, first_at_s), (second, second_at_s) = source.take()

    assert first == 0
    assert 5.0 <= first_at_s <= 5.5
    assert second == 1
    assert second_at_s == 6.5
    assert source.take() == []
