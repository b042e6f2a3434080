"""A receive stage, explored exhaustively for small cases, and the times that steer it."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from runtime.optireduce.options import Options
from runtime.optireduce.udp.bound import CompletionEstimator, bound_s
from runtime.optireduce.udp.datagram import LAST
from runtime.optireduce.udp.incast import PERIOD, Incast
from runtime.optireduce.udp.pacing import Pacer
from runtime.optireduce.udp.reassembly import End, StageReceiver
from verify.errors import ArgumentError

PAYLOAD = 8
SIZES = {1: 12, 2: 8}  # two datagrams (8 and 4 bytes) from rank 1, one from rank 2
ABSENCE_S, ALLOWED_S, GRACE_S = 2.0, 4.0, 1.0
GENUINE = [(1, 0, 8, 0), (1, 8, 4, LAST), (2, 0, 8, LAST)]
WRONG = [(1, 8, 8, 0), (1, 16, 8, 0), (1, 3, 8, 0), (2, 8, 0, 0), (3, 0, 8, 0)]
ACTS = [*GENUINE, *WRONG, "tick", "busy", "sent 1", "sent 2"]


def _into(counter):
    return lambda kind, count: counter.update({kind: count})


def _explore(stage, now, depth, placed, seen):
    """Every sequence of ``depth`` events: arrivals (right, wrong, repeated), ticks, ends."""
    state = (
        depth, now, stage.end, stage._quiet_s, tuple(stage.absent), stage.hard_s, tuple(placed),
        tuple(s.marked for s in stage.senders.values()),
    )  # fmt: skip
    if state in seen:
        return
    seen.add(state)
    assert stage.hard_s <= ABSENCE_S + ALLOWED_S
    assert stage.lost == len(GENUINE) - len(placed)
    if now > ABSENCE_S + ALLOWED_S:
        assert stage.end is not None
    if depth == 0:
        return
    for act in ACTS:
        copy = _copy(stage)
        then, fresh = now, list(placed)
        if act in ("tick", "busy"):
            then += 1.0
            end = copy.poll(then, GRACE_S, empty=act == "tick")
            if end is End.EARLY:
                assert all(s.marked or s.complete for s in copy.senders.values())
            if end is End.COMPLETE and stage.end is None:
                assert len(placed) == len(GENUINE)
            if stage.end is not None:
                assert end is stage.end
        elif isinstance(act, str):
            copy.all_sent(int(act[-1]), now)
        else:
            sender, offset, length, flags = act
            told = np.array([offset]), np.array([length]), np.array([flags])
            refused = Counter()
            _, _, count = copy.take(sender, *told, now, _into(refused))
            place = act in GENUINE and act not in placed and stage.end is None
            assert (count, refused.total()) == (int(place), int(not place))
            fresh += [act] * place
        _explore(copy, then, depth - 1, sorted(fresh), seen)


def _copy(stage):
    copy = StageReceiver.__new__(StageReceiver)
    copy.__dict__.update(stage.__dict__)
    copy._absent = set(stage._absent)
    copy.senders = {}
    for rank, sender in stage.senders.items():
        copy.senders[rank] = type(sender).__new__(type(sender))
        copy.senders[rank].__dict__.update(sender.__dict__)
        copy.senders[rank].arrived = sender.arrived.copy()
    return copy


def test_every_history_ends_in_time_and_places_each_datagram_once():
    seen = set()
    stage = StageReceiver(SIZES, PAYLOAD, 0.0, ABSENCE_S, ALLOWED_S)
    _explore(stage, 0.0, 9, [], seen)
    assert len(seen) > 2000
    assert {state[2] for state in seen} == {None, *End}


def test_a_batch_is_split_into_new_repeated_and_wrong():
    stage = StageReceiver({1: 80}, PAYLOAD, 0.0, 0.0, 1.0)
    offsets = np.array([16, 0, 16, 5, 72, 80])
    drops = Counter()
    rows, numbers, count = stage.take(
        1, offsets, np.full(6, 8), np.zeros(6, int), 0.1, _into(drops)
    )
    assert list(numbers) == [2, 0, 9]
    assert list(rows) == [0, 1, 4]
    assert count == 3
    assert drops == {"duplicate": 1, "out of range": 2}


def _ended(end, lost, elapsed_s=0.5):
    stage = StageReceiver({1: 100 * PAYLOAD}, PAYLOAD, 0.0, 0.0, 10.0)
    stage.enter(1, 0.0)
    stage.end, stage._left, stage._last_s = end, lost, elapsed_s
    if end is End.EARLY:
        stage._quiet_s, stage.ended_s = elapsed_s, elapsed_s + 0.3
    return stage


def test_the_hard_bound_is_the_percentile_over_all_ranks():
    options = Options(bound_floor_s=0.0, bound_factor=1.0)
    assert bound_s([[0.01] * 50, [0.02] * 45 + [0.5] * 5], options) == 0.5
    assert bound_s([[0.01] * 96, [0.5] * 4], options) == 0.01
    assert bound_s([[9.0]], Options()) == 18.0
    assert bound_s([[0.001]], Options()) == Options().bound_floor_s


def test_expected_time_and_grace_follow_their_rules():
    options = Options(expected_weight=1.0, grace_floor_s=0.0)
    expected = CompletionEstimator(options, most_s=2.0)
    assert (expected.expected_s, expected.grace_s(3.0)) == (0.0, pytest.approx(0.3))
    expected.ended(_ended(End.COMPLETE, 0), 1, 0.5)
    assert expected.own_s == 0.5
    assert expected.percent == 9
    expected.ended(_ended(End.EARLY, 20), 2, 0.8)
    assert expected.own_s == pytest.approx(0.5 / 0.8)
    assert expected.percent == 8
    expected.late(1, 10, 0.81)  # of a stage that was complete
    expected.late(2, 10, 0.76)  # after 0.5 + half of t_C
    expected.ended(_ended(End.EARLY, 20), 3, 0.8)
    assert expected.percent == 7  # to wait longer would not have helped
    for percent in (14, 28, 50, 50):
        expected.late(3, 5, 0.75)
        expected.ended(_ended(End.EARLY, 20), 3, 0.8)
        assert expected.percent == percent
    expected.ended(_ended(End.TIMEOUT, 50), 4, 2.5)
    assert expected.own_s == 2.0
    expected.told(1, 0.4)
    expected.told(2, 99.0)
    expected.told(3, 0.6)
    expected.told(4, 0.0)  # says nothing
    assert expected.expected_s == pytest.approx((0.6 + 2.0) / 2)
    assert expected.grace_s(9.0) == pytest.approx(0.49 * 1.3)


LEAST = {"window_step_bytes": 0}


def test_what_comes_after_the_marks_does_not_make_t_c_longer():
    """Marks at 1 s, the missing datagram at 3 s."""
    stage, drops = StageReceiver({1: 3 * PAYLOAD}, PAYLOAD, 0.0, 0.0, 10.0), Counter()
    sent = [(0.5, 0, 0), (1.0, 2, LAST), (3.0, 1, 0)]
    for now_s, number, flags in sent:
        one = [np.array([value]) for value in (number * PAYLOAD, PAYLOAD, flags)]
        stage.take(1, *one, now_s, _into(drops))
        end = stage.poll(now_s, 5.0, True)
    assert (end, stage.elapsed_s, stage.reached_s) == (End.COMPLETE, 1.0, 3.0)


def test_incast_rises_slowly_and_falls_on_a_time_out():
    assert Incast(Options(), peers=7).announced == 7
    incast = Incast(Options(incast=1, incast_up_after=2, **LEAST), peers=7)
    for _ in range(8):
        incast.ended(_ended(End.COMPLETE, 0))
    assert incast.announced == 5
    incast.ended(_ended(End.TIMEOUT, 50))
    assert incast.announced == 2
    incast.told(1, 4)
    assert incast.allowed == 4
    incast.told(2, 0)
    assert incast.allowed == 1


def test_the_window_shrinks_before_the_senders_become_fewer():
    incast = Incast(Options(window_step_bytes=150 * 1024), peers=8)
    for _ in range(4):
        incast.ended(_ended(End.COMPLETE, 0))
    seen = []
    for _ in range(4):
        incast.ended(_ended(End.TIMEOUT, 50))
        seen.append((incast.window_bytes // 1024, incast.announced))
    assert seen == [(428, 8), (256, 8), (256, 4), (256, 2)]


@pytest.mark.parametrize(("lost", "announced"), [(50, 8), (30, 4)])
def test_half_the_incast_is_kept_where_it_helps(lost, announced):
    """80 of 100 lost at 8 senders, so many at 4."""
    incast = Incast(Options(incast_up_after=1000, **LEAST), peers=8)
    for _ in range(PERIOD):
        assert incast.announced == 8
        incast.ended(_ended(End.EARLY, 80))
    for _ in range(PERIOD):
        assert incast.announced == 4
        incast.ended(_ended(End.EARLY, lost))
    assert incast.announced == announced


def test_losses_that_incast_does_not_cause_are_tried_once_and_then_excused():
    """Every fifth stage loses 10 of 100, whatever is tried."""
    incast = Incast(Options(incast_up_after=1000, **LEAST), peers=8)
    seen = []
    for number in range(5 * PERIOD):
        incast.ended(_ended(End.EARLY, 10 if number % 5 == 0 else 0))
        seen.append(incast.announced)
    assert [count for count, _ in itertools.groupby(seen)] == [8, 4, 8]


def test_pacing_slows_down_for_long_round_trips_and_recovers():
    pacer = Pacer(Options(rate_start=1e8))
    pacer.sent(1_000_000, 5.0)
    assert pacer.next_s == pytest.approx(5.01)
    for _ in range(20):
        pacer.answered(0.1)
    slow = pacer.rate
    assert slow < 1e7
    for _ in range(20):
        pacer.answered(0.0001)
    assert pacer.rate > 2e8
    pacer.answered(-1.0)
    pacer.answered(4000.0)  # nonsense is ignored
    assert pacer.rate > 2e8


@pytest.mark.parametrize(
    "wrong",
    [{"datagram_bytes": 1473}, {"bound_percentile": 0}, {"hadamard": "maybe"}, {"incast": 0},
     {"hadamard_block": 1000}, {"warmup_steps": 0}, {"warmup_steps": 3}, {"skip_loss": 1.5}],
)  # fmt: skip
def test_options_out_of_range_are_refused(wrong):
    with pytest.raises(ArgumentError, match=next(iter(wrong)).replace("warmup", "(warmup|settle)")):
        Options(**wrong)
