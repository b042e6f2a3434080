"""``synth pipeline``: what it writes and prints."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest

from latecomer.verify.core.verdict import Verdict
from latecomer.verify.pipeline import check, encode_csv, read, read_csv, without_waits
from latecomer.verify.pipeline.schedule import COMPUTE

BASE = "--stages 4 --microbatches 6"
TIMES = f"{BASE} --forward 8 --backward 10 --weight 5"


@pytest.fixture
def pipeline(synth):
    """Run ``synth pipeline OPTIONS``, which has to succeed; returns what it printed."""

    def run(options: str) -> str:
        code, out, err = synth("pipeline", *options.split())
        assert (code, err) == (0, "")
        return out

    return run


def test_everything_is_written_and_verifies(pipeline, tmp_path) -> None:
    slow = "--slow 1-2:30,2-3:12 --memory 4"
    out = pipeline(f"{TIMES} {slow} -o p.json --csv p.csv --picture p.svg")
    for part in [
        "p.json, p.csv (compute_only), p.svg: proved",
        "link 1-2 takes 30",
        "optimal",
        "method ",
        "not tried: gpipe holds 6 activations",
        "peak memory",
    ]:
        assert part in out

    schedule = read(tmp_path / "p.json")
    assert check(schedule).verdict is Verdict.PROVED
    assert check(read_csv(tmp_path / "p.csv")).verdict is Verdict.PROVED

    from_csv = read_csv(tmp_path / "p.csv", schedule.instance)
    assert from_csv.programs == schedule.programs
    assert encode_csv(from_csv, "compute_only") == (tmp_path / "p.csv").read_bytes()

    rectangles = ET.parse(tmp_path / "p.svg").getroot().findall("{*}rect")
    actions = [rectangle for rectangle in rectangles if rectangle.find("{*}title") is not None]
    assert len(actions) == 4 * 6 * 3


def test_json_and_messages(pipeline, tmp_path) -> None:
    files = "--csv c.csv --csv-form compute_comms --picture c.trace.json"
    answer = json.loads(pipeline(f"{BASE} --method 1f1b --json {files}"))
    assert (answer["method"], answer["verdict"], answer["optimal"]) == ("1f1b", "proved", "unknown")
    assert answer["peak_memory"] == [4, 3, 2, 1]

    with_messages = read_csv(tmp_path / "c.csv")
    assert with_messages.has_messages
    assert check(with_messages).verdict is Verdict.PROVED
    compute_only = read(tmp_path / "pipeline.json").programs
    for program, expected in zip(with_messages.programs, compute_only, strict=True):
        assert tuple(action for action in program if action.kind in COMPUTE) == expected

    events = json.loads((tmp_path / "c.trace.json").read_text())["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == 4 * 6 * 2

    printed = pipeline(f"{BASE} --method 1f1b --force --csv c.csv --csv-form compute_comms_waits")
    assert "c.csv (compute_comms, with waits)" in printed
    with_waits = read_csv(tmp_path / "c.csv")
    assert with_waits.has_waits
    assert check(with_waits).verdict is Verdict.PROVED
    assert without_waits(with_waits).programs == with_messages.programs


def test_scenarios_and_ranges(pipeline, tmp_path) -> None:
    shared = f"{TIMES} --memory 3 --time-limit 1 --json --workers 1"
    answer = json.loads(pipeline(f"{shared} --scenario none@3 --scenario 1-2:20 --robust mean"))
    assert list(answer["scenarios"]) == ["none@3", "1-2:20"]
    plain, slow = answer["scenarios"].values()
    assert answer["value"] == pytest.approx((3 * plain + slow) / 4)
    assert check(read(tmp_path / "pipeline.json")).verdict is Verdict.PROVED

    answer = json.loads(pipeline(f"{shared} --slow 1-2:0..20"))
    assert list(answer["scenarios"]) == ["lowest delays", "highest delays"]


def test_compare(pipeline, tmp_path) -> None:
    shared = f"{BASE} --slow 0-1:4 --compare --method heuristic --factors 0,1"
    out = pipeline(f"{shared} --picture d.svg")
    for part in ("heuristic", "kept", "zero-bubble", "bound", "drawn: d.svg"):
        assert part in out
    assert [path.name for path in tmp_path.iterdir()] == ["d.svg"]

    rows = json.loads(pipeline(f"{shared} --json"))["rows"]
    assert [row["factor"] for row in rows] == [0, 1]
