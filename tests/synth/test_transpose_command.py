"""``synth transpose``: what it writes, what it prints, how it exits."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from verify import Incast, Verdict, check, read


@pytest.fixture
def transpose(synth):
    """Run ``synth transpose ARGS``."""
    return partial(synth, "transpose")


def test_written_and_explained(transpose, tmp_path) -> None:
    code, out, err = transpose("--n", "8", "--incast", "2")
    assert (code, err) == (0, "")
    schedule = read(tmp_path / "schedule.json")
    assert check(schedule).verdict is Verdict.PROVED
    assert (schedule.ranks, schedule.ports) == (8, Incast(2))
    for fact in [
        "8 ranks in 8 chunks, incast 2",
        "4 reduce_scatter + 4 all_gather = 8",
        "7 rounds for any AllReduce",
        "8 without detours",
        "one at a time 14 alpha + 1.75 S*beta; no AllReduce takes less than 3 alpha, or 1.75",
        "overlapped    8 alpha + 1.75 S*beta; no AllReduce takes less than 2 alpha, or 1.75",
    ]:
        assert fact in out
    assert "optimal" not in out


def test_times(transpose) -> None:
    options = ["--bytes", "25MB", "--alpha", "1ms", "--bandwidth", "1GB/s"]
    code, out, _ = transpose("--n", "8", *options)
    assert code == 0
    assert "14 alpha + 1.75 S*beta = 57.75 ms; no AllReduce takes less than 43.75 ms" in out
    facts = json.loads(transpose("--n", "8", "--incast", "7", *options, "--json")[1])
    assert facts["predicted"]["overlapped"]["seconds"] == pytest.approx(0.04575)
    assert facts["predicted"]["one_at_a_time"]["seconds"] == pytest.approx(0.05775)
    assert facts["predicted"]["overlapped"]["at_least_seconds"] == pytest.approx(0.04375)
    tiny = json.loads(transpose("--n", "8", "--bytes", "8B", "--alpha", "1ms", "--json")[1])
    assert tiny["predicted"]["one_at_a_time"]["at_least_seconds"] == pytest.approx(0.003)


def test_groups(transpose, tmp_path) -> None:
    code, out, _ = transpose("--n", "16", "--groups", "4", "-o", "two.json.gz", "--json")
    facts = json.loads(out)
    assert code == 0
    assert facts["phases"] == {"reduce_scatter": 3, "exchange": 2, "all_gather": 3}
    assert facts["fewest_rounds_without_detours"] is None
    assert check(read(tmp_path / "two.json.gz")).verdict is Verdict.PROVED
    _, out, _ = transpose("--n", "16", "--groups", "4", "--exchange", "transpose")
    assert "incast 1 of messages, 4 of chunks" in out


def test_json_tells_the_same(transpose) -> None:
    facts = json.loads(transpose("--n", "9", "--incast", "4", "--json")[1])
    assert facts["verdict"] == "proved"
    assert facts["ports"] == {"incast": 4}
    assert (facts["rounds"], facts["lower_bound"], facts["optimal"]) == (4, 4, True)
    assert facts["buffer"] is None
    assert facts["predicted"]["overlapped"]["alphas"] == 4
    assert facts["predicted"]["overlapped"]["at_least_alphas"] == 2


def test_quiet(transpose, tmp_path) -> None:
    assert transpose("--n", "4", "-q") == (0, "", "")
    assert (tmp_path / "schedule.json").exists()


@pytest.mark.parametrize(
    "args",
    [
        ["--n", "1"],
        ["--n", "8", "--incast", "8"],
        ["--n", "8", "--groups", "5"],
        ["--n", "8", "--alpha", "3us"],
        ["--n", "8", "--bytes", "many"],
        ["--n", "8", "--bytes", "1MiB", "--bandwidth", "0GB/s"],
        ["--n", "8", "-o", "missing/schedule.json"],
    ],
)
def test_bad_input_is_one_line_and_nothing_written(transpose, tmp_path, args) -> None:
    code, out, err = transpose(*args)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_documented_commands(tmp_path) -> None:
    root = Path(__file__).parents[2]
    text = (root / "docs" / "transpose.md").read_text()
    commands = re.findall(r"^\$ (.*)$", text, re.MULTILINE)
    assert len(commands) == 6
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for command in commands:
        done = subprocess.run(
            command,
            shell=True,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            timeout=500,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout!r}\n{done.stderr!r}"
