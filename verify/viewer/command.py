"""``verify FILE --html PAGE``: the page of whatever family the file is of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from verify.asynchronous.teccl import FlowReport
from verify.asynchronous.verdict import AsynchronousReport
from verify.core.schedule import Schedule
from verify.core.verdict import Report
from verify.errors import ArgumentError
from verify.output import write_atomically
from verify.pipeline.schedule import PipelineSchedule
from verify.pipeline.verdict import PipelineReport
from verify.viewer import blocks, collective, flows, pipeline
from verify.viewer.page import page, shared
from verify.viewer.part import parse_part

_RING = ("holdings.js", "ring.js", "rounds.js", "held.js", "moment.js", "collective.js")
SCRIPTS = {
    "collective": _RING,
    "flows": ("volumes.js", *_RING),
    "pipeline": ("timeline.js", "pipeline.js"),
    "blocks": ("timeline.js", "blocks.js"),
}
"""A family's own scripts, in order."""

Reports = Report | PipelineReport | AsynchronousReport | FlowReport


def require_html(target: Path | None, part: str | None, files: int) -> None:
    """Refuse what can't be met, before any file is read: a page is of one file."""
    if target is not None and files != 1:
        raise ArgumentError("--html", str(target), "needs exactly one schedule file")
    if part is not None:
        parse_part(part)
        if target is None:
            raise ArgumentError("--html-part", part, "is for --html")


def model_of(
    name: str, data: bytes, schedule: object, report: Reports, part: str | None = None
) -> dict[str, Any]:
    """The model of a file that was checked.

    Args:
        name: of the file, ``data``: its text.
        schedule: what was read from it; for others' programs the report itself.
        report: what was found.
        part: what to show of something large, as ``16-31``.

    Raises:
        ArgumentError: more than a page can show, or no such part.

    Examples:
        >>> import synth, verify
        >>> from verify.viewer.command import model_of
        >>> large = synth.ring(64)
        >>> model = model_of("ring", b"", large, verify.check(large), part="16-31")
        >>> model["family"], model["ranks"], model["shown"]
        ('collective', 64, [16, 32])
    """
    some = None if part is None else parse_part(part)
    if isinstance(schedule, Schedule) and isinstance(report, Report):
        return collective.model(name, schedule, report, some)
    if isinstance(schedule, PipelineSchedule) and isinstance(report, PipelineReport):
        return pipeline.model(name, schedule, report, some)
    if isinstance(report, AsynchronousReport):
        return blocks.model(name, report, some)
    assert isinstance(report, FlowReport)
    if part is not None:
        raise ArgumentError("--html-part", part, "is not for flows of TE-CCL")
    return flows.model(name, data, report)


def page_of(model: dict[str, Any]) -> str:
    """The page of a model: the text of an HTML file that needs nothing else.

    Examples:
        >>> import synth, verify
        >>> from verify.viewer.command import model_of, page_of
        >>> ring = synth.ring(4)
        >>> model = model_of("ring", verify.encode(ring), ring, verify.check(ring))
        >>> page_of(model)[:15]
        '<!doctype html>'
    """
    return page(model, {name: shared(name) for name in SCRIPTS[model["family"]]})


def write_page(
    target: Path | None,
    part: str | None,
    path: Path,
    data: bytes,
    schedule: object,
    report: Reports,
) -> None:
    """Write the page of the file ``path``, if there is a target; ArgumentError if it can't be."""
    if target is not None:
        made = model_of(path.name, data, schedule, report, part)
        write_atomically(target, page_of(made).encode())
