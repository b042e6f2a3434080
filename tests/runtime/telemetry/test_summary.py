"""Table, metrics and trace, against arrivals and losses of which everything is known."""

from __future__ import annotations

import json
import math
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.telemetry.export import trace, write_prometheus, write_trace
from runtime.telemetry.records import Rank, Record, Round, Stage, UbtStep
from runtime.telemetry.summary import Losses, quantile, summarize


def _ranks(arrivals, uncertainty_s=0.0, done=lambda last: last + 0.5):
    """One rank per column, one operation per row of ``arrivals``."""

    def record(number, rank, row):
        times = row[rank], row[rank] + 0.001, done(max(row)), uncertainty_s
        return Record(number, rank, *times, 8, "native", (), 'all "here"')

    return [
        Rank(rank, tuple(record(n, rank, row) for n, row in enumerate(arrivals)), messages=2)
        for rank in range(len(arrivals[0]))
    ]


def test_the_late_rank_is_the_first_line():
    summary = summarize(_ranks([[0, 0.1, 0, 2.0], [10, 10, 10.1, 13], [20, 20.5, 20, 20]]), 4)
    assert [line.rank for line in summary.lines][:2] == [3, 1]
    worst = summary.lines[0]
    assert (worst.wasted_s, worst.last) == pytest.approx((3 * (1.9 + 2.9), 2 / 3))
    found = worst.wait_s, worst.lateness_p99_s, worst.lateness_p50_s
    assert found == pytest.approx((0.5 / 3, 2.95, 1.95))
    assert (summary.completion_s, summary.messages) == pytest.approx((0.5, 8 / 3))
    assert summary.ways == {"native": 3}
    assert re.search(r"^ +3 +166\.7 ms +67%", str(summary), re.MULTILINE)
    assert json.loads(summary.as_json())["lines"][0]["rank"] == 3


def test_no_rank_is_last_within_the_uncertainty_of_the_clocks():
    close = summarize(_ranks([[0.0, 0.001, 0.002]] * 4, uncertainty_s=0.01), 3)
    assert {line.last for line in close.lines} == {0.0}
    assert "within 10.000 ms" in str(close)


def test_operations_that_not_all_have_are_left_out_and_missing_ranks_named():
    ranks = _ranks([[0.0, 1.0, 0.0], [5.0, 6.0, 5.0]])
    short = Rank(0, ranks[0].records[1:])
    assert summarize([short, *ranks[1:]], 3).lines[0].operations == 1
    gone = summarize(ranks[:2], 3)
    assert gone.missing == (2,)
    assert "nothing was received from rank(s) 2" in str(gone)
    assert math.isnan(summarize([], 2).completion_s)


@given(st.lists(st.lists(st.floats(0, 100), min_size=3, max_size=3), min_size=1, max_size=12))
def test_waits_and_waste_add_up(arrivals):
    summary = summarize(_ranks(arrivals), 3)
    waits = sum(line.wait_s for line in summary.lines) * len(arrivals)
    assert waits == pytest.approx(sum(3 * max(row) - sum(row) for row in arrivals), abs=1e-6)
    wasted = sum(line.wasted_s for line in summary.lines)
    assert wasted <= waits + 1e-6
    order = [line.wasted_s for line in summary.lines]
    assert order == sorted(order, reverse=True)


@given(st.lists(st.integers(0, 9), min_size=1), st.sampled_from([0.01, 0.5, 0.99, 1.0]))
def test_quantile(values, share):
    found = quantile(sorted(values), share)
    assert sum(value <= found for value in values) >= share * len(values)
    assert sum(value < found for value in values) < share * len(values)


def test_the_trace_has_chosen_operations_and_their_rounds(tmp_path):
    rounds = (Round(1, "completion", 3, 10.5, 10.75), Round(0, "completion", 3, 0.5, 0.75))
    first, *others = _ranks([[0.0, 0.25], [10.0, 10.25]], done=lambda last: math.nan)
    ranks = [Rank(0, first.records, rounds), *others]
    write_trace(ranks, tmp_path / "trace.json", range(1, 2))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    timed = [event for event in events if event["ph"] in "be"]
    assert {event["name"] for event in timed} == {"decision", "completion round 3"}  # nothing done
    assert [e["ts"] for e in timed if e["cat"] == "round"] == [500_000.0, 750_000.0]
    assert [e["ts"] for e in events if e["ph"] == "i"] == [0.0, 250_000.0]
    assert {event["pid"] for event in events} == {0, 1}
    begun = [(e["name"], e["id"], e["pid"]) for e in timed if e["ph"] == "b"]
    assert sorted(begun) == sorted((e["name"], e["id"], e["pid"]) for e in timed if e["ph"] == "e")


