"""Plans: every transfer once on each side, in order, and no receive posted onto live data."""

from __future__ import annotations

import pytest

from runtime.plan import AHEAD_IN_PLACE, AHEAD_SCRATCH, plan
from tests.runtime import schedules

ALL = [
    schedules.ring(5),
    schedules.direct(4),
    schedules.straggler(6),
    schedules.straggler(4, m=3),
    schedules.swapping(),
]


@pytest.mark.parametrize("schedule", ALL)
def test_every_transfer_is_planned_once_at_each_end(schedule):
    sent, received = [], []
    for rank in range(schedule.ranks):
        for phase, source in zip(plan(schedule, rank), schedule.phases, strict=True):
            rounds = [step.round for step in phase.steps]
            assert rounds == sorted(set(rounds))
            assert rank not in source.absent or not phase.steps
            for step in phase.steps:
                for send in step.sends:
                    sent.append((send.index, rank, send.peer, send.chunk))
                    assert source.rounds[step.round]
                for receive in step.receives:
                    received.append((receive.index, receive.peer, rank, receive.chunk))
    table = schedule.table
    expected = [
        (i, int(table.src[i]), int(table.dst[i]), int(table.chunk[i])) for i in range(len(table))
    ]
    assert sorted(sent) == expected
    assert sorted(received) == expected


@pytest.mark.parametrize("schedule", ALL)
def test_early_receives_never_land_on_data_still_in_use(schedule):
    early = 0
    for rank in range(schedule.ranks):
        for phase in plan(schedule, rank):
            posted = [r for posts in phase.posts for r in posts]
            assert sorted(r.index for r in posted) == sorted(
                r.index for step in phase.steps for r in step.receives
            )
            for number, step in enumerate(phase.steps):
                sent = {send.chunk for send in step.sends}
                for receive in step.receives:
                    ahead = number - receive.post_at
                    assert 0 <= ahead <= (AHEAD_SCRATCH if receive.scratch else AHEAD_IN_PLACE)
                    early += ahead > 0
                    if receive.scratch:
                        assert receive.reduce or receive.chunk in sent
                        continue
                    for other in phase.steps[receive.post_at : number + 1]:
                        used = {s.chunk for s in other.sends}
                        used |= {r.chunk for r in other.receives if r.index != receive.index}
                        assert receive.chunk not in used
    assert early or schedule.rounds < 4


def test_absent_rank_has_no_steps():
    first, second = plan(schedules.straggler(5), 4)
    assert first.steps == ()
    assert [step.round for step in second.steps] == [0, 1, 2, 3]
