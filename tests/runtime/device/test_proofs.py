"""What kernels are launched with is proved before, once for each structure; else it is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latecomer.runtime.device import proofs
from latecomer.runtime.device.allreduce import _rows, _slots
from latecomer.runtime.device.proofs import ProvedPrograms, require_proved, rows_of, too_long
from latecomer.runtime.executor.closed_form import ClosedFormPart
from latecomer.runtime.executor.load import load
from latecomer.synth import generate
from latecomer.verify.device.program import device_program
from latecomer.verify.errors import ScheduleRefused
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
