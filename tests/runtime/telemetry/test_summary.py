"""The table, the metrics and the trace, against arrivals of which everything is known."""

from __future__ import annotations

import json
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.telemetry.export import write_prometheus, write_trace
from runtime.telemetry.records import Rank, Record, Round
from runtime.telemetry.summary import quantile, summarize


def _ranks(arrivals, uncertainty_s=0.0, done=lambda last: last + 0.5, **more):
    """One rank per column, one operation per row of ``arrivals``."""
    size = len(arrivals[0])
    return [
        Rank(
            rank,
            tuple(
                Record(
                    number, rank, row[rank], row[rank] + 0.001, done(max(row)), uncertainty_s, 8,
                    "native", (), 'all "here"',
                )
                for number, row in enumerate(arrivals)
            ),
            messages=2,
            **more,
        )
        for rank in range(size)
    ]  # fmt: skip


def test_the_late_rank_is_the_first_line():
    summary = summarize(_ranks([[0, 0.1, 0, 2.0], [10, 10, 10.1, 13], [20, 20.5, 20, 20]]), 4)
    assert [line.rank for line in summary.lines][:2] == [3, 1]
    worst = summary.lines[0]
    assert worst.wasted_s == pytest.approx(3 * (1.9 + 2.9))
    assert worst.last == pytest.approx(2 / 3)
    assert worst.wait_s == pytest.approx(0.5 / 3)
    assert worst.lateness_p99_s == pytest.approx(2.95)
    assert worst.lateness_p50_s == pytest.approx(1.95)
    assert summary.completion_s == pytest.approx(0.5)
    assert summary.messages == pytest.approx(8 / 3)
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
    assert "no word from rank(s) 2" in str(gone)
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


def test_the_metrics_file_is_well_formed(tmp_path):
    place = tmp_path / "latecomer.prom"
    write_prometheus(summarize(_ranks([[0.0, 0.25]]), 2), place)
    text = place.read_text()
    assert list(tmp_path.iterdir()) == [place]
    sample = r'latecomer_\w+\{\w+="(\\.|[^"\\])*"(,\w+="[^"]*")*\} (NaN|[-+0-9.e]+)'
    for line in text.splitlines():
        assert re.fullmatch(rf"# (HELP|TYPE) latecomer_\w+ .+|{sample}", line), line
    assert 'latecomer_wasted_seconds_total{rank="1"} 0.25\n' in text
    assert 'latecomer_wait_seconds{rank="0"} 0.25\n' in text


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
