"""``latecomer simulate``: what it prints, draws, and refuses."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from latecomer.command import app
from latecomer.verify.errors import ArgumentError

SE = str(Path(__file__).parents[3] / "examples" / "arrivals" / "SE.json")


def simulated(*arguments):
    result = CliRunner().invoke(app, ["simulate", *arguments], catch_exceptions=True)
    if isinstance(result.exception, ArgumentError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


LATE = ("--ranks", "64", "--arrivals", "late:500ms", "--bytes", "256MiB", "--steps", "8")


def test_a_table_of_the_modes_and_what_decides():
    text = simulated(*LATE)
    rows = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    assert list(rows)[3:8] == ["native", "static", "predict", "eager", "auto"]
    assert "64 ranks, 1 bucket of 256 MiB, 3.125 GB/s, 20 us; 8 steps, seed 0" in text
    assert "arrivals: rank 63 in each step by 0.5 s" in text
    assert "the last one 500 ms later" in text
    assert "Mode static is told that rank 63 is late" in text
    assert "Mode static saves most" in text


def test_json_has_every_step_and_the_same_numbers():
    report = json.loads(simulated(*LATE, "--json", "--modes", "auto"))
    native, auto = report["modes"]
    assert (native["mode"], auto["mode"]) == ("native", "auto")
    assert len(auto["steps_s"]) == 8
    assert auto["step_s"] == pytest.approx(sum(auto["steps_s"]) / 8)
    assert native["step_s"] == pytest.approx(0.5 + report["native_s"])
    assert native["step_s"] - min(auto["steps_s"]) <= report["ceiling_s"] + 1e-9
    assert auto["early"] > 0


def test_a_seed_prints_the_same_twice():
    arguments = ("--ranks", "40", "--arrivals", "pareto:1.2,20ms", "--steps", "5")
    assert simulated(*arguments, "--seed", "3") == simulated(*arguments, "--seed", "3")
    assert simulated(*arguments, "--seed", "3") != simulated(*arguments, "--seed", "4")


def test_where_waiting_is_all_it_says_so():
    text = simulated("--arrivals", SE, "--ranks", "64", "--bytes", "1MiB", "--steps", "4")
    assert "No mode saves a hundredth of a step." in text
    assert "no all-reduce can return" in text


def test_a_picture_has_a_bar_for_each_part_of_each_mode(tmp_path):
    path = tmp_path / "steps.svg"
    simulated(*LATE, "--picture", str(path), "--modes", "auto")
    root = ElementTree.fromstring(path.read_text())
    bars = [
        each for each in root.iter() if each.tag.endswith("rect") and each.get("height") == "22"
    ]
    assert len(bars) == 2 * 3
    names = [each.text for each in root.iter() if each.tag.endswith("text")]
    assert {"native", "auto"} <= set(names)

    mine = tmp_path / "mine.svg"
    mine.write_text("<svg>my own</svg>")
    with pytest.raises(ArgumentError, match="mine"):
        simulated(*LATE, "--picture", str(mine))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--arrivals", "none"], "is needed where the arrivals are in no file"),
        (["--ranks", "1", "--arrivals", "none"], "must be in 2..4096"),
        (["--ranks", "5000", "--arrivals", "none"], "must be in 2..4096"),
        (["--arrivals", "nowhere.json"], "is no file of arrivals"),
        (["--ranks", "8", "--arrivals", "late:2"], "must be a number and a unit"),
        (["--ranks", "8", "--arrivals", "pareto:x,20ms"], "must be pareto:SHAPE,TIME"),
        (["--ranks", "8", "--arrivals", "pareto:-1,20ms"], "must be pareto:SHAPE,TIME"),
        (["--ranks", "8", "--arrivals", "none", "--modes", "auto,fast"], "fast is none"),
        (["--ranks", "8", "--arrivals", "none", "--bandwidth", "25"], "--bandwidth"),
        (["--ranks", "8", "--arrivals", "none", "--bytes", "0B"], "--bytes"),
    ],
)
def test_what_can_not_be_is_refused(arguments, expected):
    with pytest.raises(ArgumentError, match=expected):
        simulated(*arguments)
