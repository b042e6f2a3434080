"""Device programs: what is decided, against all interleavings of a machine that decides nothing."""

import json
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from typer.testing import CliRunner

from latecomer.verify.asynchronous.order import FlatProgram
from latecomer.verify.asynchronous.races import race_free as races
from latecomer.verify.cli import app
from latecomer.verify.core.verdict import Verdict
from latecomer.verify.device.check import check
from latecomer.verify.device.order import all_heard, one_operation, race_free
from latecomer.verify.device.program import DeviceProgram, device_program
from latecomer.verify.device.rows import slots_match
from latecomer.verify.device.unrolled import unrolled
from latecomer.verify.errors import ArgumentError
from tests.verify.builders import broken as broken_document
from tests.verify.builders import (
    direct,
    document,
    halving_doubling,
    recursive_doubling,
    ring,
    schedule_of,
    straggler,
)
from tests.verify.builders import moves as moves_of
from tests.verify.device.machine import COPY, PUT, Machine, explore, lowered, wanted

PROVED = Verdict.PROVED
REFUTED = Verdict.REFUTED


def program_of(rows, chunks, sets):
    arrays = tuple(np.array(rows_of_rank, np.int32).reshape(-1, 4) for rows_of_rank in rows)
    slots = max((int(array[:, 3].max()) + 1 for array in arrays if len(array)), default=0)
    return DeviceProgram(chunks, slots, sets, arrays)


def rows_of(program):
    return [rows.tolist() for rows in program.rows]


DOCUMENTS = {
    "pair": recursive_doubling(2),
    "ring 2": ring(2),
    "ring 3": ring(3),
    "direct 3": direct(3, 2),
    "straggler 3": straggler(3),
    "straggler 3, 4 chunks": straggler(3, blocks=2),
}
LARGE = {
    "doubling 4": recursive_doubling(4),
    "ring 4": ring(4),
    "straggler 4": straggler(4),
    "straggler 5": straggler(5),
}


@pytest.mark.parametrize(
    "doc", [ring(4), direct(5, 2), straggler(5), halving_doubling(8)], ids=["r", "d", "s", "h"]
)
def test_the_lowering_is_what_the_file_says(doc):
    assert rows_of(device_program(schedule_of(doc))) == lowered(json.dumps(doc))


@pytest.mark.parametrize("name", DOCUMENTS)
@pytest.mark.parametrize("sets", [1, 2])
def test_schedules_against_all_interleavings(name, sets):
    against_all_interleavings(DOCUMENTS[name], sets, operations=3)


@pytest.mark.long
@pytest.mark.parametrize("name", {**DOCUMENTS, **LARGE})
@pytest.mark.parametrize("sets", [1, 2, 4])
def test_more_schedules_against_all_interleavings(name, sets):
    against_all_interleavings({**DOCUMENTS, **LARGE}[name], sets, 3 if name in LARGE else 5)


def against_all_interleavings(doc, sets, operations):
    """Flags of 3 bits begin just below their wrap-around."""
    text = json.dumps(doc)
    schedule = schedule_of(doc)
    program = device_program(schedule, sets)
    machine = Machine([rows_of(program)] * operations, doc["chunks"], sets, first=6, bits=3)
    report = check(program, schedule)
    explored = explore(machine)
    assert not explored.stuck
    assert report.results["deadlock_free"].verdict is PROVED
    assert (report.results["race_free"].verdict is REFUTED) == explored.wrong_take
    assert not explored.deaf
    assert report.results["all_heard"].verdict is PROVED
    if not explored.wrong_take:
        assert report.verdict is PROVED
        assert explored.results == {wanted(machine, text, operations - 1)}


def test_one_set_is_refuted_by_a_run_that_happens():
    """The positions that are printed are reached, and the take finds what came too early."""
    schedule = schedule_of(straggler(4))
    program = device_program(schedule, sets=1)
    counterexample = check(program, schedule).counterexample
    assert counterexample.property == "race_free"
    steps = []
    for action in counterexample.actions:
        match = re.search(r"rank (\d+) kernel step (\d+): epoch (\d+)", action)
        if match:
            steps.append(tuple(map(int, match.groups())))
    (taker, take, old), (storer, store, new) = steps[:2]
    assert (old, new) == (1, 2)
    machine = Machine([rows_of(program)] * 2, 3, 1)
    rows = [len(rows_of_rank) for rows_of_rank in program.rows]
    ends = {rank: 2 * ((epoch - 1) * rows[rank] + step + 1) for rank, step, epoch in steps[2:]}
    assert ends[storer] == 2 * (rows[storer] + store + 1)
    state = machine.start()

    def able():
        return [r for r in ends if state.at[r] < ends[r] and machine.can(state, r)]

    while able():
        state, wrong = machine.go(state, able()[0])
        assert not wrong
    assert state.at == tuple(ends.get(rank, 0) for rank in range(4))
    while state.at[taker] <= 2 * take + 1:
        state, wrong = machine.go(state, taker)
    assert wrong