def _step(number, lost, *ends, incast=2, rate=5e6):
    complete, early, timeout = ends or (2, 0, 0)
    varied = {"complete": complete, "early": early, "timeout": timeout, "incast": incast}
    fixed = {"due": 100, "bound_s": 0.25, "hadamard": False, "skipped": False}
    return UbtStep(step=number, ended_s=10.0 + number, lost=lost, rate=rate, **varied, **fixed)


def _lossy_ranks():
    reason = "a stage ended early"
    records = [Record(0, r, 10.0, 10.0, 10.5, 0.001, 8, "TAR over UBT", (), reason) for r in (0, 1)]
    stage = Stage(0, 2, 10.25, 10.5, "early", 100, 30)
    lossy = _step(5, 30, 1, 1, 0), _step(5, 10, 1, 0, 1, incast=1, rate=2e6)
    return [
        Rank(0, (records[0],), stages=(stage,), steps=(_step(4, 0), lossy[0])),
        Rank(1, (records[1],), steps=(_step(4, 0), lossy[1])),
    ]


def test_the_lines_of_ranks_and_steps():
    losses = Losses.of(_lossy_ranks())
    first, _ = losses.ranks
    assert (first.number, first.loss, first.worst) == (0, 0.15, 0.3)
    calm, lossy = losses.steps
    assert (calm.number, calm.loss) == (4, 0.0)
    assert (lossy.number, lossy.due, lossy.lost, lossy.loss) == (5, 200, 40, 0.2)
    assert (lossy.worst, lossy.incast, lossy.early, lossy.timeout) == (0.3, 1, 1, 1)


def test_the_summary_shows_them_and_is_silent_where_nothing_ran_over_ubt(tmp_path):
    summary = summarize(_lossy_ranks(), 2)
    shown = str(summary)
    assert "15.000%  30.000%                    3/1/0" in shown
    assert "1 of 2 steps lost something" in shown
    assert "1 times because: a stage ended early" in shown
    assert json.loads(summary.as_json())["losses"]["steps"][1]["loss"] == pytest.approx(0.2)
    assert "decided" not in shown
    without = [msgspec.structs.replace(rank, steps=(), stages=()) for rank in _lossy_ranks()]
    assert "lost" not in str(summarize(without, 2))
    write_prometheus(summarize(without, 2), place := tmp_path / "latecomer.prom")
    assert "loss_ratio" not in place.read_text()


def test_the_metrics_file_is_well_formed(tmp_path):
    place = tmp_path / "latecomer.prom"
    lines = []
    for ranks in _ranks([[0.0, 0.25]]), _lossy_ranks():
        write_prometheus(summarize(ranks, 2), place)
        assert list(tmp_path.iterdir()) == [place]
        lines += place.read_text().splitlines()
    sample = r'latecomer_\w+\{\w+="(\\.|[^"\\])*"(,\w+="[^"]*")*\} (NaN|[-+0-9.e]+)'
    for line in lines:
        assert re.fullmatch(rf"# (HELP|TYPE) latecomer_\w+ .+|{sample}", line), line
    for line in (
        'latecomer_wasted_seconds_total{rank="1"} 0.25',
        'latecomer_wait_seconds{rank="0"} 0.25',
        'latecomer_loss_ratio{rank="0"} 0.15',
        'latecomer_worst_step_loss_ratio{rank="1"} 0.1',
        'latecomer_stages_total{end="timeout",rank="1"} 1.0',
        'latecomer_incast_senders{rank="1"} 1.0',
        'latecomer_pacing_rate_bytes{rank="1"} 2e+06',
        'latecomer_bound_seconds{rank="0"} 0.25',
        'latecomer_steps_skipped_total{rank="0"} 0.0',
    ):
        assert line in lines


def test_the_trace_has_stages_as_spans_and_losses_as_counters():
    events = trace(_lossy_ranks())
    name = "stage 2, early"
    spans = [(e["ph"], e["name"], e["ts"]) for e in events if e.get("cat") == "stage 2"]
    assert spans == [("b", name, 250_000.0), ("e", name, 500_000.0)]
    counters = [e for e in events if e["ph"] == "C" and e["name"] == "loss, %"]
    found = [(e["pid"], e["ts"], e["args"]["step"]) for e in counters]
    assert found == [(0, 4e6, 0.0), (0, 5e6, 30.0), (1, 4e6, 0.0), (1, 5e6, 10.0)]
    assert not any(event.get("cat") == "decision" for event in events)
    assert not any(event.get("cat") == "stage 2" for event in trace(_lossy_ranks(), range(7, 9)))
