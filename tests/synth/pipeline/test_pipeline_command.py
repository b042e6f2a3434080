"""The command line: what it writes and prints, and what it refuses."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from synth.cli import app as synth
from verify.cli import app as verify
from verify.cli import run
from verify.core.verdict import Verdict
from verify.pipeline import check, encode_csv, read, read_csv
from verify.pipeline.schedule import COMPUTE

BASE = ("--stages", "4", "--microbatches", "6")
TIMES = ("--forward", "8", "--backward", "10", "--weight", "5")


def _run(*arguments: str, monkeypatch: pytest.MonkeyPatch, app=synth) -> int:
    """The exit code, as a shell sees it."""
    words = ["pipeline", *arguments] if app is synth else list(arguments)
    monkeypatch.setattr("sys.argv", ["command", *words])
    with pytest.raises(SystemExit) as ended:
        run(app)
    return int(ended.value.code or 0)


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_everything_is_written_and_verifies(at: Path, monkeypatch, capsys) -> None:
    code = _run(
        *BASE, *TIMES, "--slow", "1-2:30,2-3:12", "--memory", "4", "-o", "p.json", "--csv", "p.csv",
        "--picture", "p.svg", monkeypatch=monkeypatch,
    )  # fmt: skip
    out = capsys.readouterr().out
    assert code == 0
    for part in ("p.json, p.csv (compute_only), p.svg: proved", "link 1-2 takes 30", "optimal",
                 "method ", "not tried: gpipe holds 6 activations", "peak memory"):  # fmt: skip
        assert part in out
    schedule = read(at / "p.json")
    assert check(schedule).verdict is Verdict.PROVED
    again = read_csv(at / "p.csv", schedule.instance)
    assert again.programs == schedule.programs
    assert encode_csv(again, "compute_only") == (at / "p.csv").read_bytes()
    bars = [
        x
        for x in ET.parse(at / "p.svg").getroot().findall("{*}rect")
        if x.find("{*}title") is not None
    ]
    assert len(bars) == 4 * 6 * 3
    for name in ("p.json", "p.csv"):
        assert _run("-q", name, app=verify, monkeypatch=monkeypatch) == 0


def test_json_and_messages(at: Path, monkeypatch, capsys) -> None:
    code = _run(
        *BASE, "--method", "1f1b", "--json", "--csv", "c.csv", "--csv-form", "compute_comms",
        "--picture", "c.trace.json", monkeypatch=monkeypatch,
    )  # fmt: skip
    answer = json.loads(capsys.readouterr().out)
    assert code == 0
    assert answer["method"] == "1f1b"
    assert answer["verdict"] == "proved"
    assert answer["optimal"] == "unknown"
    assert answer["peak_memory"] == [4, 3, 2, 1]
    comms = read_csv(at / "c.csv")
    assert comms.has_messages
    assert check(comms).verdict is Verdict.PROVED
    alone = tuple(tuple(a for a in row if a.kind in COMPUTE) for row in comms.programs)
    assert alone == read(at / "pipeline.json").programs
    events = json.loads((at / "c.trace.json").read_text())["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == 4 * 6 * 2


def test_scenarios_and_ranges(at: Path, monkeypatch, capsys) -> None:
    shared = [*BASE, *TIMES, "--memory", "3", "--time-limit", "1", "--json", "--workers", "1"]
    options = ("--scenario", "none@3", "--scenario", "1-2:20", "--robust", "mean")
    assert _run(*shared, *options, monkeypatch=monkeypatch) == 0
    answer = json.loads(capsys.readouterr().out)
    assert list(answer["scenarios"]) == ["none@3", "1-2:20"]
    plain, slow = answer["scenarios"].values()
    assert answer["value"] == pytest.approx((3 * plain + slow) / 4)
    assert check(read(at / "pipeline.json")).verdict is Verdict.PROVED
    assert _run(*shared, "--slow", "1-2:0..20", monkeypatch=monkeypatch) == 0
    answer = json.loads(capsys.readouterr().out)
    assert list(answer["scenarios"]) == ["lowest delays", "highest delays"]


def test_compare(at: Path, monkeypatch, capsys) -> None:
    shared = [*BASE, "--slow", "0-1:4", "--compare", "--method", "heuristic", "--factors", "0,1"]
    assert _run(*shared, "--picture", "d.svg", monkeypatch=monkeypatch) == 0
    out = capsys.readouterr().out
    for part in ("heuristic", "kept", "zero-bubble", "bound", "drawn: d.svg"):
        assert part in out
    assert [path.name for path in at.iterdir()] == ["d.svg"]
    assert _run(*shared, "--json", monkeypatch=monkeypatch) == 0
    assert [row["factor"] for row in json.loads(capsys.readouterr().out)["rows"]] == [0, 1]


REFUSED = {
    "no stages": (["--stages", "0"], "--stages = 0"),
    "no microbatches": (["--microbatches", "0"], "--microbatches = 0"),
    "too much": (["--microbatches", "60000", "--stages", "30"], "1048576 actions"),
    "negative": ([*TIMES, "--forward", "-8"], "number, 0 or more"),
    "not a number": ([*TIMES, "--forward", "nan"], "number, 0 or more"),
    "empty": ([*TIMES, "--forward", ""], "number, 0 or more"),
    "missing for a stage": ([*TIMES, "--forward", "8,8,8"], "4: one per stage (it has 3)"),
    "missing": (["--forward", "8", "--weight", "5"], "--backward = None: is missing"),
    "decimals": ([*TIMES, "--forward", "0.12345678901"], "at most 9 decimals"),
    "memory": (["--memory", "0.5"], "The least that works is 1"),
    "memory of two": (["--virtual", "2", "--memory", "1.5"], "The least that works is 2"),
    "quarters": (["--memory", "1.25"], "multiple of 0.5"),
    "no such link": (["--slow", "3-4:5"], "there is no link 3-4; the links are: 0-1, 1-2, 2-3"),
    "not neighbours": (["--slow", "0-2:5"], "there is no link 0-2"),
    "no latency": (["--slow", "0-1"], "LINK:LATENCY"),
    "no duplex": (["--slow", "0-1:5:1:both"], "half or full"),
    "upside down": (["--slow", "0-1:9..5"], "range from less to more"),
    "virtual": (["--virtual", "3"], "must divide the 4 stages"),
    "method": (["--method", "magic"], "must be one of best, cp-sat"),
    "unsuited": (["--method", "gpipe", "--memory", "2"], "gpipe holds 6 activations"),
    "one each": (["--method", "1f1b", "--virtual", "2"], "has one stage per rank"),
    "time": (["--time-limit", "0"], "positive number of seconds"),
    "workers": (["--workers", "0"], "--workers = 0"),
    "picture": (["--picture", "x.bmp"], "must end in .svg or .json"),
    "directory": (["--csv", "nowhere/x.csv"], "--csv = 'nowhere/x.csv'"),
    "form alone": (["--csv-form", "compute_comms"], "used only with --csv"),
    "range twice": (["--slow", "0-1:0..5", "--scenario", "none"], "can't have a range"),
    "mean of a range": (["--slow", "0-1:0..5", "--robust", "mean"], "needs --scenario"),
    "scenario": (["--scenario", "7-8:2"], "there is no link 7-8"),
    "weight": (["--scenario", "none@0"], "weight above 0"),
    "method for scenarios": (["--scenario", "none", "--method", "1f1b"], "must be best"),
    "nothing to compare": (["--compare"], "no delay to compare at"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, at: Path, monkeypatch, capsys) -> None:
    arguments, problem = REFUSED[name]
    assert _run(*BASE, *arguments, monkeypatch=monkeypatch) == 2
    out, err = capsys.readouterr()
    assert problem in err
    assert err.startswith("error: ")
    assert out == ""
    assert list(at.iterdir()) == []
