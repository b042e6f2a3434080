"""PyTorch's CSV: its built-in schedules are proved, and it takes ours.

The built-in schedules run without a process group, on stages that only know their place.
"""

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.pipelining import schedules as pytorch
from torch.distributed.pipelining.stage import _PipelineStageBase

from latecomer.verify.core.verdict import Verdict
from latecomer.verify.errors import ArgumentError, FormatError
from latecomer.verify.pipeline import (
    PipelineSchedule,
    check,
    decode_csv,
    encode_csv,
    lowered,
    read_csv,
    uniform,
    with_waits,
    without_waits,
    write_csv,
)
from latecomer.verify.pipeline.costs import Costs
from latecomer.verify.pipeline.schedule import COMPUTE
from tests.verify.pipeline.documents import all_right, csv_of

MULTI = [
    "ScheduleLoopedBFS",
    "ScheduleInterleaved1F1B",
    "ScheduleInterleavedZeroBubble",
    "ScheduleZBVZeroBubble",
    "ScheduleDualPipeV",
]
"""Classes with two stages per rank."""
HAS_WAITS = hasattr(pytorch._ComputationType, "WAIT_SEND_F")
"""This torch wants them (from 2.15 on), or knows none."""


class StubStage(_PipelineStageBase):
    """A stage of a group that is not there."""

    def __init__(self, stage: int, stages: int, rank: int, ranks: int) -> None:
        self.stage_index = stage
        self.num_stages = stages
        self.group_rank = rank
        self.group_size = ranks
        self.group = None
        self.submod = None


StubStage.__abstractmethods__ = frozenset()  # none of what a stage does is asked of it


def multi(name: str, ranks: int, microbatches: int, chunks: int = 2) -> Any:
    """A schedule of rank 0 in a group of ``ranks``."""
    stages = [StubStage(i * ranks, ranks * chunks, 0, ranks) for i in range(chunks)]
    return getattr(pytorch, name)(stages, microbatches, loss_fn=lambda output, target: output)


def runtime(ranks: int, stages: int, microbatches: int) -> Any:
    """PyTorch's runtime for any CSV, as rank 0."""
    return multi("_PipelineScheduleRuntime", ranks, microbatches, stages // ranks)


def _proved(path: Path) -> PipelineSchedule:
    schedule = read_csv(path)
    report = check(schedule)
    assert report.verdict is Verdict.PROVED, (report.counterexample, report.results)
    return schedule


@pytest.mark.parametrize("microbatches", [8, 12])
@pytest.mark.parametrize("name", MULTI)
def test_built_in_schedules_of_several_stages_are_proved(
    name: str, microbatches: int, tmp_path: Path
) -> None:
    built_in = multi(name, 4, microbatches)
    for form in ("compute_only", "compute_comms"):
        path = tmp_path / f"{form}.csv"
        built_in._dump_csv(str(path), format=form)
        schedule = _proved(path)
        assert (schedule.ranks, schedule.stages, schedule.microbatches) == (4, 8, microbatches)
        assert schedule.has_messages == (form == "compute_comms")
        assert schedule.has_waits == (HAS_WAITS and form == "compute_comms")
        if name == "ScheduleDualPipeV":  # its pairs of actions are read as their parts
            assert "OVERLAP_F_B" in path.read_text()


def test_built_in_schedules_of_one_stage_are_proved(tmp_path: Path) -> None:
    gpipe = object.__new__(pytorch.ScheduleGPipe)  # which PyTorch can't write to a file
    gpipe._num_stages = 4
    gpipe._n_microbatches = 8
    order = dict(gpipe._get_pipeline_order())
    with (tmp_path / "gpipe.csv").open("w", newline="") as stream:  # as PyTorch writes others
        csv.writer(stream).writerows(order[rank] for rank in sorted(order))
    schedule = _proved(tmp_path / "gpipe.csv")
    assert schedule.stages == schedule.ranks == 4
    own = runtime(4, 4, 8)
    computed = {}
    for rank, row in order.items():
        actions = [action for action in row if action is not None]
        computed[rank] = [action for action in actions if action.is_compute_op]
    own._prepare_schedule_with_comms(computed)
    own._dump_csv(str(tmp_path / "comms.csv"))
    _proved(tmp_path / "comms.csv")
    for name in ("ScheduleInterleaved1F1B", "ScheduleInterleavedZeroBubble"):
        multi(name, 4, 8, chunks=1)._dump_csv(str(tmp_path / "one.csv"), format="compute_comms")
        _proved(tmp_path / "one.csv")


@pytest.mark.parametrize("name", [n for n in all_right() if "slow" not in n])
def test_pytorch_takes_ours(name: str, tmp_path: Path) -> None:
    doc = all_right()[name]
    text = csv_of(doc)
    schedule = decode_csv(text.encode())
    assert schedule.programs == decode_csv(text.encode(), instance=uniform(doc["stages"])).programs
    complete = lowered(schedule, Costs.of(schedule.instance))
    complete = with_waits(complete) if HAS_WAITS else without_waits(complete)
    for form, source in [("compute_only", schedule), ("compute_comms", complete)]:
        path = tmp_path / f"{form}.csv"
        write_csv(source, path, form)  # type: ignore[arg-type]
        loaded = runtime(schedule.ranks, schedule.stages, schedule.microbatches)
        loaded._load_csv(str(path), format=form)
        if form == "compute_comms":
            programs = _texts(dict(enumerate(complete.programs)))
            assert _texts(loaded.pipeline_order_with_comms) == programs
        for row in loaded.pipeline_order_with_comms.values():
            row[:] = [a for a in row if "REDUCE" not in str(a) and "SHARD" not in str(a)]
        loaded._simulate()  # raises where it does not progress


def _texts(programs: dict[int, Iterable[object]]) -> dict[int, list[str]]:
    return {rank: [str(action) for action in row] for rank, row in programs.items()}


def added_messages(text: str, stages: int) -> None:
    """What PyTorch makes of a CSV, a rank a stage; raises where it can't."""
    rows = list(csv.reader(text.splitlines()))
    order = {}
    for rank, row in enumerate(rows):
        actions = [pytorch._Action.from_str(cell) for cell in row]
        order[rank] = pytorch._add_unshard_reshard(actions)
    pytorch._add_send_recv(order, stage_to_rank=lambda stage: stage % len(rows), num_stages=stages)


@pytest.mark.parametrize(
    ("text", "stages"),
    [
        ("(0F0;0B0)OVERLAP_F_B\n1F0,1B0\n", 2),
        ("0F0,(0F1;0B1)OVERLAP_F_B,0B0\n1F0,1F1,1B1,1B0\n", 2),
        ("(0F0;3F0)OVERLAP_F_B,3B0,0B0\n1F0,2F0,2B0,1B0\n", 4),
    ],
)
def test_parts_that_overlap_do_not_need_each_other(text: str, stages: int) -> None:
    with pytest.raises(AssertionError, match="Malformed compute schedule"):
        added_messages(text, stages)
    with pytest.raises(FormatError, match="need each other"):
        decode_csv(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        "0F0,0F1,0B0,0B1\n1F0,(1F1;1B0)OVERLAP_F_B,1B1\n",
        "0F0,0F1,(0F2;0B0)OVERLAP_F_B,0B1,0B2\n1F0,(1F1;1B0)OVERLAP_F_B,1F2,1B1,1B2\n",
        "0F0,0B0\n(1F0;1B0)OVERLAP_F_B\n",
    ],
)
def test_parts_that_overlap_are_read_where_pytorch_takes_them(text: str) -> None:
    added_messages(text, 2)
    assert check(decode_csv(text.encode())).verdict is Verdict.PROVED


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("0UNSHARD,0F0,0B0\n1F0,1B0\n", "UNSHARD in a file without messages"),
        ("0F0,0SEND_F0,,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", "an empty cell"),
    ],
)
def test_what_pytorch_does_not_load_is_refused(text: str, problem: str) -> None:
    with pytest.raises(FormatError, match=problem):
        decode_csv(text.encode())


