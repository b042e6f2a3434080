"""The self-test of GPUs, on the simulated device: what it finds, what it says, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from latecomer.command import app
from latecomer.runtime.device.predict import Range
from latecomer.runtime.selftest.device import methods, oracle
from latecomer.runtime.selftest.device.cases import all_cases
from latecomer.runtime.selftest.device.environment import inspect
from latecomer.runtime.selftest.device.report import CheckedMethod, GpuReport, TimedRow, size_text
from latecomer.runtime.selftest.device.suite import SelftestPlan
from latecomer.runtime.selftest.device.suite import run as run_suite
from latecomer.runtime.selftest.device.watch import Stuck, name_hanging
from latecomer.verify.running import run
from tests.runtime.spawning import execute

COMMAND = (
    *(sys.executable, "-m", "latecomer", "selftest", "--device", "simulated"),
    *("--ranks", "2", "--json", "report.json"),
)
ROW = TimedRow(
    nbytes=2**20,
    dtype="float32",
    way="kernel",
    ranks=8,
    late=7,
    chunks=2,
    time_s=20e-6,
    host_s=90e-6,
    repetitions=5,
    wrong=0,
    shared=False,
    predicted=Range(15e-6, 27e-6),
)


@settings(max_examples=30)
@given(
    st.integers(1, 9),
    st.integers(0, 40),
    st.integers(0, 2**40),
    st.booleans(),
    st.sampled_from(methods.FLOATS),
)
def test_the_oracle_is_exact_and_sees_each_wrong_element(
    world_size, numel, operation, average, dtype
):
    inputs = [torch.empty(numel, dtype=dtype) for _ in range(world_size)]
    for rank, tensor in enumerate(inputs):
        oracle.fill(tensor, rank, world_size, operation, average)

    for ordered in (inputs, inputs[::-1]):
        total = torch.zeros(numel, dtype=dtype)
        for tensor in ordered:
            total += tensor / world_size if average else tensor
        assert oracle.wrong_elements(total, world_size, operation) == 0

    if numel:
        total[numel // 2] = torch.nan
        assert oracle.wrong_elements(total, world_size, operation) == 1


def test_the_oracle_sees_a_contribution_that_is_missing_twice_there_or_of_another_operation():
    first = torch.empty(1000)
    second = torch.empty(1000)
    oracle.fill(first, 0, 2, 5, average=False)
    oracle.fill(second, 1, 2, 5, average=False)
    total = first + second

    for wrong_total in (first, second, first + 2 * second, 2 * first, total.roll(1)):
        assert oracle.wrong_elements(wrong_total, 2, 5) > 700
    assert oracle.wrong_elements(total, 2, 6) > 700


def test_slices_of_the_oracle_fit_together(monkeypatch):
    at_once = torch.empty(100)
    in_slices = torch.empty(100)
    oracle.fill(at_once, 1, 3, 2, average=True)
    monkeypatch.setattr(oracle, "SLICE", 7)
    oracle.fill(in_slices, 1, 3, 2, average=True)
    assert torch.equal(at_once, in_slices)


def test_a_row_says_what_was_measured_beside_what_was_predicted():
    assert ROW.busbw == pytest.approx(ROW.algbw * 14 / 8)
    cells = ["1MiB", "float32", "kernel", "7", "2", "20.0", "15-27", "90.0", "52.43", "91.75", "0"]
    assert ROW.line().split() == cells


@pytest.mark.parametrize("change", [{"wrong": 1}, {"shared": True}])
def test_no_bandwidth_of_what_is_wrong_or_of_ranks_that_share_a_gpu(change):
    row = msgspec.structs.replace(ROW, **change)
    assert row.algbw is row.busbw is None
    assert row.line().split()[-3:-1] == ["-", "-"]


def test_a_report_passes_only_if_something_was_checked_and_all_was_right():
    right = CheckedMethod("kernel", "", cases=3)
    wrong = CheckedMethod("kernel", "", cases=3, wrong=1, first="rank 0, ...")
    wrong_row = msgspec.structs.replace(ROW, wrong=2)
    wrong_row_of_nccl = msgspec.structs.replace(wrong_row, way="nccl")

    assert GpuReport("cuda", 8, checked=[right], rows=[ROW]).passed
    assert GpuReport("cuda", 8, checked=[right], rows=[wrong_row_of_nccl]).passed
    assert not GpuReport("cuda", 8, rows=[ROW]).passed
    assert not GpuReport("cuda", 8, checked=[right, wrong]).passed
    assert not GpuReport("cuda", 8, checked=[right], rows=[wrong_row]).passed
    assert not GpuReport("cuda", 8, checked=[right], error="rank 1 died").passed


def test_a_report_as_json_has_bandwidths_and_verdict():
    wrong_row = msgspec.structs.replace(ROW, wrong=2)
    written = msgspec.json.decode(GpuReport("cuda", 8, rows=[ROW, wrong_row]).to_json())
    assert [row["busbw"] is None for row in written["rows"]] == [False, True]
    assert written["passed"] is False


def test_sizes_have_the_greatest_unit_that_divides_them():
    sizes = [size_text(n) for n in (1, 1023, 1024, 1025, 2**16, 2**20, 2**30, 3 * 2**40)]
    assert sizes == ["1B", "1023B", "1KiB", "1025B", "64KiB", "1MiB", "1GiB", "3072GiB"]


def test_what_is_not_there_has_a_reason():
    environment = inspect()
    assert set(environment.versions) == {"torch", "CUDA", "NCCL", "triton", "driver", "python"}
    assert all(environment.versions.values())
    assert len(environment.lines()) >= 2


def test_who_is_named_when_all_hang():
    waits = "waits for 8 bytes"
    submits = "submits 8 bytes"
    waiting = {rank: Stuck(rank, 9, waits) for rank in range(3)}
    one_behind = waiting | {1: Stuck(1, 8, submits)}
    one_silent = {rank: waiting[rank] for rank in (0, 1)}

    assert name_hanging(one_behind, 3) == "rank 1: hangs, it submits 8 bytes"
    assert "all ranks hang at the same step" in name_hanging(waiting, 3)
    assert name_hanging(one_silent, 3).startswith("rank(s) 2: no sign of life")


class _FaultyMethod(methods._Library):
    """The fifth operation goes wrong, on rank 1."""

    def __init__(self, context, fault):
        super().__init__(context)
        self._fault = fault
        self._operations = 0

    def submit(self, tensor, average, choice):
        self._operations += 1
        is_faulty = self._operations == 5 and self._context.rank == 1
        if is_faulty and self._fault == "hangs":
            time.sleep(600)
        if is_faulty and self._fault == "stops":
            os.kill(os.getpid(), signal.SIGSTOP)
        if is_faulty and self._fault == "dies":
            os._exit(3)
        wait = super().submit(tensor, average=False, choice=choice)
        if is_faulty and self._fault == "adds":
            self._context.launch(lambda: tensor[7:9].add_(1))
        return wait


def adds(context, schedules):
    return _FaultyMethod(context, "adds")


def hangs(context, schedules):
    return _FaultyMethod(context, "hangs")


def stops(context, schedules):
    return _FaultyMethod(context, "stops")


def dies(context, schedules):
    return _FaultyMethod(context, "dies")


def _run_with(make_method, **limits):
    """Run the suite with this method only: its report, and the lines it printed."""
    report = GpuReport("simulated", 2)
    plan = SelftestPlan(
        "simulated",
        {"faulty": make_method},
        all_cases(1),
        table_sizes=(1024,),
        repetitions=5,
        **limits,
    )
    lines = []
    run_suite(plan, report, lines.append)
    return report, lines


def test_wrong_elements_are_counted_and_have_no_bandwidth():
    report, lines = _run_with(adds, limit_s=60)

    assert [(row.late, row.wrong) for row in report.rows] == [(None, 2), (1, 0)]
    assert not report.error
    assert not report.passed
    assert any(line.startswith("# no GPU for each rank") for line in lines)
    assert [line.split()[-3:] for line in lines[-2:]] == [["-", "-", "2"], ["-", "-", "0"]]


@pytest.mark.parametrize(
    ("make_method", "message"),
    [
        (hangs, "rank 1: hangs, it submits 1024 bytes"),
        pytest.param(stops, "rank(s) 1: no sign of life", marks=pytest.mark.long),
        pytest.param(dies, "rank 1: died with exit code 3", marks=pytest.mark.long),
    ],
)
def test_a_rank_that_hangs_or_is_gone_is_named_within_the_limit(make_method, message, monkeypatch):
    monkeypatch.setattr("latecomer.runtime.selftest.device.suite.GRACE_S", 1.0)

    report, lines = _run_with(make_method, limit_s=4.0)

    assert report.error.startswith(message)
    assert lines[-1] == f"FAILED: {report.error}"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--device", "cuda"), "no CUDA device is visible"),
        (("--json", "x.json"), "is for --device cuda"),
        (("--device", "simulated", "--algorithm", "optireduce"), "cpu only"),
        (("--machines", "2"), "is for --device cuda and simulated"),
        (("--device", "simulated", "--ranks", "3", "--machines", "2"), "equally many of 3 ranks"),
        (("--device", "simulated", "--ranks", "2", "--machines", "2"), "two or more"),
    ],
)
def test_bad_arguments_exit_with_2(arguments, message, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["latecomer", "selftest", *arguments])
    with pytest.raises(SystemExit) as ended:
        run(app)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.gpu_logic
def test_the_whole_command_on_the_simulated_device(tmp_path):
    completed = execute(*COMMAND, cwd=tmp_path)

    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert completed.stdout.startswith("SIMULATED")
    assert "selftest on simulated: passed" in completed.stdout
    report = msgspec.json.decode((tmp_path / "report.json").read_bytes())
    assert report["passed"]
    assert report["not_tried"] == {}
    assert {checked["way"] for checked in report["checked"]} == {"kernel", "transfers"}
    assert [row["way"] for row in report["rows"][::2]] == ["kernel", "transfers", "gloo"]
    assert all(row["busbw"] is row["predicted"] is None for row in report["rows"])


@pytest.mark.gpu_logic
def test_what_was_found_is_written_after_ctrl_c(tmp_path):
    process = subprocess.Popen(COMMAND, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None

    for line in process.stdout:
        if line.startswith("versions"):
            process.send_signal(signal.SIGINT)
            break
    process.communicate(timeout=60)

    assert process.returncode == 130
    report = msgspec.json.decode((tmp_path / "report.json").read_bytes())
    assert report["error"] == "interrupted"
    assert not report["passed"]
    assert report["environment"]["versions"]


@pytest.mark.gpu_logic
def test_the_whole_command_as_if_on_two_machines(tmp_path):
    command = (*COMMAND[:-4], "--ranks", "4", "--machines", "2", "--json", "report.json")
    completed = execute(*command, cwd=tmp_path)

    assert completed.returncode == 0, completed.stdout + completed.stderr
    report = msgspec.json.decode((tmp_path / "report.json").read_bytes())
    assert report["passed"]
    by_stages = [checked for checked in report["checked"] if checked["way"] == "stages"]
    assert [checked["wrong"] for checked in by_stages] == [0] * 5