def star(root, leaves):
    """All to ``root``, one after another, and back."""
    moves = [f"{rank}+{root}:0" for rank in leaves] + [f"{root}={rank}:0" for rank in leaves]
    return document(3, 1, [("star", [], [moves_of(move) for move in moves])])


def test_programs_that_take_turns():
    """Two sets do, if each set has flags of its own: a slot is put into by one, then by another."""
    schedules = [schedule_of(star(0, (1, 2))), schedule_of(star(2, (1, 0)))]
    programs = [device_program(schedule) for schedule in schedules]
    for program, schedule in zip(programs, schedules, strict=True):
        assert check(program, schedule).verdict is PROVED
    turns = [rows_of(programs[epoch % 2]) for epoch in range(4)]
    explored = explore(Machine(turns, 1, 2, first=7, bits=3))
    assert not explored.wrong_take
    assert not explored.stuck
    assert len(explored.results) == 1
    assert explore(Machine(turns, 1, 2, shared_flags=True)).wrong_take
    assert explore(Machine(turns, 1, 1)).wrong_take


def test_a_flag_that_is_left_alone_for_half_of_all_numbers():
    """Slot 1 of rank 0 is used again after six operations; flags of 3 bits are then mistaken."""
    rounds = [moves_of(move) for move in ("2+1:0", "1+0:0", "0=1:0", "1=2:0")]
    chain = document(3, 1, [("chain", [], rounds)])
    rarely = lowered(json.dumps(star(0, (1, 2))))
    often = lowered(json.dumps(chain))
    turns = [rarely, *[often] * 5, rarely]
    assert not explore(Machine(turns, 1, 2, bits=4)).wrong_take
    assert explore(Machine(turns, 1, 2, bits=3)).wrong_take
    explored = explore(Machine(turns, 1, 2, bits=3, refresh=True))
    assert not explored.wrong_take
    assert not explored.stuck


def test_slots_have_no_gap():
    """The owner raises the flag of slot 1 itself, for it receives once; so nobody waits."""
    rows = [[[PUT, 1, 0, 1], [1, 1, 0, 0]], [[PUT, 0, 0, 0], [1, 0, 0, 1]]]
    schedule = schedule_of(recursive_doubling(2))
    counterexample = check(program_of(rows, 1, 2), schedule).counterexample
    assert counterexample.property == "slots_match"
    assert counterexample.found == "slot 1, whose flag the rank raises itself"
    assert explore(Machine([rows] * 2, 1, 2, refresh=True)).wrong_take
    without = []
    for rows_of_rank in rows:
        without.append([[action, peer, chunk, 0] for action, peer, chunk, _ in rows_of_rank])
    assert check(program_of(without, 1, 2), schedule).verdict is PROVED
    assert not explore(Machine([without] * 2, 1, 2, refresh=True)).wrong_take


def test_three_sets_come_out_of_turn():
    """Numbers 15 and 0 of four bits are in the same of three sets, one after the other."""
    program = device_program(schedule_of(straggler(3)), sets=3)
    with pytest.raises(ArgumentError, match="power of two"):
        check(program, schedule_of(straggler(3)))
    assert explore(Machine([rows_of(program)] * 3, 2, 3, first=14, bits=4)).wrong_take
    assert not explore(Machine([rows_of(program)] * 3, 2, 4, first=14, bits=4)).wrong_take


def test_the_flag_after_the_data_and_the_wait_before_it():
    program = device_program(schedule_of(recursive_doubling(2)))
    assert explore(Machine([rows_of(program)], 1, 2, flag_first=True)).wrong_take
    whole = unrolled(program, 2)

    def with_steps(change):
        blocks = []
        for block in whole.blocks:
            steps = []
            for step in block.steps:
                steps += change(step)
            blocks.append(replace(block, steps=tuple(steps)))
        return replace(whole, blocks=tuple(blocks))

    def flag_first(step):
        if not step.signals:
            return [step]
        return [replace(step, sources=(), targets=()), replace(step, signals=())]

    for change, verdict in (
        (lambda step: [step], PROVED),
        (flag_first, REFUTED),
        (lambda step: [replace(step, waits=())], REFUTED),
    ):
        result, _ = races(FlatProgram(with_steps(change)), None)
        assert result.verdict is verdict


