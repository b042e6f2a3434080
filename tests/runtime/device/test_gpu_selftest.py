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

from runtime.__main__ import app, run
from runtime.device.predict import Range
from runtime.selftest.device import methods, oracle
from runtime.selftest.device.cases import every
from runtime.selftest.device.environment import look
from runtime.selftest.device.report import Checked, Report, Row, size_text
from runtime.selftest.device.suite import Plan
from runtime.selftest.device.suite import run as run_suite
from runtime.selftest.device.watch import Stuck, behind
from tests.runtime.spawning import execute

ROW = Row(2**20, "float32", "kernel", 8, 7, 2, 20e-6, 90e-6, 5, 0, False, Range(15e-6, 27e-6))


@settings(max_examples=30)
@given(
    st.integers(1, 9),
    st.integers(0, 40),
    st.integers(0, 2**40),
    st.booleans(),
    st.sampled_from(methods.FLOATS),
)
def test_the_oracle_is_exact_and_sees_each_wrong_element(size, numel, operation, average, dtype):
    brought = [torch.empty(numel, dtype=dtype) for _ in range(size)]
    for rank, tensor in enumerate(brought):
        oracle.fill(tensor, rank, size, operation, average)
    for order in (brought, brought[::-1]):
        total = torch.zeros(numel, dtype=dtype)
        for tensor in order:
            total += tensor / size if average else tensor
        assert oracle.wrong(total, size, operation) == 0
    if numel:
        total[numel // 2] = torch.nan
        assert oracle.wrong(total, size, operation) == 1


def test_the_oracle_sees_a_contribution_that_is_missing_twice_there_or_of_another_operation():
    one = torch.empty(1000)
    two = torch.empty(1000)
    oracle.fill(one, 0, 2, 5, average=False)
    oracle.fill(two, 1, 2, 5, average=False)
    for wrong in (one, two, one + 2 * two, 2 * one, (one + two).roll(1)):
        assert oracle.wrong(wrong, 2, 5) > 700
    assert oracle.wrong(one + two, 2, 6) > 700


def test_slices_of_the_oracle_fit_together(monkeypatch):
    whole = torch.empty(100)
    parts = torch.empty(100)
    oracle.fill(whole, 1, 3, 2, average=True)
    monkeypatch.setattr(oracle, "SLICE", 7)
    oracle.fill(parts, 1, 3, 2, average=True)
    assert torch.equal(whole, parts)


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
    right = Checked("kernel", "", 3)
    wrong = Checked("kernel", "", 3, 1, "rank 0, ...")
    bad_row = msgspec.structs.replace(ROW, wrong=2)
    assert Report("cuda", 8, checked=[right], rows=[ROW]).passed
    assert not Report("cuda", 8, rows=[ROW]).passed
    assert not Report("cuda", 8, checked=[right, wrong]).passed
    assert not Report("cuda", 8, checked=[right], rows=[bad_row]).passed
    others = msgspec.structs.replace(bad_row, way="nccl")
    assert Report("cuda", 8, checked=[right], rows=[others]).passed
    assert not Report("cuda", 8, checked=[right], error="rank 1 died").passed
    written = msgspec.json.decode(Report("cuda", 8, rows=[ROW, bad_row]).to_json())
    assert [row["busbw"] is None for row in written["rows"]] == [False, True]
    assert written["passed"] is False


def test_sizes_have_the_greatest_unit_that_divides_them():
    sizes = [size_text(n) for n in (1, 1023, 1024, 1025, 2**16, 2**20, 2**30, 3 * 2**40)]
    assert sizes == ["1B", "1023B", "1KiB", "1025B", "64KiB", "1MiB", "1GiB", "3072GiB"]


def test_what_is_not_there_has_a_reason():
    found = look()
    assert set(found.versions) == {"torch", "CUDA", "NCCL", "triton", "driver", "python"}
    assert all(found.versions.values())
    assert len(found.lines()) >= 2


def test_who_is_named_when_all_hang():
    waits = "waits for 8 bytes"
    submits = "submits 8 bytes"
    ahead = {rank: Stuck(rank, 9, waits) for rank in range(3)}
    assert behind(ahead | {1: Stuck(1, 8, submits)}, 3) == "rank 1: hangs, it submits 8 bytes"
    assert "all ranks hang at the same step" in behind(ahead, 3)
    del ahead[2]
    assert behind(ahead, 3).startswith("rank(s) 2: no sign of life")


class _Planted(methods._Library):
    """What goes wrong with the fifth operation, on rank 1."""

    def __init__(self, place, how):
        super().__init__(place)
        self._how = how
        self._number = 0

    def submit(self, tensor, average, what):
        self._number += 1
        is_now = self._number == 5 and self._place.rank == 1
        if is_now and self._how == "hangs":
            time.sleep(600)
        if is_now and self._how == "stops":
            os.kill(os.getpid(), signal.SIGSTOP)
        if is_now and self._how == "dies":
            os._exit(3)
        wait = super().submit(tensor, False, what)
        if is_now and self._how == "adds":
            self._place.launch(lambda: tensor[7:9].add_(1))
        return wait


def adds(place, schedules):
    return _Planted(place, "adds")


def hangs(place, schedules):
    return _Planted(place, "hangs")


def stops(place, schedules):
    return _Planted(place, "stops")


def dies(place, schedules):
    return _Planted(place, "dies")


def _ran(way, **limits):
    said = []
    report = Report("simulated", 2)
    plan = Plan("simulated", {"planted": way}, every(1), (1024,), repetitions=5, **limits)
    run_suite(plan, report, said.append)
    return report, said


def test_wrong_elements_are_counted_and_have_no_bandwidth():
    report, said = _ran(adds, limit_s=60)
    assert [(row.late, row.wrong) for row in report.rows] == [(None, 2), (1, 0)]
    assert not report.error
    assert not report.passed
    assert any(line.startswith("# no GPU for each rank") for line in said)
    assert [line.split()[-3:] for line in said[-2:]] == [["-", "-", "2"], ["-", "-", "0"]]


@pytest.mark.parametrize(
    ("way", "message"),
    [
        (hangs, "rank 1: hangs, it submits 1024 bytes"),
        pytest.param(stops, "rank(s) 1: no sign of life", marks=pytest.mark.long),
        pytest.param(dies, "rank 1: died with exit code 3", marks=pytest.mark.long),
    ],
)
def test_a_rank_that_hangs_or_is_gone_is_named_within_the_limit(way, message, monkeypatch):
    monkeypatch.setattr("runtime.selftest.device.suite.GRACE_S", 1.0)
    report, said = _ran(way, limit_s=4.0)
    assert report.error.startswith(message)
    assert said[-1] == f"FAILED: {report.error}"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--device", "cuda"), "no CUDA device is visible"),
        (("--json", "x.json"), "is for --device cuda"),
        (("--device", "simulated", "--algorithm", "optireduce"), "cpu only"),
    ],
)
def test_bad_arguments_exit_with_2(arguments, message, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["runtime", "selftest", *arguments])
    with pytest.raises(SystemExit) as ended:
        run(app)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.gpu_logic
