"""What PyTorch's runtime is given of a pipeline is what was proved, messages and all."""

from __future__ import annotations

import importlib
import json

import msgspec
import pytest

from latecomer.runtime.pipeline.load import load
from latecomer.verify.core.verdict import Verdict
from latecomer.verify.errors import ScheduleRefused
from latecomer.verify.pipeline import PipelineSchedule, check, decode, decode_csv, lowered
from tests.verify.pipeline.documents import all_right

# the package has a function of its name
loading = importlib.import_module("latecomer.runtime.pipeline.load")
NAMES = ["single", "1f1b", "1f1b-messages", "zero-bubble", "looped-slow", "vee"]


def _pipeline(name):
    return load(decode(json.dumps(all_right()[name]).encode()))


@pytest.mark.parametrize("name", NAMES)
def test_the_programs_that_run_are_proved(name):
    verified = _pipeline(name)
    ran = msgspec.structs.replace(verified.schedule, programs=decode_csv(verified.csv).programs)
    assert check(ran).verdict is Verdict.PROVED
    assert ran.programs == verified.complete.programs


def _without_a_receive(schedule: PipelineSchedule, costs) -> PipelineSchedule:
    """Rank 0 does not receive what it is sent backward."""
    complete = lowered(schedule, costs)
    first = tuple(action for action in complete.programs[0] if action.kind != "RECV_B")
    return msgspec.structs.replace(complete, programs=(first, *complete.programs[1:]))


def _in_another_order(schedule: PipelineSchedule, costs) -> PipelineSchedule:
    """Each rank receives all before it does anything: all wait for each other."""
    complete = lowered(schedule, costs)
    programs = (
        tuple(sorted(program, key=lambda action: "RECV" not in action.kind))
        for program in complete.programs
    )
    return msgspec.structs.replace(complete, programs=tuple(programs))


@pytest.mark.parametrize("fault", [_without_a_receive, _in_another_order])
def test_messages_that_are_not_proved_do_not_run(monkeypatch, fault):
    verified = _pipeline("1f1b")
    monkeypatch.setattr(loading, "lowered", fault)
    with pytest.raises(ScheduleRefused, match="is never run"):
        _ = verified.csv


def test_a_csv_that_says_something_else_does_not_run(monkeypatch):
    verified = _pipeline("1f1b")
    honest = loading.encode_csv

    def other(schedule, form):
        rows = honest(schedule, form).splitlines(keepends=True)
        return b"".join([*rows[:-1], rows[-1].replace(b"1", b"2", 1)])

    monkeypatch.setattr(loading, "encode_csv", other)
    with pytest.raises(ScheduleRefused, match="as CSV"):
        _ = verified.csv
