"""The shipped kernel, instruction by instruction: all builds, all families, adversaries by seed.

Each run compares what every block did with the rows that ``verify --device`` proves, and every
element with an oracle. ``make hunt-gpu`` runs ten thousand seeds.
"""

from __future__ import annotations

import functools

import pytest

from latecomer.verify.device.program import DeviceAction, DeviceProgram
from tests.runtime.device.ptx.adversary import Adversary
from tests.runtime.device.ptx.allreduce import AllReduces, Case, Operation, shipped
from tests.runtime.device.ptx.battery import DIRECT, LATE, RING
from tests.runtime.device.ptx.builds import ALL_BUILDS
from tests.runtime.device.ptx.plan import Tally, drawn, execute, schedules
from tests.runtime.device.ptx.regions import Wrong
from tests.runtime.device.ptx.rows import expected_rows, rows_of
from tests.runtime.device.ptx.validation import check

SEEDS = 240
PARTS = 8


def run(case, arch=90, seed=0, stops=None, units=1):
    runs = AllReduces(case, functools.partial(shipped, arch), units)
    Adversary(seed, stops).run(runs.machine)
    return runs, check(runs)


def test_one_all_reduce():
    operation = Operation(LATE, "fp32", False, 301)
    runs, (rows, given_up) = run(Case(3, 2, 1 << 13, 1, (operation,)))
    assert rows == 2 * sum(len(rows) for rows in runs.programs[0].rows)
    assert given_up == 0


def other_row(runs):
    runs.programs[0].rows[1][0, 2] = 1  # another chunk


def other_action(runs):
    runs.programs[0].rows[1][-1, 0] = DeviceAction.REDUCE


def other_result(runs):
    runs.memory.bytes[runs.own[0, 1].start] ^= 1


def other_stamp(runs):
    runs.marks[0] = 5


def lost_store(runs):
    events = runs.blocks_of(0, 2)[0].events
    last = max(i for i, event in enumerate(events) if event.what == "store")
    del events[last]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (other_row, "row 0 is"),
        (other_action, r"row \d+ is"),
        (other_result, "wrong bits"),
        (other_stamp, "stamps"),
        (lost_store, "whole|row"),
    ],
)
def test_what_is_compared_can_differ(change, problem):
    runs, _ = run(Case(3, 1, 1 << 13, 1, (Operation(LATE, "fp32", False, 301),)))
    runs.programs = [copied(program) for program in runs.programs]
    check(runs)
    change(runs)
    with pytest.raises(Wrong, match=problem):
        check(runs)


def copied(program):
    """A device program whose rows may be changed."""
    rows = tuple(rows.copy() for rows in program.rows)
    return DeviceProgram(program.chunks, program.slots, program.sets, rows)


def test_rows_are_read_off_without_the_programs_rows():
    runs, _ = run(Case(2, 1, 1 << 12, 1, (Operation(RING, "fp16", True, 70),)))
    expected = expected_rows(runs, 0, 1, 0)
    program = runs.programs[0]
    runs.programs = [DeviceProgram(program.chunks, program.slots, program.sets, ())]
    found = rows_of(runs, 0, 1, runs.blocks_of(0, 1)[0])
    assert [(row.action, row.chunk, row.slot, row.count) for row in found.rows] == [
        (row.action, row.chunk, row.slot, row.count) for row in expected.rows
    ]
    assert found.averaged == 70


def test_a_stopped_rank_ends_and_so_do_the_others():
    operations = (Operation(DIRECT, "bf16", False, 64), Operation(LATE, "fp32", False, 64))
    ended = set()
    for at in range(1, 120, 7):
        _, (_, given_up) = run(Case(3, 1, 1 << 13, 1, operations), seed=at, stops={1: at})
        ended.add(given_up)
    assert len(ended) > 2  # at very different moments


@pytest.mark.gpu_logic
@pytest.mark.parametrize("ranks", range(2, 9))
def test_all_families_and_builds(ranks, record_property):
    """Each family, with every build in turn, slices with and without a tail."""
    builds = 0
    for number, family in enumerate(schedules(ranks)):
        for turn in range(2):
            which = (7 * ranks + 2 * number + turn) * 5 % len(ALL_BUILDS)
            for arch, dtype, average in (ALL_BUILDS[which], ALL_BUILDS[(which + 9) % 27]):
                numel = 16 * family[0].chunks * 2 + (0, 5)[turn]
                case = Case(ranks, 2, 1 << 18, 1, (Operation(family[turn], dtype, average, numel),))
                run(case, arch, seed=number)
                builds += 1
    record_property("ptx interleavings", builds)
    record_property("ptx programs", len(schedules(ranks)) * 2)


@pytest.mark.gpu_logic
@pytest.mark.parametrize("build", ALL_BUILDS, ids=str)
def test_each_build_with_tiles_tails_and_pieces(build, record_property):
    arch, dtype, average = build
    sizes = (5 * 4096 + 19, 16, 0, 15)
    operations = tuple(Operation(RING, dtype, average, numel) for numel in sizes)
    run(Case(2, 1, 1 << 20, 2**31 - 2, operations, calibrated=True), arch)
    operations = (Operation(LATE, dtype, average, 2501), Operation(DIRECT, dtype, average, 77))
    runs, _ = run(Case(3, 2, 1 << 13, -2, operations), arch)
    assert runs.cuts[0].pieces > 1
    record_property("ptx interleavings", 2)


@pytest.mark.gpu_logic
@pytest.mark.parametrize("part", range(PARTS))
def test_seeds(part, record_property):
    total = Tally()
    programs = set()
    for seed in range(part, SEEDS, PARTS):
        plan = drawn(seed)
        try:
            total.add(execute(plan))
        except Wrong as error:
            pytest.fail(f"seed {seed}: {error}")
        programs |= {id(operation.schedule) for operation in plan.case.operations}
    assert total.stopped
    assert total.old
    record_property("ptx interleavings", total.runs)
    record_property("ptx programs", len(programs))
    record_property("ptx rows compared", total.rows)