def test_the_whole_command_on_the_simulated_device(tmp_path):
    command = sys.executable, "-m", "runtime", "selftest", "--device", "simulated"
    done = execute(*command, "--ranks", "2", "--json", "report.json", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("SIMULATED")
    assert "selftest on simulated: passed" in done.stdout
    found = msgspec.json.decode((tmp_path / "report.json").read_bytes())
    assert found["passed"]
    assert found["not_tried"] == {}
    assert {one["way"] for one in found["checked"]} == {"kernel", "transfers"}
    assert [row["way"] for row in found["rows"][::2]] == ["kernel", "transfers", "gloo"]
    assert all(row["busbw"] is row["predicted"] is None for row in found["rows"])


@pytest.mark.gpu_logic
def test_what_was_found_is_written_after_ctrl_c(tmp_path):
    command = sys.executable, "-m", "runtime", "selftest", "--device", "simulated"
    options = "--ranks", "2", "--json", "report.json"
    started = subprocess.Popen(
        (*command, *options), cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    assert started.stdout is not None
    for line in started.stdout:
        if line.startswith("versions"):
            started.send_signal(signal.SIGINT)
            break
    started.communicate(timeout=60)
    assert started.returncode == 130
    found = msgspec.json.decode((tmp_path / "report.json").read_bytes())
    assert (found["error"], found["passed"]) == ("interrupted", False)
    assert found["environment"]["versions"]
