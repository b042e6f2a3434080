"""The command: what it writes, what it prints, how it exits."""

import json
import signal
import subprocess
import sys
import time

import pytest

from synth.answer import Basis
from synth.cost import MOST_M
from synth.solvers.choice import SOLVERS
from synth.straggler import generate as generate_module
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
    k = 7 * m
    seconds = (k + 2) * (3e-6 + 2**30 / k / 450e9)
    assert facts["predicted"]["completion"]["seconds"] == pytest.approx(seconds)
    assert facts["optimal"] is True


def test_given_m_is_kept(synth, tmp_path) -> None:
    code, out, _ = synth("generate", "--n", "5", "--bytes", "1GiB", "--m", "2", "--late", "0")
    assert code == 0
    assert " ms" in out
    schedule = read(tmp_path / "schedule.json")
    assert (schedule.chunks, schedule.late) == (8, (0,))


def test_gap_is_told(synth) -> None:
    code, out, _ = synth(
        "generate", "--n", "3", "--m", "2", "--owners", "balanced", "--solver", "z3"
    )
    assert code == 0
    assert "gap 1: optimality unknown (5 rounds: no schedule of this normal form" in out


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        (["--n", "8", "--delay", "2"], ["2 before 7", "lower bound"]),
        (["--n", "6", "--late", "4,5", "--arrivals", "1,3"], ["rank 4 at round 1, 5 at round 3"]),
        (["--nodes", "2", "--per-node", "3", "--bytes", "64MiB"], ["2 nodes of 3 ranks"]),
        (["--n", "6", "--owners", "free"], ["closed form", "free owners"]),
    ],
)
def test_other_instances(synth, tmp_path, options: list[str], facts: list[str]) -> None:
    code, out, err = synth("generate", *options)
    assert (code, err) == (0, "")
    assert all(fact in out for fact in facts)
    assert check(read(tmp_path / "schedule.json")).verdict is Verdict.PROVED
    code, out, _ = synth("generate", *options, "--json")
    assert code == 0
    assert json.loads(out)["basis"] in set(Basis)


def test_tables_are_commands(synth) -> None:
    code, out, _ = synth("table", "--n", "3,4", "--m", "1..2")
    assert code == 0
    assert "4 of 4 at the lower bound" in out
    code, out, _ = synth("compare", "--n", "8", "--sizes", "1MiB:4MiB")
    assert code == 0
    assert "busbw" in out


@pytest.mark.parametrize("method", ["ring", "rhd", "direct"])
def test_standard(synth, tmp_path, method: str) -> None:
    code, out, _ = synth(method, "--n", "6", "-o", "it.json.gz")
    assert code == 0
    assert "proved" in out
    assert check(read(tmp_path / "it.json.gz")).verdict is Verdict.PROVED
    code, out, _ = synth(method, "--n", "6", "-o", "it.json.gz", "--json")
    assert json.loads(out)["verdict"] == "proved"


def test_quiet(synth) -> None:
    assert synth("generate", "--n", "4", "--quiet") == (0, "", "")
    assert synth("ring", "--n", "4", "--quiet") == (0, "", "")


@pytest.mark.parametrize(
    "args",
    [
        ["--n", "1"],
        ["--n", "8", "--late", "8"],
        ["--n", "8", "--late", "1", "--late", "2"],
        ["--n", "8", "--late", "6,7", "--arrivals", "3"],
        ["--n", "8", "--delay", "2", "--arrivals", "3"],
        ["--n", "8", "--delay", "3ms"],
        ["--n", "8", "--delay", "-1"],
        ["--n", "8", "--delay", "1", "--exact"],
        ["--n", "4", "--exact"],
        ["--n", "8", "--delay", "2", "--ports", "matching"],
        ["--n", "8", "--delay", "2", "--owners", "free"],
        ["--n", "6", "--owners", "free", "--ports", "matching"],
        ["--nodes", "2", "--bytes", "1GiB"],
        ["--nodes", "2", "--per-node", "4"],
        ["--nodes", "2", "--per-node", "4", "--bytes", "1GiB", "--delay", "2"],
        ["--nodes", "2", "--per-node", "4", "--bytes", "1GiB", "--late", "6,7"],
        ["--m", "2"],
        ["--n", "8", "--m", "0"],
        ["--n", "8", "--seed", "-3"],
        ["--n", "8", "--time-limit", "-1"],
        ["--n", "8", "--bytes", "1Gb"],
        ["--n", "8", "--bytes", "1GiB", "--alpha", "3"],
        ["--n", "8", "--bytes", "1GiB", "--bandwidth", "0GB/s"],
        ["--n", "8", "--alpha", "3us"],
        ["--n", "8", "-o", "missing/schedule.json"],
        ["--n", "8", "-o", "."],
    ],
)
def test_bad_input_is_one_line_and_nothing_written(synth, tmp_path, args: list[str]) -> None:
    code, out, err = synth("generate", *args)
    assert (code, out) == (2, "")
    assert err.startswith("error: --")
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("args", [["--n", "x"], ["--n", "8", "--ports", "both"]])
def test_what_is_no_command_line_exits_2(synth, tmp_path, args: list[str]) -> None:
    code, _, err = synth("generate", *args)
    assert code == 2
    assert err
    assert list(tmp_path.iterdir()) == []


def test_time_out_writes_nothing(synth, tmp_path) -> None:
    options = ["--owners", "balanced", "--time-limit", "0.05"]
    code, out, err = synth("generate", "--n", "64", *options)
    assert (code, out) == (3, "")
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


INTERRUPTED = """
import synth.solvers.cpsat, synth.solvers.z3  # not to interrupt an import
import synth.straggler.search as tries
solve = tries.solve
def announce(*args, **kwargs):
    print("searching", flush=True)
    return solve(*args, **kwargs)
tries.solve = announce
from synth.cli import main
main()
"""


@pytest.mark.parametrize("solver", SOLVERS)
def test_interrupt_leaves_no_file(tmp_path, solver: str) -> None:
    options = ["--n", "31", "--ports", "matching", "--time-limit", "600", "--solver", solver]
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, "generate", *options],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "searching\n"
        time.sleep(1)  # into the solver; whatever comes first, the outcome is the same
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=500)
    assert (process.returncode, out) == (130, "")
    assert err == "interrupted: nothing was written\n"
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
