"""The state machines that adapt to the network; and the ranges of the options that steer them."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

from latecomer.runtime.optireduce.options import Options
from latecomer.runtime.optireduce.udp import adaptive
from latecomer.runtime.optireduce.udp.adaptive import PERIOD, CompletionEstimator, Incast, Pacer
from latecomer.runtime.optireduce.udp.reassembly import End
from latecomer.verify.errors import ArgumentError

LEAST = {"window_step_bytes": 0}


def _ended(end, lost, elapsed_s=0.5):
    """A stage of 100 datagrams that began at 0: what the state machines look at."""
    return SimpleNamespace(
        due=100,
        lost=lost,
        loss=lost / 100,
        end=end,
        elapsed_s=elapsed_s,
        reached_s=elapsed_s,
        quiet_s=elapsed_s if end is End.EARLY else None,
    )


def test_the_hard_bound_is_the_percentile_over_all_ranks():
    options = Options(bound_floor_s=0.0, bound_factor=1.0)
    assert adaptive.hard_bound_s([[0.01] * 50, [0.02] * 45 + [0.5] * 5], options) == 0.5
    assert adaptive.hard_bound_s([[0.01] * 96, [0.5] * 4], options) == 0.01
    assert adaptive.hard_bound_s([[9.0]], Options()) == 18.0
    assert adaptive.hard_bound_s([[0.001]], Options()) == Options().bound_floor_s


def test_expected_time_and_grace_follow_their_rules():
    options = Options(expected_weight=1.0, grace_floor_s=0.0)
    estimator = CompletionEstimator(options, bound_s=2.0)
    assert estimator.expected_s == 0.0
    assert estimator.grace_s(3.0) == pytest.approx(0.3)

    estimator.ended(_ended(End.COMPLETE, 0), 1, 0.5)
    assert estimator.own_s == 0.5
    assert estimator.percent == 9

    estimator.ended(_ended(End.EARLY, 20), 2, 0.8)
    assert estimator.own_s == pytest.approx(0.5 / 0.8)
    assert estimator.percent == 8

    estimator.late(1, 10, 0.81)  # of a stage that was complete
    estimator.late(2, 10, 0.76)  # after 0.5 + half of t_C
    estimator.ended(_ended(End.EARLY, 20), 3, 0.8)
    assert estimator.percent == 7  # to wait longer would not have helped
    for percent in (14, 28, 50, 50):
        estimator.late(3, 5, 0.75)
        estimator.ended(_ended(End.EARLY, 20), 3, 0.8)
        assert estimator.percent == percent

    estimator.ended(_ended(End.TIMEOUT, 50), 4, 2.5)
    assert estimator.own_s == 2.0

    estimator.announced(1, 0.4)
    estimator.announced(2, 99.0)
    estimator.announced(3, 0.6)
    estimator.announced(4, 0.0)  # says nothing
    assert estimator.expected_s == pytest.approx((0.6 + 2.0) / 2)
    assert estimator.grace_s(9.0) == pytest.approx(0.49 * 1.3)


def test_incast_rises_slowly_and_falls_on_a_time_out():
    assert Incast(Options(), peers=7).own == 7
    incast = Incast(Options(incast=1, incast_up_after=2, **LEAST), peers=7)
    for _ in range(8):
        incast.ended(_ended(End.COMPLETE, 0))
    assert incast.own == 5
    incast.ended(_ended(End.TIMEOUT, 50))
    assert incast.own == 2
    incast.announced(1, 4)
    assert incast.allowed == 4
    incast.announced(2, 0)
    assert incast.allowed == 1


def test_the_window_shrinks_before_the_senders_become_fewer():
    incast = Incast(Options(window_step_bytes=150 * 1024), peers=8)
    for _ in range(4):
        incast.ended(_ended(End.COMPLETE, 0))
    windows_and_senders = []
    for _ in range(4):
        incast.ended(_ended(End.TIMEOUT, 50))
        windows_and_senders.append((incast.window_bytes // 1024, incast.own))
    assert windows_and_senders == [(428, 8), (256, 8), (256, 4), (256, 2)]


def test_the_window_is_what_the_network_holds_and_a_grant_at_least():
    pacer = SimpleNamespace(least_s=0)
    incast = Incast(Options(grant_bytes=7360, **LEAST), 4, [pacer])
    incast.ended(_ended(End.COMPLETE, 0, 0.1))  # 1000 datagrams/s
    for least_s, datagrams in ((0.0, 44), (0.01, 3 * 20 // 4), (-0.01, 5)):
        pacer.least_s = least_s
        assert incast.window == datagrams


@pytest.mark.parametrize(("lost", "announced"), [(50, 8), (30, 4)])
def test_half_the_incast_is_kept_where_it_helps(lost, announced):
    """80 of 100 lost at 8 senders, so many at 4."""
    incast = Incast(Options(incast_up_after=1000, **LEAST), peers=8)
    for _ in range(PERIOD):
        assert incast.own == 8
        incast.ended(_ended(End.EARLY, 80))
    for _ in range(PERIOD):
        assert incast.own == 4
        incast.ended(_ended(End.EARLY, lost))
    assert incast.own == announced


def test_losses_that_incast_does_not_cause_are_tried_once_and_then_excused():
    """Every fifth stage loses 10 of 100, whatever is tried."""
    incast = Incast(Options(incast_up_after=1000, **LEAST), peers=8)
    senders = []
    for number in range(5 * PERIOD):
        incast.ended(_ended(End.EARLY, 10 if number % 5 == 0 else 0))
        senders.append(incast.own)
    assert [count for count, _ in itertools.groupby(senders)] == [8, 4, 8]


def test_pacing_slows_down_for_long_round_trips_and_recovers():
    pacer = Pacer(Options(rate_start=1e8))
    pacer.sent(1_000_000, 5.0)
    assert pacer.next_s == pytest.approx(5.01)
    for _ in range(20):
        pacer.answered(0.1)
    assert pacer.rate < 1e7
    for _ in range(20):
        pacer.answered(0.0001)
    pacer.answered(-1.0)
    pacer.answered(4000.0)  # nonsense is ignored
    assert pacer.rate > 2e8


def test_options_out_of_range_are_refused():
    for name, value in [
        ("datagram_bytes", 1473),
        ("bound_percentile", 0),
        ("hadamard", "maybe"),
        ("incast", 0),
        ("hadamard_block", 1000),
        ("warmup_steps", 0),
        ("skip_loss", 1.5),
        ("warmup_steps", 3),
    ]:
        with pytest.raises(ArgumentError, match=name.replace("warmup", "(warmup|settle)")):
            Options(**{name: value})
