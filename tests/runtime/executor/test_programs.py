"""Plans: every transfer once on each side, in order; moves: the rounds' result in any order."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.executor.program import plan
from runtime.executor.tcp.ends import rank_program
from tests.runtime import schedules

ALL = [
    schedules.ring(4),
    schedules.direct(4),
    schedules.straggler(5),
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
def test_scratch_is_for_what_can_not_land_in_place(schedule):
    for rank in range(schedule.ranks):
        for phase in plan(schedule, rank):
            for step in phase.steps:
                sent = {send.chunk for send in step.sends}
                for receive in step.receives:
                    assert receive.scratch == (receive.reduce or receive.chunk in sent)


def test_absent_rank_has_no_steps():
    first, second = plan(schedules.straggler(5), 4)
    assert first.steps == ()
    assert [step.round for step in second.steps] == [0, 1, 2, 3]


def _by_rounds(schedule):
    """What each rank ends with for each chunk, as text: rounds with a barrier after each."""
    state = {
        (rank, chunk): f"{rank}"
        for rank in range(schedule.ranks)
        for chunk in range(schedule.chunks)
    }
    for phase in schedule.phases:
        for transfers in phase.rounds:
            before = dict(state)
            for t in transfers:
                come, own = before[t.src, t.chunk], state[t.dst, t.chunk]
                state[t.dst, t.chunk] = f"({own}+{come})" if t.op == "reduce" else come
    return state


def _by_moves(schedule, dice):
    """The same for two bytes of each chunk, with one move of one byte at a time, in any order."""
    ranks = range(schedule.ranks)
    plans = [rank_program(plan(schedule, rank)) for rank in ranks]
    done = [[0] * len(p.ends) for p in plans]
    wire = {}  # (transfer, byte) -> what travels
    state = {
        (rank, chunk, byte): f"{rank}"
        for rank in ranks
        for chunk in range(schedule.chunks)
        for byte in (0, 1)
    }
    while True:
        may = []
        for rank in ranks:
            for i, move in enumerate(plans[rank].ends):
                byte = done[rank][i]
                free = byte < min([2, *(done[rank][j] for j in move.after)])
                if free and (move.send or (move.index, byte) in wire):
                    may.append((rank, i, byte))
        if not may:
            break
        rank, i, byte = dice.choice(may)
        move = plans[rank].ends[i]
        place = rank, move.chunk, byte
        if move.send:
            wire[move.index, byte] = state[place]
        else:
            come = wire[move.index, byte]
            state[place] = f"({state[place]}+{come})" if move.reduce else come
        done[rank][i] += 1
    assert all(count == 2 for counts in done for count in counts)  # nothing is stuck
    return state


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(ALL), st.randoms(use_true_random=False))
def test_moves_in_any_order_form_the_sums_of_the_rounds(schedule, dice):
    expected = _by_rounds(schedule)
    for (rank, chunk, _), value in _by_moves(schedule, dice).items():
        assert value == expected[rank, chunk]
