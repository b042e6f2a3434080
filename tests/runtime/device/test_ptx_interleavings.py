"""Small all-reduces of the shipped kernel in all interleavings, with all that loads may find."""

from __future__ import annotations

import functools

import pytest

from latecomer.verify.core.verdict import Verdict
from latecomer.verify.device.check import check as verified
from latecomer.verify.device.program import device_program
from tests.runtime.device.ptx.allreduce import AllReduces, Case, Operation, shipped
from tests.runtime.device.ptx.battery import (
    LATE,
    ONE_CHUNK,
    RING,
    SWAPPING,
    THERE_AND_BACK,
    caught,
    instead,
)
from tests.runtime.device.ptx.builds import shipped_ptx
from tests.runtime.device.ptx.explore import TooMany, explore
from tests.runtime.device.ptx.program import Program
from tests.runtime.device.ptx.regions import Wrong


def case_of(schedule, *, operations=2, blocks=1, dtype="fp32", average=False, epoch=1):
    sizes = (35, 3, 32)
    made = tuple(Operation(schedule, dtype, average, sizes[i % 3]) for i in range(operations))
    return Case(schedule.ranks, blocks, 1 << 12, epoch, made)


def explored(case, arch=90, **options):
    return explore(AllReduces(case, functools.partial(shipped, arch)), **options)


def test_two_ranks(record_property):
    result = explored(case_of(RING))
    assert result.states > 100
    assert result.ends > 1
    record_property("ptx states explored", result.states)


def test_exploring_has_a_limit():
    with pytest.raises(TooMany):
        explored(case_of(RING), most=50)


def test_a_lost_flag_is_a_dead_end():
    """The last raise of rank 1 never comes: from no state an end can be reached."""
    runs = AllReduces(case_of(THERE_AND_BACK, operations=1), functools.partial(shipped, 90))
    rows = next(region for region in runs.regions if region.what == "rows" and region.rank == 0)
    runs.memory.view(rows, "i4")[-1] = 0  # rank 0's last row, a put
    runs.memory.view(rows, "i4")[-4] = 2  # is a receive now, from a slot that has come
    with pytest.raises(Wrong, match="no end can be reached"):
        explore(runs)


@pytest.mark.parametrize("schedule", [ONE_CHUNK, RING, THERE_AND_BACK])
def test_one_staging_set_is_enough_where_verify_says_so(schedule):
    """Else a rank that is ahead overwrites a slot that has not been taken, in some interleaving.

    The ends are not looked at here, at which rows of one set are not as they should be.
    """
    text = shipped_ptx(90, "fp32", False)
    parity = [line for line in text.splitlines() if "and.b32" in line and line.endswith(", 1;")]
    assert len(parity) == 1
    one_set = Program(text.replace(parity[0], parity[0].replace(", 1;", ", 0;")))
    assert caught(one_set, 90, "fp32", False)
    runs = AllReduces(case_of(schedule), instead(one_set, 90, "fp32", False))
    is_enough = verified(device_program(schedule, sets=1), schedule).verdict is Verdict.PROVED
    assert is_enough == (schedule is not ONE_CHUNK)
    if is_enough:
        explore(runs, check_end=lambda runs: None)
        return
    with pytest.raises(Wrong, match="race of a store and a load"):
        explore(runs, check_end=lambda runs: None)


LONGER = {
    "three operations": (case_of(RING, operations=3), {}),
    "epochs wrap": (case_of(RING, epoch=2**31 - 1), {}),
    "stops": (case_of(RING, operations=1), {"stops": True}),
    "there and back, stops": (case_of(THERE_AND_BACK), {"stops": True}),
    "averages, bf16": (case_of(SWAPPING, operations=1, dtype="bf16", average=True), {}),
    "two blocks": (case_of(THERE_AND_BACK, operations=1, blocks=2), {}),
    "three ranks, one late": (case_of(LATE, operations=1), {}),
}


@pytest.mark.gpu_logic
@pytest.mark.parametrize("name", LONGER)
def test_all_interleavings(name, record_property):
    case, options = LONGER[name]
    result = explored(case, **options)
    record_property("ptx states explored", result.states)
