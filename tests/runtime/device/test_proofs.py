"""What kernels are launched with is proved before, once for each structure; else it is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from latecomer.runtime.device import proofs
from latecomer.runtime.device.allreduce import _rows, _slots
from latecomer.runtime.device.proofs import ProvedPrograms, require_proved, rows_of, too_long
from latecomer.runtime.device.stages import ProvedStages, unfit_for_stages
from latecomer.runtime.executor.closed_form import ClosedFormPart
from latecomer.runtime.executor.load import load
from latecomer.synth import generate
from latecomer.verify.device.program import DeviceAction, device_program
from latecomer.verify.errors import ScheduleRefused
from tests.runtime.device.machines import hierarchical, in_stages, mixed
from tests.runtime.schedules import arrivals, direct, ring, straggler


@pytest.mark.parametrize("schedule", [straggler(5, 2), generate(6, chunks=4)], ids=["m 2", "k 4"])
def test_one_check_serves_every_late_rank(schedule):
    verified = load(schedule)
    programs = ProvedPrograms(verified)
    n = schedule.ranks
    for late in (3, n - 1, 0, *range(n)):
        program = programs.program((late,))
        expected = device_program(verified.for_late(late))
        assert all(map(np.array_equal, program.rows, expected.rows))
    assert programs.checks == 1


def test_several_late_ranks_and_none():
    verified = load(arrivals(4, {2: 1, 3: 3}))
    programs = ProvedPrograms(verified)
    for late in ((2, 3), (0, 1), (3, 2), (1, 3)):
        programs.program(late)
    assert programs.checks == 1
    ProvedPrograms(load(ring(4))).program(())


def test_what_is_no_renaming_is_checked_again(monkeypatch):
    """Rank 0's program changes when another rank is late: nothing is taken for granted then."""
    programs = ProvedPrograms(load(straggler(4)))
    programs.program((3,))

    def other_program(schedule, sets):
        program = device_program(schedule, sets)
        program.rows[0][-1, 0] ^= 3  # a copy is a sum, a sum a copy
        return program

    monkeypatch.setattr(proofs, "device_program", other_program)
    with pytest.raises(ScheduleRefused, match="is refuted"):
        programs.program((1,))
    assert programs.checks == 2


@pytest.mark.parametrize(("machines", "per_machine"), [(2, 2), (2, 4), (3, 2)])
def test_one_check_of_each_part_serves_every_late_rank(machines, per_machine):
    """The late rank's machine has its own program in the first stage; all others are alike."""
    schedule = in_stages(machines, per_machine, chunks=machines)
    stages = ProvedStages(load(schedule), per_machine)
    for late in range(schedule.ranks):
        renamed, stage_of, parts = stages.parts((late,))
        assert renamed.late == (late,)
        assert [(part.stage, part.node) for part in parts] == [
            (stage, machine) for stage in (0, 2) for machine in range(machines)
        ]
        moved = sum(rows_of(part.rounds) // 2 for part in parts)
        assert moved + (stage_of == 1).sum() == len(schedule.table)
    assert stages.checks == (2 if per_machine == 2 else 3)  # of two ranks all are alike


@given(st.integers(2, 3), st.integers(2, 3), st.integers(1, 3), st.data())
@settings(max_examples=30, deadline=None)
def test_a_ranks_stages_are_its_program_in_order(machines, per_machine, chunks, data):
    verified = load(in_stages(machines, per_machine, chunks=chunks))
    late = data.draw(st.integers(0, verified.schedule.ranks - 1))
    rank = data.draw(st.integers(0, verified.schedule.ranks - 1))
    stages = ProvedStages(verified, per_machine).of_rank(rank, (late,), torch.device("cpu"))

    first = rank // per_machine * per_machine
    done = []
    for stage in range(stages.stages):
        if stage in stages.kernels:
            for action, peer, chunk, _ in stages.kernels[stage].rows.tolist():
                does = (action == DeviceAction.PUT, action == DeviceAction.REDUCE)
                done.append((*does, first + peer, chunk))
        for end in stages.between.get(stage, ()):
            done.append((end.send, end.reduce, end.peer, end.chunk))
    ends = verified.program(rank, (late,)).ends
    assert done == [(end.send, end.reduce, end.peer, end.chunk) for end in ends]


def test_what_does_not_go_in_stages_and_why(monkeypatch):
    assert unfit_for_stages(load(in_stages(2, 2)), 2) == ""
    assert unfit_for_stages(load(hierarchical(2, 3)), 3) == ""
    for schedule, reason in [
        (mixed(2, 2), "is no kernel's"),
        (mixed(2, 3), "it has no stages: completion round"),
        (ring(4), "it has no stages: reduce round 0"),
        (in_stages(3, 2), "stage 0 of machine 0 is no kernel's: rank 0 hears nothing from rank 2"),
        (replace(in_stages(2, 2), meta={}), "its meta tells of 1 rank(s) per machine, and there"),
    ]:
        per_machine = 3 if schedule.ranks == 6 else 2
        assert reason in unfit_for_stages(load(schedule), per_machine)
    assert "synth generate --stages" in unfit_for_stages(load(ring(4)), 2)
    assert "one machine" in unfit_for_stages(ClosedFormPart(4, 0, 2), 2)
    monkeypatch.setattr(proofs, "MOST_ROWS", 10)
    assert "rows are more than are proved" in unfit_for_stages(load(in_stages(2, 2)), 2)


def test_a_machines_program_that_is_another_is_checked_again(monkeypatch):
    proved = ProvedStages(load(in_stages(2, 2)), 2)
    proved.parts((3,))

    def other_program(schedule, sets):
        program = device_program(schedule, sets)
        program.rows[0][-1, 0] ^= 3  # a copy is a sum, a sum a copy
        return program

    monkeypatch.setattr("latecomer.verify.device.stages.device_program", other_program)
    with pytest.raises(ScheduleRefused, match=r"stage 0 of machine 0: the program"):
        proved.parts((3,))


def test_what_is_not_proved_is_refused_with_what_and_remedy():
    with pytest.raises(ScheduleRefused) as error:
        ProvedPrograms(load(straggler(4)), sets=1).program((3,))
    for text in ("race_free is refuted on rank", "overwritten before it is read", "transfers"):
        assert text in str(error.value)

    schedule = direct(3)
    mutant = device_program(schedule)
    mutant.rows[1][-1, 0] ^= 3
    with pytest.raises(ScheduleRefused, match=r"three.*(same_sums|slots_match) is refuted"):
        require_proved(mutant, schedule, "three")


def test_the_limit_is_by_rows():
    assert too_long(proofs.MOST_ROWS) == ""
    assert str(proofs.MOST_ROWS) in too_long(proofs.MOST_ROWS + 1)
    schedule = generate(8, chunks=59, owners="free")
    rows = device_program(schedule).rows
    assert rows_of(schedule) == sum(map(len, rows)) < proofs.MOST_ROWS


@settings(max_examples=30)
@given(st.integers(3, 12), st.integers(1, 40))
def test_what_is_reserved_for_a_closed_form_is_enough(n, k):
    program = device_program(generate(n, chunks=k, owners="free"))
    assert program.slots <= _slots(ClosedFormPart(n, 0, k))
    assert sum(map(len, program.rows)) <= _rows(ClosedFormPart(n, 0, k))
