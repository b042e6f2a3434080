"""What ranks remembered, read back from a trace that ``runtime.watch`` wrote.

The inverse of :func:`runtime.telemetry.export.trace`, but for what is not in a trace: how many
messages were sent, and losses of steps over UBT. Times are seconds since the first arrival.
"""

from __future__ import annotations

import math
import os
import re
from collections import defaultdict
from pathlib import Path

import msgspec

from runtime.telemetry.records import Rank, Record, Round, Stage
from verify.errors import FormatError

_ARRIVAL = re.compile(r"rank \d+ arrives at operation (\d+)")
_ROUND = re.compile(r"(.*) round (\d+)")
_STAGE = re.compile(r"stage (\d+), (\w+)")


class _About(msgspec.Struct, frozen=True):
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
        FormatError: not a trace of ``runtime.watch``.
    """
    try:
        trace = msgspec.json.decode(Path(path).read_bytes(), type=_Trace)
        return _ranks(trace, os.fspath(path))
    except OSError as error:
        raise FormatError(os.fspath(path), error.strerror or "can't be read") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise FormatError(os.fspath(path), f"is no trace of runtime.watch: {error}") from None


def _ranks(trace: _Trace, name: str) -> list[Rank]:
    begun: dict[tuple[int, str, str, int | str], float] = {}
    ended: dict[tuple[int, str, int | str], float] = {}  # decisions, and operations
    arrivals: list[tuple[int, _Event]] = []
    rounds: dict[int, list[Round]] = defaultdict(list)
    stages: dict[int, list[Stage]] = defaultdict(list)
    for event in trace.traceEvents:
        key = (event.pid, event.cat, event.name, event.id)
        time_s = event.ts / 1e6
        if event.ph == "i" and (found := _ARRIVAL.fullmatch(event.name)):
            arrivals.append((int(found[1]), event))
        elif event.ph == "b":
            begun[key] = time_s
            if found := _STAGE.fullmatch(event.name):
                about = msgspec.json.decode(event.args, type=_About)
                stage = Stage(
                    int(event.id), int(found[1]), time_s, math.nan, found[2], about.due, about.lost
                )
                stages[event.pid].append(stage)
        elif event.ph == "e" and key in begun:
            if event.cat == "round" and (found := _ROUND.fullmatch(event.name)):
                each = Round(int(event.id), found[1], int(found[2]), begun[key], time_s)
                rounds[event.pid].append(each)
            else:
                kind = "decision" if event.name == "decision" else event.cat
                ended[event.pid, kind, event.id] = time_s
    if not arrivals:
        raise FormatError(name, "has no arrival in it, so it is no trace of runtime.watch")
    records: dict[int, list[Record]] = defaultdict(list)
    for number, event in arrivals:
        records[event.pid].append(_record(number, event, ended))
    return [
        Rank(
            rank,
            tuple(sorted(records[rank], key=lambda record: record.operation)),
            tuple(rounds[rank]),
            tuple(
                msgspec.structs.replace(
                    stage,
                    ended_s=ended.get((rank, f"stage {stage.stage}", stage.operation), math.nan),
                )
                for stage in stages[rank]
            ),
        )
        for rank in sorted(records)
    ]


def _record(number: int, event: _Event, ended: dict[tuple[int, str, int | str], float]) -> Record:
    about = msgspec.json.decode(event.args, type=_About)
    arrived_s = event.ts / 1e6
    return Record(
        operation=number,
        rank=event.pid,
        arrived_s=arrived_s,
        decided_s=ended.get((event.pid, "decision", number), arrived_s),
        done_s=ended.get((event.pid, "operation", number), math.nan),
        uncertainty_s=about.clock_uncertainty_us / 1e6,
        bytes=about.bytes,
        way=about.way,
        late=about.late,
        reason=about.reason,
    )
