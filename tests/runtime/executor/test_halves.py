"""Reduce-scatters and all-gathers by the executor: only what is proved runs."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from latecomer import synth
from latecomer.runtime.executor.halves import load_half
from latecomer.synth.candidates import halves
from latecomer.verify.errors import ScheduleRefused


def test_what_is_proved_is_let_in_and_has_a_program_for_each_rank():
    for name, half, schedule in halves(5):
        loaded = load_half(schedule, name, half)
        programs = [loaded.program(rank, ()) for rank in range(5)]
        sent = sum(end.send for program in programs for end in program.ends)
        assert sent == sum(len(program.ends) for program in programs) / 2 > 0


def test_the_wrong_half_is_refused():
    whole = synth.direct(4)
    assert load_half(whole, "direct", "reduce_scatter").half == "reduce_scatter"  # and does more
    with pytest.raises(ScheduleRefused, match="is not proved as all_gather"):
        load_half(whole, "direct", "all_gather")
    gathering = next(schedule for _, half, schedule in halves(4) if half == "all_gather")
    with pytest.raises(ScheduleRefused, match="scattered is refuted"):
        load_half(gathering, "ring", "reduce_scatter")


def test_what_makes_no_sense_is_refused_before_anything_else():
    _, _, schedule = next(iter(halves(3)))
    with pytest.raises(ScheduleRefused, match="well_formed is refuted"):
        load_half(replace(schedule, ranks=2), "smaller", "reduce_scatter")