def changed(rows, rank, number, **fields):
    """The rows with some fields of one row changed."""
    names = ("action", "peer", "chunk", "slot")
    rows = copy_of(rows)
    for name, value in fields.items():
        rows[rank][number][names.index(name)] = value
    return rows


def swapped(rows, rank, first, second):
    """The rows with two of one rank in each other's place."""
    rows = copy_of(rows)
    row = rows[rank][first]
    rows[rank][first] = rows[rank][second]
    rows[rank][second] = row
    return rows


def copy_of(rows):
    copy = []
    for rows_of_rank in rows:
        copy.append([list(row) for row in rows_of_rank])
    return copy


BASE = rows_of(device_program(schedule_of(straggler(3))))
"""Rank 0: put 0->1, add, put to 2, ...: see ``test_mutants``."""


def mutants():
    rows = BASE
    yield "nothing", rows, None
    yield "no wait", [rows[0][:1] + rows[0][2:], *rows[1:]], "slots_match"
    yield "put twice", [[*rows[0], rows[0][0]], *rows[1:]], "slots_match"
    yield "received twice", [[*rows[0], rows[0][1]], *rows[1:]], "slots_match"
    yield "wrong slot", changed(rows, 0, 0, slot=rows[0][0][3] + 1), "slots_match"
    yield "wrong peer", changed(rows, 0, 0, peer=2), "slots_match"
    yield "wrong sender", changed(rows, 0, 1, peer=3 - rows[0][1][1]), "slots_match"
    yield "to itself", changed(rows, 0, 0, peer=0), "slots_match"
    yield "no such peer", changed(rows, 0, 0, peer=3), "slots_match"
    yield "no such chunk", changed(rows, 0, 0, chunk=-1), "slots_match"
    yield "wrong chunk", changed(rows, 0, 0, chunk=rows[0][0][2] ^ 1), "slots_match"
    yield "no such action", changed(rows, 0, 0, action=3), "slots_match"
    yield "copied, not added", changed(rows, 0, 1, action=COPY), "same_sums"
    first_waits = swapped(swapped(rows, 0, 0, 1), 1, 0, 1)
    yield "both wait first", first_waits, "deadlock_free"
    puts = [number for number, row in enumerate(rows[0]) if row[0] == PUT]
    yield "put too early", swapped(rows, 0, puts[1] - 1, puts[1]), "same_sums"


@pytest.mark.parametrize(("name", "rows", "broken"), list(mutants()), ids=lambda x: str(x)[:20])
def test_mutants(name, rows, broken):
    doc = straggler(3)
    text = json.dumps(doc)
    schedule = schedule_of(doc)
    report = check(program_of(rows, 2, 2), schedule)
    assert report.verdict is (REFUTED if broken else PROVED)
    if broken:
        assert report.counterexample.property == broken
        assert report.counterexample.rank is not None
    if name in ("to itself", "no such peer", "no such chunk", "no such action"):
        return
    machine = Machine([rows] * 2, 2, 2)
    explored = explore(machine)
    right = explored.results == {wanted(machine, text, 1)}
    goes_wrong = explored.stuck or explored.wrong_take or not right
    assert goes_wrong or broken in (None, "slots_match")
    assert not goes_wrong or broken


@st.composite
def programs(draw):
    """Matched rows in any order: cycles, races and ranks that hear nothing are all frequent."""
    n = draw(st.integers(2, 3))
    moves = draw(
        st.lists(
            st.tuples(st.integers(0, n - 1), st.integers(1, n - 1), st.sampled_from([1, 2])),
            min_size=1,
            max_size=4 if n == 2 else 3,
        )
    )
    rows = [[] for _ in range(n)]
    slots = [0] * n
    for src, shift, action in moves:
        dst = (src + shift) % n
        rows[src].append([PUT, dst, 0, slots[dst]])
        rows[dst].append([action, src, 0, slots[dst]])
        slots[dst] += 1
    shuffled = [draw(st.permutations(rows_of_rank)) for rows_of_rank in rows]
    sets = draw(st.integers(1, 2))
    return shuffled, sets


