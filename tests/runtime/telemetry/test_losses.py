"""What was lost: table, metrics and trace, against steps of which everything is known."""

from __future__ import annotations

import json

import msgspec
import pytest

from runtime.telemetry.export import prometheus_text, trace
from runtime.telemetry.losses import Losses
from runtime.telemetry.records import Rank, Record, Stage, Step
from runtime.telemetry.summary import summarize


def _step(number, lost, **changes):
    step = Step(
        step=number, ended_s=10.0 + number, due=100, lost=lost, complete=2, early=0, timeout=0,
        incast=2, rate=5e6, bound_s=0.25, hadamard=False, skipped=False,
    )  # fmt: skip
    return msgspec.structs.replace(step, **changes)


def _ranks():
    reason = "a stage ended early"
    record = Record(0, 0, 10.0, 10.0, 10.5, 0.001, 8, "TAR over UBT", (), reason)
    stage = Stage(0, 2, 10.25, 10.5, "early", 100, 30)
    early = {"complete": 1, "early": 1}
    return [
        Rank(0, (record,), stages=(stage,), steps=(_step(4, 0), _step(5, 30, **early))),
        Rank(
            1,
            (msgspec.structs.replace(record, rank=1),),
            steps=(_step(4, 0), _step(5, 10, timeout=1, complete=1, incast=1, rate=2e6)),
        ),
    ]


def test_the_lines_of_ranks_and_steps():
    losses = Losses.of(_ranks())
    first, second = losses.ranks
    assert (first.number, first.loss, first.worst) == (0, 0.15, 0.3)
    assert (first.complete, first.early, first.timeout) == (3, 1, 0)
    assert (second.incast, second.rate, second.timeout, second.skipped) == (1, 2e6, 1, 0)
    calm, lossy = losses.steps
    assert (calm.number, calm.loss) == (4, 0.0)
    assert (lossy.number, lossy.due, lossy.lost, lossy.loss) == (5, 200, 40, 0.2)
    assert (lossy.worst, lossy.incast, lossy.early, lossy.timeout) == (0.3, 1, 1, 1)


def test_the_summary_shows_them_and_is_silent_where_nothing_ran_over_ubt():
    summary = summarize(_ranks(), 2)
    shown = str(summary)
    assert "15.000%  30.000%                    3/1/0" in shown
    assert "1 of 2 steps lost something" in shown
    assert "1 times because: a stage ended early" in shown
    assert json.loads(summary.as_json())["losses"]["steps"][1]["loss"] == pytest.approx(0.2)
    assert "decided" not in shown
    without = [msgspec.structs.replace(rank, steps=(), stages=()) for rank in _ranks()]
    assert "lost" not in str(summarize(without, 2))
    assert "loss_ratio" not in prometheus_text(summarize(without, 2))


def test_the_metrics():
    text = prometheus_text(summarize(_ranks(), 2))
    for line in (
        'latecomer_loss_ratio{rank="0"} 0.15',
        'latecomer_worst_step_loss_ratio{rank="1"} 0.1',
        'latecomer_stages_total{end="timeout",rank="1"} 1.0',
        'latecomer_incast_senders{rank="1"} 1.0',
        'latecomer_pacing_rate_bytes{rank="1"} 2e+06',
        'latecomer_bound_seconds{rank="0"} 0.25',
        'latecomer_steps_skipped_total{rank="0"} 0.0',
    ):
        assert line in text.splitlines()


def test_the_trace_has_stages_as_spans_and_losses_as_counters():
    events = trace(_ranks())
    stages = [event for event in events if event.get("cat") == "stage 2"]
    assert [(e["ph"], e["name"], e["ts"]) for e in stages] == [
        ("b", "stage 2, early", 250_000.0),
        ("e", "stage 2, early", 500_000.0),
    ]
    counters = [e for e in events if e["ph"] == "C" and e["name"] == "loss, %"]
    assert [(e["pid"], e["ts"], e["args"]["step"]) for e in counters] == [
        (0, 4e6, 0.0),
        (0, 5e6, 30.0),
        (1, 4e6, 0.0),
        (1, 5e6, 10.0),
    ]
    assert not any(event.get("cat") == "decision" for event in events)
    assert not any(event.get("cat") == "stage 2" for event in trace(_ranks(), range(7, 9)))