def test_a_csv_round_trips() -> None:
    for doc in all_right().values():
        text = csv_of(doc)
        schedule = decode_csv(text.encode())
        if schedule.has_messages:
            assert encode_csv(schedule, "compute_comms").decode() == text
        elif schedule.ranks > 1:
            with pytest.raises(ArgumentError, match="needs messages"):
                encode_csv(schedule, "compute_comms")
        alone = decode_csv(encode_csv(schedule, "compute_only"))
        assert len(alone.programs) == len(schedule.programs)
        for row_alone, row in zip(alone.programs, schedule.programs, strict=True):
            assert row_alone == tuple(action for action in row if action.kind in COMPUTE)


def test_what_pytorch_refuses_is_refuted_too(tmp_path: Path) -> None:
    """A cyclic order: rank 0 wants a gradient before it sends the activation for it."""
    path = tmp_path / "a.csv"
    for first, problem in [("0F0,0B1,0F1,0B0", ""), ("0F0,0B0,0F1,0B1", "Malformed")]:
        path.write_text(f"{first}\r\n1F0,1F1,1B0,1B1\r\n")
        with pytest.raises(AssertionError, match=problem):
            runtime(2, 2, 2)._load_csv(str(path), format="compute_only")
        report = check(read_csv(path))
        assert report.verdict is Verdict.REFUTED
    assert report.results["deadlock_free"].verdict is Verdict.REFUTED
    assert report.counterexample is not None
    assert len(report.counterexample.actions) >= 4


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"0F0,hello\n", "programs[0][1]: 'hello' is no action"),
        (b"0F0x\n", "programs[0][0]"),
        (b"", "there is no action"),
        (b",,\n,\n", "there is no action"),
        (b"\xff\xfe0F0", "not UTF-8"),
        (b"99999999F0\n", "stages is 100000000"),
        (b"0F0,0B0\n0F1\n0F2\n", "the number of programs is 3"),
        (b"0F0,0B0\n1F0,1B0\n", "forward has 4 durations for 2 stages"),
    ],
)
def test_unreadable_csv(text: bytes, problem: str) -> None:
    with pytest.raises(FormatError, match=r"x\.csv: ") as error:
        decode_csv(text, "x.csv", uniform(4) if b"1F0" in text else None)
    assert problem in str(error.value)