def compared(drawn, beyond):
    """``beyond``: how many more operations all interleavings have than the checks unroll."""
    rows, sets = drawn
    program = program_of(rows, 1, sets)
    assert slots_match(program).verdict is PROVED
    operations = [rows] * (sets + 1 + beyond)
    if sets == 1:
        machine = Machine(operations, 1, sets, first=6, bits=3)
    else:
        machine = Machine(operations, 1, sets, first=7, bits=4)
    explored = explore(machine)
    free, run = one_operation(program)
    assert (free.verdict is REFUTED) == explored.stuck
    if free.verdict is PROVED:
        race = race_free(program).verdict is REFUTED
        assert race == explored.wrong_take
        heard = all_heard(program, run).verdict is PROVED
        assert heard == (not explored.deaf and all(rows))
        if heard and sets == 2:
            assert not race
    return explored


@settings(max_examples=100, deadline=None)
@given(programs())
def test_random_programs_against_all_interleavings(drawn):
    compared(drawn, beyond=0)


@pytest.mark.long
@settings(max_examples=3000, deadline=None)
@given(programs())
def test_more_operations_find_no_more(drawn):
    compared(drawn, beyond=2)


@st.composite
def edited(draw):
    """A right schedule, its rows with one or two edits, and a number of sets."""
    doc = draw(st.sampled_from([straggler(3), ring(3), star(0, (1, 2)), ring(2)]))
    rows = rows_of(device_program(schedule_of(doc)))
    for _ in range(draw(st.integers(1, 2))):
        row_list = rows[draw(st.integers(0, doc["ranks"] - 1))]
        index = draw(st.integers(0, len(row_list) - 1))
        edit = draw(st.sampled_from(["swap", "drop", "double", "action", "peer", "chunk", "slot"]))
        if edit == "swap":
            partner = draw(st.integers(0, len(row_list) - 1))
            row = row_list[index]
            row_list[index] = row_list[partner]
            row_list[partner] = row
        elif edit == "drop" and len(row_list) > 1:
            del row_list[index]
        elif edit == "double":
            row_list.insert(draw(st.integers(0, len(row_list))), list(row_list[index]))
        else:
            field = {"action": 0, "peer": 1, "chunk": 2}.get(edit, 3)
            slots = 1 + max(slot for _, _, _, slot in row_list)
            limit = (3, doc["ranks"], doc["chunks"], slots)[field]
            row_list[index][field] = draw(st.integers(0, limit - 1))
    return doc, rows, draw(st.integers(1, 2))


def judged(drawn):
    doc, rows, sets = drawn
    report = check(program_of(rows, doc["chunks"], sets), schedule_of(doc))
    machine = Machine([rows] * (sets + 1), doc["chunks"], sets, first=7, bits=4, refresh=True)
    explored = explore(machine)
    right = explored.results == {wanted(machine, json.dumps(doc), sets)}
    goes_wrong = explored.stuck or explored.wrong_take or not right
    assert not (goes_wrong and report.verdict is PROVED)
    if report.results["slots_match"].verdict is PROVED:
        assert goes_wrong == (report.verdict is REFUTED)


@settings(max_examples=60, deadline=None)
@given(edited())
def test_edited_programs_against_all_interleavings(drawn):
    judged(drawn)


@pytest.mark.long
@settings(max_examples=3000, deadline=None)
@given(edited())
def test_more_edited_programs(drawn):
    judged(drawn)


@pytest.mark.parametrize("n", [8, 16])
def test_many_ranks(n):
    for doc in (ring(n), straggler(n)):
        schedule = schedule_of(doc)
        assert check(device_program(schedule), schedule).verdict is PROVED


def test_a_program_for_another_schedule():
    report = check(device_program(schedule_of(ring(3))), schedule_of(ring(4)))
    assert report.counterexample.property == "same_sums"


def test_the_command(tmp_path):
    path = tmp_path / "schedule.json"
    path.write_text(json.dumps(straggler(4)))

    def verify(*arguments):
        return CliRunner().invoke(app, [str(path), *arguments])

    assert verify("--device", "2").exit_code == 0
    one_set = verify("--device", "1")
    assert one_set.exit_code == 1
    assert "is overwritten before it is read" in one_set.stdout
    facts = json.loads(verify("--device", "1", "--json").stdout)
    assert facts["verdict"] == "proved"
    assert facts["device"]["properties"]["race_free"] == "refuted"
    for sets in ("0", "3", "32"):
        assert isinstance(verify("--device", sets).exception, ArgumentError)
    path.write_text(json.dumps(broken_document(straggler(4))))
    assert "not examined" in verify("--device", "2").stdout
