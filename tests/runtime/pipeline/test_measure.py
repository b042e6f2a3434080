"""Link times and durations from records, whatever the clocks; which changes count."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latecomer.runtime.pipeline.detector import Sensitivity, Watched, judge
from latecomer.runtime.pipeline.transport import due_s
from latecomer.verify.errors import ArgumentError
from latecomer.verify.pipeline import Action, Link, measured
from latecomer.verify.pipeline.measured import Span, StepRecord, StepReport, Transit
from tests.runtime.pipeline.test_gradients import schedule
from tests.verify.pipeline.documents import one_f_one_b, zero_bubble

MS = 1e-3


def _direction(ready_s, latency_s, occupancy_s, offset_s, dice):
    """(ready, arrived) as a link gives them; the receiver's clock is ahead by ``offset_s``.

    The receiver's thread is up to 0.05 ms late.
    """
    free_s = float("-inf")
    pairs = []
    for message_s in ready_s:
        arrived_s, free_s = due_s(message_s, free_s, (latency_s, occupancy_s))
        pairs.append((message_s, arrived_s + offset_s + dice.uniform(0, 0.05 * MS)))
    return pairs


@settings(max_examples=60, deadline=None)
@given(
    latency=st.floats(0, 80),
    occupancy=st.sampled_from([0, 0, 3, 7, 20]),
    offset=st.floats(-1000, 1000),
    gap=st.floats(1, 30),
    seed=st.integers(0, 999),
)
def test_a_link_is_measured_without_common_clocks(latency, occupancy, offset, gap, seed):
    dice = random.Random(seed)
    latency_s = latency * MS
    occupancy_s = occupancy * MS

    # bursts, then pauses: so that messages wait in line if the link is held for long
    ready_s = []
    now_s = 50.0
    for _ in range(12):
        now_s += gap * dice.choice([0.2, 0.5, 1, 3]) * MS
        ready_s.append(now_s)
    ready_at_peer_s = [message_s + offset for message_s in ready_s]
    to_peer = _direction(ready_s, latency_s, occupancy_s, offset, dice)
    from_peer = _direction(ready_at_peer_s, latency_s, occupancy_s, -offset, dice)
    durations = {("F", 0): 1.0}
    reports = {
        0: StepReport(0, "", durations, {1: measured.fit(from_peer)}),
        1: StepReport(0, "", durations, {0: measured.fit(to_peer)}),
    }

    link = measured.links(reports)[0, 1]

    # how much of it is occupancy can be seen only where messages had to wait for each other
    tolerance_s = max(2.5, occupancy) * MS
    assert link.total_s == pytest.approx((latency + occupancy) * MS, abs=tolerance_s)
    assert link.offset_s == pytest.approx(offset, abs=max(1, occupancy / 2 + 0.1) * MS)
    assert measured.clock_offsets({(0, 1): link}, 3) == {0: 0.0, 1: link.offset_s, 2: 0.0}


def test_occupancy_is_told_from_latency_and_a_few_late_threads_do_no_harm():
    dice = random.Random(1)
    ready_s = [number * 10 * MS for number in range(12)]
    held = measured.fit(_direction(ready_s, 0, 20 * MS, 0, dice))
    assert held.occupancy_s == pytest.approx(20 * MS, abs=1.5 * MS)
    assert held.latency_s == pytest.approx(0, abs=2 * MS)

    pairs = _direction(ready_s, 4 * MS, 0, 0, dice)
    for number, late_s in ((3, 90 * MS), (7, 40 * MS)):
        sent_s, arrived_s = pairs[number]
        pairs[number] = (sent_s, arrived_s + late_s)
    free = measured.fit(pairs)
    assert free.occupancy_s == 0
    assert free.latency_s == pytest.approx(4 * MS, abs=0.2 * MS)


DURATIONS_MS = {"F": 8, "I": 10, "W": 5, "B": 15}


def _record(kinds, rank):
    """A step of five microbatches, one a second; the third takes 40 ms longer."""
    spans = []
    for kind in kinds:
        for microbatch in range(5):
            duration_ms = DURATIONS_MS[kind] + (40 if microbatch == 2 else 0)
            end_s = microbatch + duration_ms * MS
            spans.append(Span(Action(rank, kind, microbatch), microbatch, end_s))

    transits = []
    for peer in {rank - 1, rank + 1} & {0, 1, 2}:
        ahead_s = peer - rank  # the peer's clock, of ours
        for microbatch in range(5):
            receive = Action(rank, "RECV_F", microbatch)
            transits.append(Transit(receive, peer, microbatch + ahead_s, microbatch + 3 * MS))
    return StepRecord(7, "d", 0.0, 1.0, spans, transits)


def test_an_instance_in_microseconds():
    for programs, kinds in ((zero_bubble(3, 5), "FIW"), (one_f_one_b(3, 5), "FB")):
        plan = schedule(programs)
        reports = {rank: _record(kinds, rank).report() for rank in range(3)}

        times = measured.links(reports)
        instance = measured.measured_instance(plan, reports)

        assert set(times) == {(0, 1), (1, 2)}
        assert instance.forward == (8000,) * 3
        # the fused backward is divided as the file says, 10 to 5
        assert instance.backward == (10000,) * 3
        assert instance.weight == (5000,) * 3
        assert instance.links == (Link((0, 1), 3000, 0), Link((1, 2), 3000, 0))
        offsets_s = measured.clock_offsets(times, 3)
        assert {rank: round(offset_s) for rank, offset_s in offsets_s.items()} == {0: 0, 1: 1, 2: 2}


def _changes(times_ms, confirm=2):
    """What has changed by each step, where every change is accepted."""
    watched = Watched()
    changes = []
    for time_ms in times_ms:
        watched, change = judge(watched, time_ms * MS, 4 * MS, confirm)
        if change:
            watched = Watched(time_ms * MS)
        changes.append(change.split(":")[0])
    return changes


N = ""  # nothing
S = "became slow"
R = "recovered"


@pytest.mark.parametrize(
    ("times_ms", "changes"),
    [
        ([1, 1, 3, 0, 4, 2, 1], [N] * 7),  # noise
        ([1, 1, 30, 1, 30, 1, 1], [N] * 7),  # single outliers
        ([1, 1, 30, 31, 30, 29], [N, N, N, S, N, N]),
        ([30, 30, 1, 1, 1], [N, N, N, R, N]),
        ([1, 30, 30, 60, 60, 1, 1], [N, N, S, N, S, N, R]),
        ([1, 6, 4, 6, 4, 4], [N, N, N, S, N, N]),  # in between, the count stands
        ([1, 6, 2, 6, 2, 6], [N] * 6),  # back to normal, it starts again
        ([10, 16, 4, 16, 4, 10], [N] * 6),  # in both directions
    ],
)
def test_which_changes_count(times_ms, changes):
    assert _changes(times_ms) == changes


def test_confirmation_and_tolerance():
    assert _changes([1, 30, 30, 30], confirm=3) == [N, N, N, S]
    assert _changes([1, 30], confirm=1) == [N, S]
    _, change = judge(Watched(0.001, 1, 1), 0.031, 0.004, 2)
    assert change == "became slow: 31 ms instead of 1 ms (tolerance 4 ms), 2 steps in a row"

    sensitivity = Sensitivity(share=0.25, noises=6, least_s=0.5 * MS)
    assert sensitivity.tolerance_s(40 * MS, 0.1 * MS) == pytest.approx(10 * MS)
    assert sensitivity.tolerance_s(1 * MS, 2 * MS) == pytest.approx(12 * MS)
    assert sensitivity.tolerance_s(1 * MS, 0) == pytest.approx(0.5 * MS)
    for wrong in ({"share": 0.0}, {"confirm": 0}, {"least_s": -1.0}):
        with pytest.raises(ArgumentError):
            Sensitivity(**wrong)
