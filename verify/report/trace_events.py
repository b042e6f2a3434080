"""The JSON of the Trace Event Format, for Perfetto and chrome://tracing; times are microseconds."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

Event = dict[str, Any]


def name(pid: int, text: str, tid: int | None = None) -> Event:
    """What a process, or one of its threads, is called."""
    event: Event = {"ph": "M", "name": "process_name", "pid": pid}
    if tid is not None:
        event |= {"name": "thread_name", "tid": tid}
    return {**event, "args": {"name": text}}


def span(identity: Event, begin: float, end: float, **details: Any) -> list[Event]:
    """Something that may overlap others.

    Args:
        identity: its name, cat, id, pid and tid.
        begin, end: microseconds.
        details: further fields of the event at its begin, such as ``args``.
    """
    return [{**identity, "ph": "b", "ts": begin, **details}, {**identity, "ph": "e", "ts": end}]


def document(events: Iterable[Event]) -> str:
    """The whole file."""
    return json.dumps({"traceEvents": list(events), "displayTimeUnit": "ms"})
