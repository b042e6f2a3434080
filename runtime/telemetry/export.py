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

import msgspec
from prometheus_client import write_to_textfile
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from latecomer.runtime.telemetry.origin import ORIGIN
from latecomer.runtime.telemetry.records import Rank, Record, Round, Stage
from latecomer.runtime.telemetry.summary import Summary
from latecomer.verify.report import trace_events
from latecomer.verify.report.trace_events import Event

Meaning = tuple[str, str | dict[str, str]]
"""What a metric says, and the attribute of a line of the table; or several, by another label."""
QUANTILES = {"0.5": "lateness_p50_s", "0.99": "lateness_p99_s"}
ENDS = {end: end for end in ("complete", "early", "timeout")}
ARRIVALS: dict[str, Meaning] = {
    "wait_seconds": ("Mean time from a rank's arrival to the last one's.", "wait_s"),
    "arrived_last_ratio": ("Share of operations in which the rank was the last to arrive.", "last"),
    "lateness_seconds": ("How long after the median arrival a rank came.", QUANTILES),
    "wasted_seconds_total": (
        "What all others together would have waited for this rank alone.",
        "wasted_s",
    ),
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
SECOND_LABELS = {"lateness_seconds": "quantile", "stages_total": "end"}


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
    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    if isinstance(attributes, str):
        family = kind(f"latecomer_{name}", text, labels=["rank"])
        for rank, line in lines:
            family.add_metric([str(rank)], getattr(line, attributes))
        return family

    family = kind(f"latecomer_{name}", text, labels=["rank", SECOND_LABELS[name]])
    for rank, line in lines:
        for label, attribute in attributes.items():
            family.add_metric([str(rank), label], getattr(line, attribute))
    return family


def write_prometheus(summary: Summary, path: str | os.PathLike[str]) -> None:
    """Write the text file at ``path``, at once or not at all."""
    write_to_textfile(os.fspath(path), _Metrics(summary))


def trace(ranks: Sequence[Rank], operations: range | None = None) -> list[Event]:
    """The trace's events, of these operations only (default: all)."""
    events: list[Event] = []
    for rank in ranks:
        events += _of_rank(rank, operations)

    arrivals_s = [event["ts"] for event in events if event["ph"] == "i"]
    start_s = min(arrivals_s, default=0.0)
    for event in events:
        if "ts" in event:
            event["ts"] = round((event["ts"] - start_s) * 1e6, 3)
    return events


def _of_rank(rank: Rank, operations: range | None) -> Iterator[Event]:
    """One rank's events, in seconds."""

    def is_chosen(event: Record | Round | Stage) -> bool:
        return operations is None or event.operation in operations

    yield trace_events.name(rank.rank, f"rank {rank.rank}")
    if rank.origin is not None:
        details = msgspec.to_builtins(rank.origin)
        yield {"ph": "M", "name": ORIGIN, "pid": rank.rank, "args": details}

    for record in filter(is_chosen, rank.records):
        yield from _of_record(record)

    for ended_round in filter(is_chosen, rank.rounds):
        yield from _span(
            f"{ended_round.phase} round {ended_round.round}",
            category="round",
            operation=ended_round.operation,
            rank=rank.rank,
            began_s=ended_round.began_s,
            ended_s=ended_round.ended_s,
            arguments={},
        )

    for stage in filter(is_chosen, rank.stages):
        yield from _span(
            f"stage {stage.stage}, {stage.end}",
            category=f"stage {stage.stage}",
            operation=stage.operation,
            rank=rank.rank,
            began_s=stage.began_s,
            ended_s=stage.ended_s,
            arguments={"due": stage.due, "lost": stage.lost},
        )

    for step in rank.steps:
        values = {
            "loss, %": 100 * step.lost / max(1, step.due),
            "stages timed out": step.timeout,
            "stages ended early": step.early,
            "incast": step.incast,
            "pacing, MB/s": step.rate / 1e6,
        }
        for name, value in values.items():
            yield {
                "ph": "C",
                "pid": rank.rank,
                "ts": step.ended_s,
                "name": name,
                "args": {"step": value},
            }


def _of_record(record: Record) -> Iterator[Event]:
    operation = record.operation
    rank = record.rank
    arrived_s = record.arrived_s
    arguments = {
        "bytes": record.bytes,
        "way": record.way,
        "late": list(record.late),
        "reason": record.reason,
        "clock_uncertainty_us": record.uncertainty_s * 1e6,
    }
    yield {
        "name": f"rank {rank} arrives at operation {operation}",
        "cat": "arrival",
        "ph": "i",
        "s": "p",
        "pid": rank,
        "tid": 0,
        "ts": arrived_s,
        "args": arguments,
    }

    category = "operation"
    name = f"operation {operation}"
    yield from _span(name, category, operation, rank, arrived_s, record.done_s, arguments)
    if record.decided_s > arrived_s:
        name = "decision"
        yield from _span(name, category, operation, rank, arrived_s, record.decided_s, arguments)


def _span(
    name: str,
    category: str,
    operation: int,
    rank: int,
    began_s: float,
    ended_s: float,
    arguments: Event,
) -> list[Event]:
    """On a track of its own; nothing where the end is unknown."""
    if math.isnan(ended_s):
        return []
    track = {"name": name, "cat": category, "id": operation, "pid": rank, "tid": 0}
    return trace_events.span(track, began_s, ended_s, args=arguments)


def write_trace(
    ranks: Sequence[Rank], path: str | os.PathLike[str], operations: range | None = None
) -> None:
    """Write the trace to ``path`` (JSON)."""
    Path(path).write_text(trace_events.document(trace(ranks, operations)))
