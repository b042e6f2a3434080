"""Programs: every transfer once at each end, in order; byte by byte the result of the rounds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.executor.program import rank_program
from tests.runtime import schedules

ALL = [
    schedules.ring(4),
    schedules.direct(4),
    schedules.straggler(5),
    schedules.straggler(4, m=3),
    schedules.swapping(),
]


@pytest.mark.parametrize("schedule", ALL)
def test_every_transfer_has_its_two_ends_in_the_order_of_rounds(schedule):
    found = {True: [], False: []}
    for rank in range(schedule.ranks):
        program = rank_program(schedule, rank)
        names = [phase.name for phase in schedule.phases]
        places = [(names.index(name), round) for name, round in program.steps]
        assert places == sorted(set(places))
        for end in program.ends:
            phase, round = places[end.step]
            assert phase == end.phase
            assert rank not in schedule.phases[phase].absent
            src, dst = (rank, end.peer) if end.send else (end.peer, rank)
            transfers = schedule.phases[phase].rounds[round]
            op = "reduce" if end.reduce else "copy"
            planned = {(t.src, t.dst, t.chunk, end.send or t.op) for t in transfers}
            assert (src, dst, end.chunk, end.send or op) in planned
            found[end.send].append((end.index, src, dst, end.chunk))
    table = schedule.table
    columns = range(len(table)), table.src.tolist(), table.dst.tolist(), table.chunk.tolist()
    expected = list(zip(*columns, strict=True))
    assert sorted(found[True]) == sorted(found[False]) == expected


@pytest.mark.parametrize("schedule", ALL)
def test_scratch_is_for_what_can_not_land_in_place(schedule):
    for rank in range(schedule.ranks):
        ends = rank_program(schedule, rank).ends
        sent = {(end.step, end.chunk) for end in ends if end.send}
        for end in ends:
            in_use = end.reduce or (end.step, end.chunk) in sent
            assert end.scratch == (not end.send and in_use)


def test_absent_rank_has_no_steps():
    program = rank_program(schedules.straggler(5), 4)
    assert program.steps == tuple(("completion", round) for round in range(4))


def _by_rounds(schedule):
    """What each rank ends with for each chunk, as text: rounds with a barrier after each."""
    places = [(r, c) for r in range(schedule.ranks) for c in range(schedule.chunks)]
    state = {(rank, chunk): f"{rank}" for rank, chunk in places}
    for phase in schedule.phases:
        for transfers in phase.rounds:
            before = dict(state)
            for t in transfers:
                come, own = before[t.src, t.chunk], state[t.dst, t.chunk]
                state[t.dst, t.chunk] = f"({own}+{come})" if t.op == "reduce" else come
    return state


def _byte_by_byte(schedule, dice):
    """The same for two bytes of each chunk, while one byte moves at a time, in any order."""
    programs = [rank_program(schedule, rank) for rank in range(schedule.ranks)]
    done = [[0] * len(program.ends) for program in programs]
    wire = {}  # (transfer, byte) -> what travels
    state = {
        (rank, chunk, byte): text
        for (rank, chunk), text in _by_rounds(schedule).items()
        for byte in (0, 1)
        for text in [f"{rank}"]
    }
    while True:
        may = []
        for rank, program in enumerate(programs):
            for i, end in enumerate(program.ends):
                byte = done[rank][i]
                free = byte < min([2, *(done[rank][j] for j in end.after)])
                if free and (end.send or (end.index, byte) in wire):
                    may.append((rank, i, byte))
        if not may:
            break
        rank, i, byte = dice.choice(may)
        end = programs[rank].ends[i]
        place = rank, end.chunk, byte
        if end.send:
            wire[end.index, byte] = state[place]
        else:
            come = wire[end.index, byte]
            state[place] = f"({state[place]}+{come})" if end.reduce else come
        done[rank][i] += 1
    assert all(count == 2 for counts in done for count in counts)  # nothing is stuck
    return state


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(ALL), st.randoms(use_true_random=False))
def test_transfers_in_any_order_form_the_sums_of_the_rounds(schedule, dice):
    expected = _by_rounds(schedule)
    for (rank, chunk, _), value in _byte_by_byte(schedule, dice).items():
        assert value == expected[rank, chunk]
