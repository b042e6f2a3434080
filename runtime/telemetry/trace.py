"""Arrivals, rounds and operations of all ranks as a trace for Perfetto or chrome://tracing.

Format: the JSON of the Trace Event Format ("b" and "e": begin and end of something that may
overlap others; "i": a moment; "C": counters; "M": names). A process per rank; operations are in
flight together, so each has tracks of its own. Over UBT an operation's stages are spans, and loss,
incast and pacing rate of each step counters. Times are microseconds on the reference rank's clock
since the first arrival.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from runtime.telemetry.records import Rank, Record, Round, Stage, Step

Event = dict[str, Any]


def events(ranks: Sequence[Rank], operations: range | None = None) -> list[Event]:
    """The trace's events.

    Args:
        ranks: what they remember.
        operations: only these (default: all).
    """

    def chosen(number: int) -> bool:
        return operations is None or number in operations

    records = [each for rank in ranks for each in rank.records if chosen(each.operation)]
    rounds = [each for rank in ranks for each in rank.rounds if chosen(each.operation)]
    start_s = min((record.arrived_s for record in records), default=0.0)
    found: list[Event] = [
        {"name": "process_name", "ph": "M", "pid": r.rank, "args": {"name": f"rank {r.rank}"}}
        for r in ranks
    ]
    for record in records:
        found += _operation(record, start_s)
    for each in rounds:
        found += _round(each, start_s)
    for rank in ranks:
        for stage in rank.stages:
            if chosen(stage.operation):
                found += _stage(stage, start_s)
        for step in rank.steps:
            found += _counters(step, rank.rank, start_s)
    return found


def write(
    ranks: Sequence[Rank], path: str | os.PathLike[str], operations: range | None = None
) -> None:
    """Write the trace to ``path`` (JSON)."""
    whole = {"traceEvents": events(ranks, operations), "displayTimeUnit": "ms"}
    Path(path).write_text(json.dumps(whole))


def _operation(record: Record, start_s: float) -> Iterator[Event]:
    about = {
        "bytes": record.bytes,
        "way": record.way,
        "late": list(record.late),
        "reason": record.reason,
        "clock_uncertainty_us": record.uncertainty_s * 1e6,
    }
    yield {
        "name": f"rank {record.rank} arrives at operation {record.operation}",
        "cat": "arrival",
        "ph": "i",
        "s": "p",
        "pid": record.rank,
        "tid": 0,
        "ts": _us(record.arrived_s, start_s),
        "args": about,
    }
    parts = [(f"operation {record.operation}", record.arrived_s, record.done_s)]
    if record.decided_s > record.arrived_s:
        parts.append(("decision", record.arrived_s, record.decided_s))
    for name, since_s, until_s in parts:
        track = ("operation", record.operation, record.rank)
        yield from _span(name, track, since_s - start_s, until_s - start_s, about)


def _round(each: Round, start_s: float) -> Iterator[Event]:
    name = f"{each.phase} round {each.round}"
    track = ("round", each.operation, each.rank)
    yield from _span(name, track, each.began_s - start_s, each.ended_s - start_s, {})


def _stage(each: Stage, start_s: float) -> Iterator[Event]:
    name = f"stage {each.stage}, {each.end}"
    track = (f"stage {each.stage}", each.operation, each.rank)
    about = {"due": each.due, "lost": each.lost}
    yield from _span(name, track, each.began_s - start_s, each.ended_s - start_s, about)


def _counters(step: Step, rank: int, start_s: float) -> Iterator[Event]:
    """A step's counters, at its end."""
    values = {
        "loss, %": 100 * step.lost / max(1, step.due),
        "stages timed out": step.timeout,
        "stages ended early": step.early,
        "incast": step.incast,
        "pacing, MB/s": step.rate / 1e6,
    }
    for name, value in values.items():
        ts = _us(step.ended_s, start_s)
        yield {"name": name, "ph": "C", "pid": rank, "ts": ts, "args": {"step": value}}


def _span(
    name: str, track: tuple[str, int, int], since_s: float, until_s: float, about: Event
) -> Iterator[Event]:
    """Begin and end, on the track (category, operation, rank); nothing where the end is unknown."""
    if math.isnan(until_s):
        return
    category, operation, rank = track
    where = {"name": name, "cat": category, "id": operation, "pid": rank, "tid": 0}
    yield {**where, "ph": "b", "ts": _us(since_s), "args": about}
    yield {**where, "ph": "e", "ts": _us(until_s)}


def _us(seconds: float, start_s: float = 0.0) -> float:
    return round((seconds - start_s) * 1e6, 3)
