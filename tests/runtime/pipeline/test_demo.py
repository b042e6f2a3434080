"""The demonstration runs, its files are there, and its pictures say what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from latecomer.command import app
from latecomer.runtime import pipeline as pipelining
from latecomer.verify.errors import InputError
from latecomer.verify.pipeline import parse_action
from latecomer.verify.pipeline.measured import Span, StepRecord, Transit
from latecomer.verify.pipeline.measured_picture import bars, makespan_ms, observed, planned, text
from tests.runtime.pipeline.test_gradients import schedule


def test_exported_names() -> None:
    assert pipelining.__all__ == [
        "Adaptation", "Event", "Faults", "LinkFault", "Pipeline", "Planner", "Sensitivity", "Span",
        "StepRecord", "Transit", "VerifiedPipeline", "both_ways", "load",
    ]  # fmt: skip
    assert all(hasattr(pipelining, name) for name in pipelining.__all__)


def test_the_demonstration(tmp_path: Path) -> None:
    words = "pipeline --stages 2 --microbatches 4 --steps 4 --slow 0-1:5 --during 2-3 --no-adapt"
    result = CliRunner().invoke(app, [*words.split(), "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert result.output.count("gradients equal the sequential run") == 4
    assert result.output.count("slow link") == 3
    assert "of 4 of 4 steps equal" in result.output
    assert (tmp_path / "timeline.svg").read_text().count(": measured, ") == 2
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {event["name"] for event in events}
    assert {"0F0", "1I3", "0W3", "0SEND_F1", "1SEND_B2"} <= names


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("--slow 0-2:5", "must join neighbours"),
        ("--slow nobody", "a link and a delay"),
        ("--during 5-2", "first and last step"),
        ("--steps 0", "at least 1"),
        ("--stages 1", "at least 2"),
        ("--microbatches 0", "must be in 1"),
    ],
)
def test_bad_options(options: str, problem: str) -> None:
    result = CliRunner().invoke(app, ["pipeline", *options.split()])
    assert isinstance(result.exception, InputError)
    assert problem in str(result.exception)


def _records() -> dict[int, StepRecord]:
    """Two stages, one microbatch; the clock of rank 1 is 100 s ahead; 2 ms on the way."""
    ms = 1e-3
    ahead = 100.0

    def span(action: str, begin_ms: float, end_ms: float, ahead_s: float = 0.0) -> Span:
        return Span(parse_action(action), ahead_s + begin_ms * ms, ahead_s + end_ms * ms)

    forward = Transit(parse_action("1RECV_F0"), 0, 8 * ms, ahead + 10 * ms)
    backward = Transit(parse_action("0RECV_B0"), 1, ahead + 30 * ms, 32 * ms)
    spans_of_0 = [span("0F0", 0, 8), span("0I0", 32, 40), span("0W0", 40, 44)]
    spans_of_1 = [
        span("1F0", 10, 20, ahead),
        span("1I0", 20, 30, ahead),
        span("1W0", 30, 36, ahead),
    ]
    return {
        0: StepRecord(0, "d", 0.0, 1.0, spans_of_0, [backward]),
        1: StepRecord(0, "d", 0.0, 1.0, spans_of_1, [forward]),
    }


def test_bars_are_on_one_clock() -> None:
    drawn = {bar.action: (bar.start, bar.end) for bar in bars(_records())}
    assert drawn["1F0"] == pytest.approx((10, 20))
    assert drawn["0SEND_F0"] == pytest.approx((8, 10))
    assert drawn["1SEND_B0"] == pytest.approx((30, 32))
    assert makespan_ms(bars(_records())) == pytest.approx(44)
    rows = ["FFFF............IIIIWW", ".....FFFFFIIIIIWWW...."]
    assert text(bars(_records()), 22, 44) == rows


def test_the_model_says_what_was_measured() -> None:
    plan = schedule([["0F0", "0I0", "0W0"], ["1F0", "1I0", "1W0"]], 1)
    planned_bars = planned(plan, observed(plan, _records()))

    planned_actions = {bar.action: bar for bar in planned_bars if bar.receiver is None}
    measured_actions = {bar.action: bar for bar in bars(_records()) if bar.receiver is None}
    assert planned_actions.keys() == measured_actions.keys()
    for action, bar in planned_actions.items():
        assert bar.start == pytest.approx(measured_actions[action].start)
        assert bar.end == pytest.approx(measured_actions[action].end)
