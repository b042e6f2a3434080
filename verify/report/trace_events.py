"""The JSON of the Trace Event Format, for Perfetto and chrome://tracing; times are microseconds."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

Event = dict[str, Any]


def name(pid: int, text: str, tid: int | None = None) -> Event:
    """What a process, or one of its threads, is called."""
    kind, thread = ("process_name", {}) if tid is None else ("thread_name", {"tid": tid})
    return {"ph": "M", "name": kind, "pid": pid, **thread, "args": {"name": text}}


def span(where: Event, begin: float, end: float, **about: Any) -> list[Event]:
    """Something that may overlap others; ``where``: name, cat, id, pid and tid."""
    return [{**where, "ph": "b", "ts": begin, **about}, {**where, "ph": "e", "ts": end}]


def document(events: Iterable[Event]) -> str:
    """The whole file."""
    return json.dumps({"traceEvents": list(events), "displayTimeUnit": "ms"})
