"""The command: what it writes, what it prints, how it exits."""

import json
import subprocess
import sys
from typing import NoReturn

import pytest

from synth.cost import MOST_M
from synth.straggler import generate as generate_module
from synth.straggler import search as tries
from verify import Counterexample, Verdict, check, read
from verify.core.verdict import refuted


def test_generate_writes_and_explains(synth, tmp_path) -> None:
    code, out, err = synth("generate", "--n", "8")
    assert (code, err) == (0, "")
    schedule = read(tmp_path / "schedule.json")
    assert check(schedule).verdict is Verdict.PROVED
    assert schedule.late == (7,)
    for fact in [
        "6 reduce_scatter (without rank 7) + 9 completion",
        "9 rounds, lower bound 9: optimal (theorem: ",
        "cp-sat",
        "9 alpha + 1.286 S*beta",
        "6 alpha + 0.8571 S*beta",
        "14 alpha + 1.75 S*beta",
    ]:
        assert fact in out
    assert "chosen" not in out
    assert " ms" not in out


def test_bytes_choose_m_and_give_times(synth, tmp_path) -> None:
    options = ["--bytes", "1GiB", "--alpha", "3us", "--bandwidth", "450GB/s", "--json"]
    code, out, _ = synth("generate", "--n", "8", *options)
    assert code == 0
    facts = json.loads(out)
    m = read(tmp_path / "schedule.json").chunks // 7
    considered = {c["m"]: c["predicted_s"] for c in facts["candidates"]}
    assert list(considered) == list(range(1, MOST_M + 1))
    assert min(considered, key=considered.__getitem__) == m
    for k, seconds in ((7 * m, s) for m, s in considered.items()):
        assert seconds == pytest.approx((k + 2) * (3e-6 + 2**30 / k / 450e9))  # at the bound
    assert facts["predicted"]["completion"]["seconds"] == pytest.approx(min(considered.values()))
    assert facts["optimal"] is True


@pytest.mark.parametrize(
    ("options", "chunks", "late"),
    [
        ("--n 6 --bytes 1kB --alpha 1ms --bandwidth 1GB/s", 5, 5),  # a small buffer wants few
        ("--n 5 --bytes 1GiB --m 2 --late 0", 8, 0),  # a given m is kept
    ],
)
def test_how_many_chunks(synth, tmp_path, options: str, chunks: int, late: int) -> None:
    code, out, _ = synth("generate", *options.split())
    assert code == 0
    assert " ms" in out
    schedule = read(tmp_path / "schedule.json")
    assert (schedule.chunks, schedule.late) == (chunks, (late,))


@pytest.mark.parametrize("command", ["generate", "ring", "transpose"])
def test_quiet(synth, tmp_path, command: str) -> None:
    assert synth(command, "--n", "4", "--quiet") == (0, "", "")
    assert read(tmp_path / "schedule.json").ranks == 4


def test_time_out_writes_nothing(synth, tmp_path) -> None:
    options = ["--owners", "balanced", "--time-limit", "0.05"]
    code, out, err = synth("generate", "--n", "64", *options)
    assert (code, out) == (3, "")
    assert "Whether one exists is unknown" in err
    assert "Raise --time-limit" in err
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_proved_is_not_written(synth, tmp_path, monkeypatch) -> None:
    wrong = Counterexample(property="ports", expected="a", found="b")
    monkeypatch.setitem(check.__globals__["PROPERTIES"], "ports", lambda schedule: refuted(wrong))
    for command in ("generate", "ring"):
        code, out, err = synth(command, "--n", "4")
        assert (code, out) == (1, "")
        assert err.startswith("error: internal error")
        assert list(tmp_path.iterdir()) == []


def test_interrupt_leaves_no_file(synth, tmp_path, monkeypatch) -> None:
    def interrupted(*args, **options) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(tries, "solve", interrupted)
    assert synth("generate", "--n", "8") == (130, "", "interrupted: nothing was written\n")
    assert list(tmp_path.iterdir()) == []


def test_importing_the_command_is_light() -> None:
    heavy = ["ortools", "z3", "torch", "scipy"]
    code = f"import sys, synth.cli; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_progress_names_what_is_tried() -> None:
    seen: list[str] = []
    generate_module.search(4, progress=seen.append)
    assert seen == ["n = 4, m = 1: cp-sat, staged form, 4 rounds (lower bound 4 rounds)"]
