"""A year of a real cluster: which of its servers were out, and when.

Source: stepfun-ai/InfiniteHBD-Trace (Apache-2.0), ``fault_trace.json``: 584 faults of 400 servers
in 348 days, published with "InfiniteHBD" (SIGCOMM 2025). It is not part of this project:

    git clone https://github.com/stepfun-ai/InfiniteHBD-Trace
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

SERVERS = 400
DAYS = 348.0


class _Event(msgspec.Struct):
    node_id: str
    event_time: float  # days
    event_type: Literal["fault_start", "fault_end"]
    fault_type: dict[str, str]


@dataclass(frozen=True, order=True)
class Outage:
    """A server, or a replica, is out; in days."""

    begins: float
    ends: float
    who: str


def faults(path: Path) -> list[Outage]:
    """The trace's faults, by their beginning; a server may have several at the same time."""
    began: dict[tuple[str, tuple[str, ...]], list[float]] = {}
    found = []
    for event in msgspec.json.decode(path.read_bytes(), type=list[_Event]):
        fault = event.node_id, tuple(event.fault_type.values())
        if event.event_type == "fault_start":
            began.setdefault(fault, []).append(event.event_time)
        else:
            found.append(Outage(began[fault].pop(0), event.event_time, event.node_id))
    return sorted(found)


def merged(outages: Iterable[Outage]) -> list[Outage]:
    """The same with one outage where several of one overlap, and none that takes no time."""
    last: dict[str, Outage] = {}
    done = []
    for outage in sorted(outages):
        before = last.get(outage.who)
        if before is not None and outage.begins <= before.ends:
            last[outage.who] = Outage(before.begins, max(before.ends, outage.ends), outage.who)
            continue
        if before is not None:
            done.append(before)
        last[outage.who] = outage
    return sorted(outage for outage in [*done, *last.values()] if outage.ends > outage.begins)


def of_replicas(found: list[Outage], replicas: int, first_day: float, days: float) -> list[Outage]:
    """The faults that begin in a stretch of the trace, as outages of a few replicas.

    Servers are dealt out to replicas in the order of their first fault. Days count from the
    stretch's beginning.
    """
    last_day = first_day + days
    inside = [fault for fault in found if first_day <= fault.begins < last_day]
    servers = list(dict.fromkeys(fault.who for fault in inside))
    replica_of = {server: str(number % replicas) for number, server in enumerate(servers)}
    return merged(
        Outage(fault.begins - first_day, min(fault.ends - first_day, days), replica_of[fault.who])
        for fault in inside
    )
