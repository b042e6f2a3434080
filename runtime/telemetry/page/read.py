"""What ranks remembered, read back from a trace that ``latecomer.watch`` wrote.

The inverse of :func:`latecomer.runtime.telemetry.export.trace`, but for what is not in a trace: how
many messages were sent, and losses of steps over UBT. Times are seconds since the first arrival.
"""

from __future__ import annotations

import math
import os
import re
from collections import defaultdict
from pathlib import Path

import msgspec

from latecomer.runtime.telemetry.origin import ORIGIN, Origin
from latecomer.runtime.telemetry.records import Rank, Record, Round, Stage
from latecomer.verify.errors import FormatError

# as ``latecomer.runtime.telemetry.export`` names its events
_ARRIVAL = re.compile(r"rank \d+ arrives at operation (\d+)")
_ROUND = re.compile(r"(.*) round (\d+)")
_STAGE = re.compile(r"stage (\d+), (\w+)")


class _Arguments(msgspec.Struct, frozen=True):
    """What is written with an arrival, or with a stage over UBT."""

    bytes: int = 0
    way: str = ""
    late: tuple[int, ...] = ()
    reason: str = ""
    clock_uncertainty_us: float = 0.0
    due: int = 0
    lost: int = 0


class _Event(msgspec.Struct, frozen=True):
    """As far as it is read; times are microseconds."""

    ph: str
    pid: int
    name: str = ""
    cat: str = ""
    id: int | str = -1
    ts: float = 0.0
    args: msgspec.Raw = msgspec.Raw(b"{}")


class _Trace(msgspec.Struct, frozen=True):
    traceEvents: tuple[_Event, ...]


def read_trace(path: str | os.PathLike[str]) -> list[Rank]:
    """What each rank remembered, by rank.

    Raises:
        FormatError: not a trace of ``latecomer.watch``.
    """
    try:
        trace = msgspec.json.decode(Path(path).read_bytes(), type=_Trace)
        return _ranks(trace, os.fspath(path))
    except OSError as error:
        raise FormatError(os.fspath(path), error.strerror or "can't be read") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise FormatError(os.fspath(path), f"is no trace of latecomer.watch: {error}") from None


_Key = tuple[int, str, int | str]
"""(rank, kind, operation): kinds are "decision", and the category of any other event."""


def _ranks(trace: _Trace, name: str) -> list[Rank]:
    begun_s: dict[tuple[int, str, str, int | str], float] = {}
    ended_s: dict[_Key, float] = {}  # decisions, operations and stages
    arrivals: list[tuple[int, _Event]] = []  # with their operations
    rounds: dict[int, list[Round]] = defaultdict(list)
    stages: dict[int, list[Stage]] = defaultdict(list)
    origins: dict[int, Origin] = {}

    for event in trace.traceEvents:
        key = (event.pid, event.cat, event.name, event.id)
        time_s = event.ts / 1e6
        if event.ph == "i" and (match := _ARRIVAL.fullmatch(event.name)):
            arrivals.append((int(match[1]), event))
        elif event.ph == "M" and event.name == ORIGIN:
            origins[event.pid] = msgspec.json.decode(event.args, type=Origin)
        elif event.ph == "b":
            begun_s[key] = time_s
            if match := _STAGE.fullmatch(event.name):
                stages[event.pid].append(_stage(match, event))
        elif event.ph == "e" and key in begun_s:
            if event.cat == "round" and (match := _ROUND.fullmatch(event.name)):
                phase = match[1]
                number = int(match[2])
                ended_round = Round(int(event.id), phase, number, begun_s[key], time_s)
                rounds[event.pid].append(ended_round)
            else:
                kind = "decision" if event.name == "decision" else event.cat
                ended_s[event.pid, kind, event.id] = time_s

    if not arrivals:
        raise FormatError(name, "has no arrival in it, so it is no trace of latecomer.watch")

    records: dict[int, list[Record]] = defaultdict(list)
    for operation, event in arrivals:
        records[event.pid].append(_record(operation, event, ended_s))

    ranks = []
    for rank in sorted(records):
        by_operation = sorted(records[rank], key=lambda record: record.operation)
        ended_stages = [_with_end(stage, rank, ended_s) for stage in stages[rank]]
        ranks.append(
            Rank(
                rank=rank,
                records=tuple(by_operation),
                rounds=tuple(rounds[rank]),
                stages=tuple(ended_stages),
                origin=origins.get(rank),
            )
        )
    return ranks


def _stage(match: re.Match[str], event: _Event) -> Stage:
    """A stage that begins; when it ended is said by another event."""
    arguments = msgspec.json.decode(event.args, type=_Arguments)
    operation = int(event.id)
    began_s = event.ts / 1e6
    how_ended = match[2]
    return Stage(
        operation, int(match[1]), began_s, math.nan, how_ended, arguments.due, arguments.lost
    )


def _with_end(stage: Stage, rank: int, ended_s: dict[_Key, float]) -> Stage:
    key = (rank, f"stage {stage.stage}", stage.operation)
    return msgspec.structs.replace(stage, ended_s=ended_s.get(key, math.nan))


def _record(operation: int, event: _Event, ended_s: dict[_Key, float]) -> Record:
    arguments = msgspec.json.decode(event.args, type=_Arguments)
    arrived_s = event.ts / 1e6
    return Record(
        operation=operation,
        rank=event.pid,
        arrived_s=arrived_s,
        decided_s=ended_s.get((event.pid, "decision", operation), arrived_s),
        done_s=ended_s.get((event.pid, "operation", operation), math.nan),
        uncertainty_s=arguments.clock_uncertainty_us / 1e6,
        bytes=arguments.bytes,
        way=arguments.way,
        late=arguments.late,
        reason=arguments.reason,
    )
