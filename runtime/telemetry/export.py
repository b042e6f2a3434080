"""A summary as a Prometheus text file, and what ranks remember as a trace for Perfetto.

The text file is for node_exporter's textfile collector; it is written beside its place and renamed,
so a collector never reads half of it. In the trace there is a process per rank; operations are in
flight together, so each has tracks of its own. Over UBT an operation's stages are spans, and loss,
incast and pacing rate of each step counters. Times are microseconds on the reference rank's clock
since the first arrival.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from prometheus_client import write_to_textfile
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from runtime.telemetry.records import Rank, Record, Round, Stage
from runtime.telemetry.summary import Summary
from verify.report import trace_events
from verify.report.trace_events import Event

Meaning = tuple[str, str | dict[str, str]]
"""What a metric says, and the attribute of a line of the table; or several, by another label."""
QUANTILES = {"0.5": "lateness_p50_s", "0.99": "lateness_p99_s"}
ENDS = {end: end for end in ("complete", "early", "timeout")}
ARRIVALS: dict[str, Meaning] = {
    "wait_seconds": ("Mean time from a rank's arrival to the last one's.", "wait_s"),
    "arrived_last_ratio": ("Share of operations in which the rank was the last to arrive.", "last"),
    "lateness_seconds": ("How long after the median arrival a rank came.", QUANTILES),
    "wasted_seconds_total": ("What all others together waited for this rank alone.", "wasted_s"),
    "clock_uncertainty_seconds": ("How well its clock is aligned with rank 0's.", "uncertainty_s"),
}
LOSSES: dict[str, Meaning] = {
    "loss_ratio": ("Share of the datagrams due on the rank that did not arrive.", "loss"),
    "worst_step_loss_ratio": ("The same of the step that lost most.", "worst"),
    "stages_total": ("Receive stages, by how they ended.", ENDS),
    "steps_skipped_total": ("Steps that lost too much to be applied.", "skipped"),
    "incast_senders": ("Smallest number of senders that the rank took at once.", "incast"),
    "pacing_rate_bytes": ("Lowest pacing rate to a peer, bytes per second.", "rate"),
    "bound_seconds": ("Hard bound of a receive stage.", "bound_s"),
}
OTHER_LABELS = {"lateness_seconds": "quantile", "stages_total": "end"}


class _Metrics(Collector):
    """A summary as a Prometheus client asks for it."""

    def __init__(self, summary: Summary) -> None:
        self._summary = summary

    def collect(self) -> Iterator[Metric]:
        arrivals = sorted((line.rank, line) for line in self._summary.lines)
        yield from (_family(name, *meaning, arrivals) for name, meaning in ARRIVALS.items())
        text = "All-reduces, by the way they ran."
        ways = CounterMetricFamily("latecomer_operations_total", text, labels=["way"])
        for way, count in sorted(self._summary.ways.items()):
            ways.add_metric([way], count)
        yield ways
        if losses := [(line.number, line) for line in self._summary.losses.ranks]:
            yield from (_family(name, *meaning, losses) for name, meaning in LOSSES.items())


def _family(
    name: str, text: str, attributes: str | dict[str, str], lines: Iterable[tuple[int, Any]]
) -> Metric:
    """A metric with a sample per rank, or several that differ by another label."""
    several = attributes if isinstance(attributes, dict) else {"": attributes}
    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    other = [OTHER_LABELS[name]] if name in OTHER_LABELS else []
    family = kind(f"latecomer_{name}", text, labels=["rank", *other])
    for rank, line in lines:
        for value, attribute in several.items():
            family.add_metric([str(rank), *([value] if other else [])], getattr(line, attribute))
    return family


def write_prometheus(summary: Summary, path: str | os.PathLike[str]) -> None:
    """Write the text file at ``path``, at once or not at all."""
    write_to_textfile(os.fspath(path), _Metrics(summary))


def trace(ranks: Sequence[Rank], operations: range | None = None) -> list[Event]:
    """The trace's events, of these operations only (default: all)."""
    found = [event for rank in ranks for event in _of_rank(rank, operations)]
    start_s = min((event["ts"] for event in found if event["ph"] == "i"), default=0.0)
    for event in found:
        if "ts" in event:
            event["ts"] = round((event["ts"] - start_s) * 1e6, 3)
    return found


def _of_rank(rank: Rank, operations: range | None) -> Iterator[Event]:
    """One rank's events, in seconds."""

    def chosen(each: Record | Round | Stage) -> bool:
        return operations is None or each.operation in operations

    yield trace_events.name(rank.rank, f"rank {rank.rank}")
    for record in filter(chosen, rank.records):
        yield from _of_record(record)
    for each in filter(chosen, rank.rounds):
        where = f"{each.phase} round {each.round}", "round", each.operation, rank.rank
        yield from _span(*where, each.began_s, each.ended_s, {})
    for stage in filter(chosen, rank.stages):
        kind = f"stage {stage.stage}"
        about = {"due": stage.due, "lost": stage.lost}
        where = f"{kind}, {stage.end}", kind, stage.operation, rank.rank
        yield from _span(*where, stage.began_s, stage.ended_s, about)
    for step in rank.steps:
        values = {
            "loss, %": 100 * step.lost / max(1, step.due),
            "stages timed out": step.timeout,
            "stages ended early": step.early,
            "incast": step.incast,
            "pacing, MB/s": step.rate / 1e6,
        }
        here = {"ph": "C", "pid": rank.rank, "ts": step.ended_s}
        yield from ({**here, "name": n, "args": {"step": v}} for n, v in values.items())


def _of_record(record: Record) -> Iterator[Event]:
    number = record.operation
    rank = record.rank
    since_s = record.arrived_s
    about = {
        "bytes": record.bytes,
        "way": record.way,
        "late": list(record.late),
        "reason": record.reason,
        "clock_uncertainty_us": record.uncertainty_s * 1e6,
    }
    here = {"cat": "arrival", "ph": "i", "s": "p", "pid": rank, "tid": 0, "ts": since_s}
    yield {"name": f"rank {rank} arrives at operation {number}", **here, "args": about}
    whole = f"operation {number}", "operation", number, rank
    yield from _span(*whole, since_s, record.done_s, about)
    if record.decided_s > since_s:
        yield from _span("decision", *whole[1:], since_s, record.decided_s, about)


def _span(
    name: str, category: str, number: int, rank: int, since_s: float, until_s: float, about: Event
) -> list[Event]:
    """On a track of its own; nothing where the end is unknown."""
    where = {"name": name, "cat": category, "id": number, "pid": rank, "tid": 0}
    return [] if math.isnan(until_s) else trace_events.span(where, since_s, until_s, args=about)


def write_trace(
    ranks: Sequence[Rank], path: str | os.PathLike[str], operations: range | None = None
) -> None:
    """Write the trace to ``path`` (JSON)."""
    Path(path).write_text(trace_events.document(trace(ranks, operations)))
