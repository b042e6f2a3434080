"""Programs: every transfer once at each end, in order; byte by byte the result of the rounds."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latecomer.runtime.executor.closed_form import ClosedFormPart
from latecomer.runtime.executor.program import rank_program
from latecomer.synth.straggler.generate import generate
from latecomer.verify import Transfer
from tests.runtime import schedules

ALL = [
    schedules.ring(4),
    schedules.direct(4),
    schedules.straggler(5),
    schedules.straggler(4, m=3),
    schedules.swapping(),
]


def _rounds_of(schedule, rank):
    """(phase, round), counted from 0, of all rounds in which the rank sends or receives."""
    rounds = []
    for phase_number, phase in enumerate(schedule.phases):
        for round_number, transfers in enumerate(phase.rounds):
            if any(rank in (transfer.src, transfer.dst) for transfer in transfers):
                rounds.append((phase_number, round_number))
    return rounds


def _src_and_dst(rank, end):
    return (rank, end.peer) if end.send else (end.peer, rank)


@pytest.mark.parametrize("schedule", ALL)
def test_every_transfer_has_its_two_ends_in_the_order_of_rounds_and_scratch_if_needed(schedule):
    phase_names = [phase.name for phase in schedule.phases]
    sends = []
    receives = []
    for rank in range(schedule.ranks):
        program = rank_program(schedule, rank)
        steps = [(phase_names.index(name), round) for name, round in program.steps]
        assert steps == _rounds_of(schedule, rank)

        sent = {(end.step, end.chunk) for end in program.ends if end.send}
        for end in program.ends:
            in_use = end.reduce or (end.step, end.chunk) in sent
            assert end.scratch == (not end.send and in_use)  # what can't land in place

            phase, round = steps[end.step]
            assert phase == end.phase
            assert rank not in schedule.phases[phase].absent

            src, dst = _src_and_dst(rank, end)
            transfers = schedule.phases[phase].rounds[round]
            if end.send:  # whether its receiver adds or copies does not matter to it
                chunks = [t.chunk for t in transfers if (t.src, t.dst) == (src, dst)]
                assert end.chunk in chunks
            else:
                op = "reduce" if end.reduce else "copy"
                assert Transfer(src, dst, end.chunk, op) in transfers

            ends = sends if end.send else receives
            ends.append((end.index, src, dst, end.chunk))

    table = schedule.table
    expected = list(
        zip(
            range(len(table)),
            table.src.tolist(),
            table.dst.tolist(),
            table.chunk.tolist(),
            strict=True,
        )
    )
    assert sorted(sends) == expected
    assert sorted(receives) == expected


@pytest.mark.parametrize(("n", "k"), [(3, 1), (6, 3), (8, 5)])
def test_the_closed_forms_parts_are_those_of_the_proved_schedule_whoever_is_late(n, k):
    forms = [ClosedFormPart(n, rank, k) for rank in range(n)]
    for late in range(n):
        whole = generate(n, late=late, chunks=k, owners="free")
        sends = set()
        receives = set()
        for rank, form in enumerate(forms):
            part = form.program(rank, (late,))
            proved = rank_program(whole, rank)

            # the same ends but for their indices, of which a part has its own
            assert len(part.at) == len(part.ends)
            for end, proved_end in zip(part.ends, proved.ends, strict=True):
                assert replace(end, index=proved_end.index) == proved_end

            for end in part.ends:
                ends = sends if end.send else receives
                ends.add((end.index, *_src_and_dst(rank, end), end.chunk))

        # a transfer has the same index at both ends
        assert sends == receives


def _byte_by_byte(schedule, dice):
    """What all ranks end with, by (rank, chunk, byte), for two bytes of each chunk.

    One byte moves at a time, in any order.
    """
    programs = [rank_program(schedule, rank) for rank in range(schedule.ranks)]
    done = [[0] * len(program.ends) for program in programs]  # bytes, by rank and end
    wire = {}  # (transfer, byte) -> what travels
    keys = itertools.product(range(schedule.ranks), range(schedule.chunks), (0, 1))
    state = {(rank, chunk, byte): f"{rank}" for rank, chunk, byte in keys}
    while movable := _movable(programs, done, wire):
        rank, i, byte = dice.choice(movable)
        end = programs[rank].ends[i]
        key = rank, end.chunk, byte
        if end.send:
            wire[end.index, byte] = state[key]
        else:
            received = wire[end.index, byte]
            state[key] = f"({state[key]}+{received})" if end.reduce else received
        done[rank][i] += 1

    for counts in done:
        assert counts == [2] * len(counts)  # nothing is stuck
    return state


def _movable(programs, done, wire):
    """(rank, end, byte) of all bytes that may move next."""
    movable = []
    for rank, program in enumerate(programs):
        for i, end in enumerate(program.ends):
            byte = done[rank][i]
            # not before all that stand before it have moved as many bytes
            allowed = min([2, *(done[rank][earlier] for earlier in end.after)])
            if byte < allowed and (end.send or (end.index, byte) in wire):
                movable.append((rank, i, byte))
    return movable


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(ALL), st.randoms(use_true_random=False))
def test_transfers_in_any_order_form_the_sums_of_the_rounds(schedule, dice):
    keys = itertools.product(range(schedule.ranks), range(schedule.chunks))
    start = {(rank, chunk): f"{rank}" for rank, chunk in keys}

    expected = schedules.by_rounds(schedule, start, "({}+{})".format)

    for (rank, chunk, _), value in _byte_by_byte(schedule, dice).items():
        assert value == expected[rank, chunk]
