"""Table, metrics and trace, against arrivals and losses of which everything is known."""

from __future__ import annotations

import json
import math
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latecomer.runtime.telemetry.export import trace, write_prometheus, write_trace
from latecomer.runtime.telemetry.lateness import quantile
from latecomer.runtime.telemetry.records import Rank, Record, Round, Stage, UbtStep
from latecomer.runtime.telemetry.summary import Losses, summarize


def _ranks(arrivals, uncertainty_s=0.0, done=lambda last: last + 0.5):
    """One rank per column, one operation per row of ``arrivals``."""

    def record(number, rank, row):
        return Record(
            operation=number,
            rank=rank,
            arrived_s=row[rank],
            decided_s=row[rank] + 0.001,
            done_s=done(max(row)),
            uncertainty_s=uncertainty_s,
            bytes=8,
            way="native",
            late=(),
            reason='all "here"',
        )

    ranks = []
    for rank in range(len(arrivals[0])):
        records = [record(number, rank, row) for number, row in enumerate(arrivals)]
        ranks.append(Rank(rank, tuple(records), messages=2))
    return ranks


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
    summary = summarize(_ranks([[0.0, 0.001, 0.002]] * 4, uncertainty_s=0.01), 3)
    assert {line.last for line in summary.lines} == {0.0}
    assert "within 10.000 ms" in str(summary)


def test_operations_that_not_all_have_are_left_out_and_missing_ranks_named():
    ranks = _ranks([[0.0, 1.0, 0.0], [5.0, 6.0, 5.0]])
    without_first_operation = Rank(0, ranks[0].records[1:])
    assert summarize([without_first_operation, *ranks[1:]], 3).lines[0].operations == 1

    without_rank_2 = summarize(ranks[:2], 3)
    assert without_rank_2.missing == (2,)
    assert "nothing was received from rank(s) 2" in str(without_rank_2)
    assert math.isnan(summarize([], 2).completion_s)


@given(st.lists(st.lists(st.floats(0, 100), min_size=3, max_size=3), min_size=1, max_size=12))
def test_waits_and_waste_add_up(arrivals):
    summary = summarize(_ranks(arrivals), 3)
    waits_s = sum(line.wait_s for line in summary.lines) * len(arrivals)
    waits_for_last_s = sum(3 * max(row) - sum(row) for row in arrivals)
    assert waits_s == pytest.approx(waits_for_last_s, abs=1e-6)

    wasted_s = [line.wasted_s for line in summary.lines]
    assert sum(wasted_s) <= waits_s + 1e-6
    assert wasted_s == sorted(wasted_s, reverse=True)


@given(st.lists(st.integers(0, 9), min_size=1), st.sampled_from([0.01, 0.5, 0.99, 1.0]))
def test_quantile(values, share):
    bound = quantile(sorted(values), share)
    assert sum(value <= bound for value in values) >= share * len(values)
    assert sum(value < bound for value in values) < share * len(values)


def test_the_trace_has_chosen_operations_and_their_rounds(tmp_path):
    rounds = (Round(1, "completion", 3, 10.5, 10.75), Round(0, "completion", 3, 0.5, 0.75))
    rank_0, rank_1 = _ranks([[0.0, 0.25], [10.0, 10.25]], done=lambda last: math.nan)
    ranks = [Rank(0, rank_0.records, rounds), rank_1]

    write_trace(ranks, tmp_path / "trace.json", range(1, 2))

    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    begins = [event for event in events if event["ph"] == "b"]
    ends = [event for event in events if event["ph"] == "e"]
    instants = [event for event in events if event["ph"] == "i"]
    names = {event["name"] for event in begins + ends}
    assert names == {"decision", "completion round 3"}  # nothing done
    assert _times_us(begins + ends, "round") == [500_000.0, 750_000.0]
    assert [event["ts"] for event in instants] == [0.0, 250_000.0]
    assert {event["pid"] for event in events} == {0, 1}
    assert _spans(begins) == _spans(ends)


def _times_us(events, category):
    return [event["ts"] for event in events if event.get("cat") == category]


