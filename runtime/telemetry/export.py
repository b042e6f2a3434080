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

from prometheus_client import CollectorRegistry, generate_latest, write_to_textfile
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from runtime.telemetry.records import Rank, Record, Step
from runtime.telemetry.summary import Summary
from verify.report import trace_events
from verify.report.trace_events import Event

Meaning = tuple[str, str | dict[str, str]]
"""What a metric says, and the attribute of a line of the table; or several, by another label."""
ARRIVALS: dict[str, Meaning] = {
    "wait_seconds": ("Mean time from a rank's arrival to the last one's.", "wait_s"),
    "arrived_last_ratio": ("Share of operations in which the rank was the last to arrive.", "last"),
    "lateness_seconds": (
        "How long after the median arrival a rank came.",
        {"0.5": "lateness_p50_s", "0.99": "lateness_p99_s"},
    ),
    "wasted_seconds_total": (
        "What all other ranks together have waited for this one alone.",
        "wasted_s",
    ),
    "clock_uncertainty_seconds": (
        "How well the rank's clock is aligned with the reference's.",
        "uncertainty_s",
    ),
}
LOSSES: dict[str, Meaning] = {
    "loss_ratio": ("Share of the datagrams due on the rank that did not arrive.", "loss"),
    "worst_step_loss_ratio": ("The same of the step that lost most.", "worst"),
    "stages_total": (
        "Receive stages, by how they ended.",
        {"complete": "complete", "early": "early", "timeout": "timeout"},
    ),
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
        meaning = "All-reduces, by the way they ran."
        ways = CounterMetricFamily("latecomer_operations_total", meaning, labels=["way"])
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


def prometheus_text(summary: Summary) -> str:
    """The summary in Prometheus' text format."""
    return generate_latest(_registry(summary)).decode()


def write_prometheus(summary: Summary, path: str | os.PathLike[str]) -> None:
    """Write the text file at ``path``, at once or not at all."""
    write_to_textfile(os.fspath(path), _registry(summary))


def trace(ranks: Sequence[Rank], operations: range | None = None) -> list[Event]:
    """The trace's events, of these operations only (default: all)."""

    def chosen(number: int) -> bool:
        return operations is None or number in operations

    moments = [r.arrived_s for rank in ranks for r in rank.records if chosen(r.operation)]
    start_s = min(moments, default=0.0)

    def us(seconds: float) -> float:
        return round((seconds - start_s) * 1e6, 3)

    def span(
        name: str, track: tuple[str, int, int], since_s: float, until_s: float, **about: Any
    ) -> list[Event]:
        """On the track (category, operation, rank); nothing where the end is unknown."""
        if math.isnan(until_s):
            return []
        category, operation, rank = track
        where = {"name": name, "cat": category, "id": operation, "pid": rank, "tid": 0}
        return trace_events.span(where, us(since_s), us(until_s), **about)

    def of_operation(record: Record) -> Iterator[Event]:
        number, rank = record.operation, record.rank
        about = {
            "bytes": record.bytes,
            "way": record.way,
            "late": list(record.late),
            "reason": record.reason,
            "clock_uncertainty_us": record.uncertainty_s * 1e6,
        }
        name = f"rank {rank} arrives at operation {number}"
        here = {"pid": rank, "tid": 0, "ts": us(record.arrived_s), "args": about}
        yield {"name": name, "cat": "arrival", "ph": "i", "s": "p", **here}
        track = ("operation", number, rank)
        yield from span(f"operation {number}", track, record.arrived_s, record.done_s, args=about)
        if record.decided_s > record.arrived_s:
            yield from span("decision", track, record.arrived_s, record.decided_s, args=about)

    def counters(step: Step, rank: int) -> Iterator[Event]:
        """At the end of a step."""
        values = {
            "loss, %": 100 * step.lost / max(1, step.due),
            "stages timed out": step.timeout,
            "stages ended early": step.early,
            "incast": step.incast,
            "pacing, MB/s": step.rate / 1e6,
        }
        for name, value in values.items():
            here = {"pid": rank, "ts": us(step.ended_s), "args": {"step": value}}
            yield {"name": name, "ph": "C", **here}

    found: list[Event] = []
    for rank in ranks:
        found.append(trace_events.name(rank.rank, f"rank {rank.rank}"))
        for record in rank.records:
            if chosen(record.operation):
                found += of_operation(record)
        for each in rank.rounds:
            if chosen(each.operation):
                name, track = (
                    f"{each.phase} round {each.round}",
                    ("round", each.operation, rank.rank),
                )
                found += span(name, track, each.began_s, each.ended_s)
        for stage in rank.stages:
            if chosen(stage.operation):
                name = f"stage {stage.stage}, {stage.end}"
                track = (f"stage {stage.stage}", stage.operation, rank.rank)
                about = {"due": stage.due, "lost": stage.lost}
                found += span(name, track, stage.began_s, stage.ended_s, args=about)
        for step in rank.steps:
            found += counters(step, rank.rank)
    return found


def write_trace(
    ranks: Sequence[Rank], path: str | os.PathLike[str], operations: range | None = None
) -> None:
    """Write the trace to ``path`` (JSON)."""
    Path(path).write_text(trace_events.document(trace(ranks, operations)))


def _registry(summary: Summary) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(_Metrics(summary))
    return registry
