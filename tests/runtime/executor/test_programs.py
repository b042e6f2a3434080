"""Programs: every transfer once at each end, in order; byte by byte the result of the rounds."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.executor.closed_form import ClosedFormPart
from runtime.executor.program import rank_program
from synth.straggler.generate import generate
from tests.runtime import schedules

ALL = [
    schedules.ring(4),
    schedules.direct(4),
    schedules.straggler(5),
    schedules.straggler(4, m=3),
    schedules.swapping(),
]


@pytest.mark.parametrize("schedule", ALL)
def test_every_transfer_has_its_two_ends_in_the_order_of_rounds_and_scratch_if_needed(schedule):
    found = {True: [], False: []}
    for rank in range(schedule.ranks):
        program = rank_program(schedule, rank)
        names = [phase.name for phase in schedule.phases]
        places = [(names.index(name), round) for name, round in program.steps]
        assert places == [
            (p, t)
            for p, phase in enumerate(schedule.phases)
            for t, transfers in enumerate(phase.rounds)
            if any(rank in (x.src, x.dst) for x in transfers)
        ]
        sent = {(end.step, end.chunk) for end in program.ends if end.send}
        for end in program.ends:
            in_use = end.reduce or (end.step, end.chunk) in sent
            assert end.scratch == (not end.send and in_use)  # what can't land in place
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


@pytest.mark.parametrize(("n", "k"), [(3, 1), (6, 3), (8, 5)])
def test_the_closed_forms_parts_are_those_of_the_proved_schedule_whoever_is_late(n, k):
    forms = [ClosedFormPart(n, rank, k) for rank in range(n)]
    for late in range(n):
        whole = generate(n, late=late, chunks=k, owners="free")
        found = {True: set(), False: set()}
        for rank, form in enumerate(forms):
            own = form.program(rank, (late,))
            other = rank_program(whole, rank)
            same = [replace(a, index=b.index) for a, b in zip(own.ends, other.ends, strict=True)]
            assert (same, len(own.at)) == ([*other.ends], len(own.ends))
            for end in own.ends:  # a transfer has the same index at both ends
                pair = (rank, end.peer) if end.send else (end.peer, rank)
                found[end.send].add((end.index, *pair, end.chunk))
        assert found[True] == found[False]


def _byte_by_byte(schedule, dice):
    """The same for two bytes of each chunk, while one byte moves at a time, in any order."""
    programs = [rank_program(schedule, rank) for rank in range(schedule.ranks)]
    done = [[0] * len(program.ends) for program in programs]
    wire = {}  # (transfer, byte) -> what travels
    places = itertools.product(range(schedule.ranks), range(schedule.chunks), (0, 1))
    state = {place: f"{place[0]}" for place in places}
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
    places = itertools.product(range(schedule.ranks), range(schedule.chunks))
    start = {place: f"{place[0]}" for place in places}
    expected = schedules.by_rounds(schedule, start, "({}+{})".format)
    for (rank, chunk, _), value in _byte_by_byte(schedule, dice).items():
        assert value == expected[rank, chunk]