def _spans(events):
    return sorted((event["name"], event["id"], event["pid"]) for event in events)


CALM_STEP = UbtStep(
    step=4,
    ended_s=14.0,
    due=100,
    lost=0,
    complete=2,
    early=0,
    timeout=0,
    incast=2,
    rate=5e6,
    bound_s=0.25,
    hadamard=False,
    skipped=False,
)


def _lossy_ranks():
    """Two ranks that lose something in step 5, in a stage that ended early or by its time-out."""
    records = []
    for rank in range(2):
        record = Record(
            operation=0,
            rank=rank,
            arrived_s=10.0,
            decided_s=10.0,
            done_s=10.5,
            uncertainty_s=0.001,
            bytes=8,
            way="TAR over UBT",
            late=(),
            reason="a stage ended early",
        )
        records.append(record)
    stage = Stage(operation=0, stage=2, began_s=10.25, ended_s=10.5, end="early", due=100, lost=30)

    lossy_step = msgspec.structs.replace(CALM_STEP, step=5, ended_s=15.0, complete=1)
    early = msgspec.structs.replace(lossy_step, lost=30, early=1)
    timed_out = msgspec.structs.replace(lossy_step, lost=10, timeout=1, incast=1, rate=2e6)
    return [
        Rank(0, (records[0],), stages=(stage,), steps=(CALM_STEP, early)),
        Rank(1, (records[1],), steps=(CALM_STEP, timed_out)),
    ]


def test_the_lines_of_ranks_and_steps():
    losses = Losses.of(_lossy_ranks())

    rank_0, _ = losses.ranks
    assert rank_0.number == 0
    assert rank_0.loss == 0.15
    assert rank_0.worst == 0.3

    calm, lossy = losses.steps
    assert calm.number == 4
    assert calm.loss == 0.0
    assert lossy.number == 5
    assert lossy.due == 200
    assert lossy.lost == 40
    assert lossy.loss == 0.2
    assert lossy.worst == 0.3
    assert lossy.incast == 1
    assert lossy.early == 1
    assert lossy.timeout == 1


def test_the_summary_shows_them_and_is_silent_where_nothing_ran_over_ubt(tmp_path):
    summary = summarize(_lossy_ranks(), 2)
    text = str(summary)
    assert "15.000%  30.000%                    3/1/0" in text
    assert "1 of 2 steps lost something" in text
    assert "1 times because: a stage ended early" in text
    assert json.loads(summary.as_json())["losses"]["steps"][1]["loss"] == pytest.approx(0.2)
    assert "decided" not in text

    without_ubt = summarize(
        [msgspec.structs.replace(rank, steps=(), stages=()) for rank in _lossy_ranks()], 2
    )
    assert "lost" not in str(without_ubt)
    file = tmp_path / "latecomer.prom"
    write_prometheus(without_ubt, file)
    assert "loss_ratio" not in file.read_text()


def test_the_metrics_file_is_well_formed(tmp_path):
    file = tmp_path / "latecomer.prom"
    lines = []
    for ranks in _ranks([[0.0, 0.25]]), _lossy_ranks():
        write_prometheus(summarize(ranks, 2), file)
        assert list(tmp_path.iterdir()) == [file]
        lines += file.read_text().splitlines()

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

    begin, end = [event for event in events if event.get("cat") == "stage 2"]
    assert begin["ph"] == "b"
    assert end["ph"] == "e"
    assert begin["name"] == end["name"] == "stage 2, early"
    assert begin["ts"] == 250_000.0
    assert end["ts"] == 500_000.0

    counters = [event for event in events if event["ph"] == "C" and event["name"] == "loss, %"]
    percent = [(event["pid"], event["ts"], event["args"]["step"]) for event in counters]
    assert percent == [(0, 4e6, 0.0), (0, 5e6, 30.0), (1, 4e6, 0.0), (1, 5e6, 10.0)]
    assert not any(event.get("cat") == "decision" for event in events)

    of_other_operations = trace(_lossy_ranks(), range(7, 9))
    assert not any(event.get("cat") == "stage 2" for event in of_other_operations)
