"""``verify FILE --html PAGE``: the page of whatever family the file is of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from latecomer.verify.asynchronous.teccl import FlowReport, Solution, decode_flows
from latecomer.verify.asynchronous.verdict import AsynchronousReport
from latecomer.verify.core.schedule import Schedule
from latecomer.verify.core.verdict import BaseReport, Report
from latecomer.verify.errors import ArgumentError
from latecomer.verify.output import write_atomically
from latecomer.verify.pipeline.schedule import PipelineSchedule
from latecomer.verify.pipeline.verdict import PipelineReport
from latecomer.verify.viewer import blocks, collective, flows, pipeline
from latecomer.verify.viewer.page import page, shared
from latecomer.verify.viewer.part import parse_part

_RING = ("holdings.js", "ring.js", "rounds.js", "held.js", "moment.js", "collective.js")
SCRIPTS = {
    "collective": _RING,
    "flows": ("volumes.js", *_RING),
    "pipeline": ("timeline.js", "pipeline.js"),
    "blocks": ("timeline.js", "blocks.js"),
}
"""A family's own scripts, in order."""


def model_of(
    name: str, data: bytes, schedule: object, report: BaseReport, part: str | None = None
) -> dict[str, Any]:
    """The model of a file that was checked.

    Args:
        name: of the file, ``data``: its text.
        schedule: what was read from it, as ``latecomer.verify.families.parse`` does.
        report: what was found.
        part: what to show of something large, as ``16-31``.

    Raises:
        ArgumentError: more than a page can show, or no such part.

    Examples:
        >>> from latecomer import synth, verify
        >>> from latecomer.verify.viewer.command import model_of
        >>> large = synth.ring(64)
        >>> model = model_of("ring", b"", large, verify.check(large), part="16-31")
        >>> model["family"], model["ranks"], model["shown"]
        ('collective', 64, [16, 32])
    """
    parsed_part = None if part is None else parse_part(part)
    if isinstance(schedule, Schedule) and isinstance(report, Report):
        return collective.model(name, schedule, report, parsed_part)
    if isinstance(schedule, PipelineSchedule) and isinstance(report, PipelineReport):
        return pipeline.model(name, schedule, report, parsed_part)
    if isinstance(report, AsynchronousReport):
        return blocks.model(name, report, parsed_part)
    assert isinstance(report, FlowReport)
    if part is not None:
        raise ArgumentError("--html-part", part, "is not for flows of TE-CCL")
    solution = schedule if isinstance(schedule, Solution) else decode_flows(data, name)
    return flows.model(name, solution, report)


def page_of(model: dict[str, Any]) -> str:
    """The page of a model: the text of an HTML file that needs nothing else.

    Examples:
        >>> from latecomer import synth, verify
        >>> from latecomer.verify.viewer.command import model_of, page_of
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
    report: BaseReport,
) -> None:
    """Write the page of the file ``path``, if there is a target; ArgumentError if it can't be."""
    if target is not None:
        model = model_of(path.name, data, schedule, report, part)
        write_atomically(target, page_of(model).encode())
