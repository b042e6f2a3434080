"""What ``verify --loss F [--draw FILE.svg]`` adds to the report on a schedule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from verify.core.schedule import Schedule
from verify.core.verdict import Report, Verdict
from verify.errors import ArgumentError
from verify.loss.examine import examine, require_few
from verify.loss.picture import draw
from verify.loss.render import render
from verify.output import write_atomically


class Addition(msgspec.Struct, frozen=True):
    """Lines for people, the object ``loss`` for machines (None: not examined), and a verdict."""

    text: str
    json: dict[str, Any] | None
    verdict: Verdict


def check_options(at_most: int | None, picture: Path | None, files: int) -> None:
    """Refuse what can't be done before any file is read (ArgumentError)."""
    if at_most is not None:
        require_few(at_most)
    if picture is None:
        return
    if at_most is None:
        raise ArgumentError("--draw", str(picture), "is used only with --loss", "Add --loss 1")
    if files != 1:
        raise ArgumentError("--draw", str(picture), "needs exactly one schedule file")
    if picture.suffix != ".svg":
        raise ArgumentError("--draw", str(picture), "must end in .svg")


def addition(
    name: str,
    schedule: Schedule,
    report: Report,
    at_most: int,
    limit_s: float,
    picture: Path | None,
) -> Addition:
    """Examine the losses of a schedule that ``report`` does not refute, and draw them.

    Raises:
        ArgumentError: ``at_most`` is out of range, or the picture can't be drawn or written.
    """
    if report.verdict is Verdict.REFUTED:
        text = "  losses not examined: the schedule is wrong without any"
        return Addition(text, None, Verdict.REFUTED)
    losses = examine(schedule, at_most, limit_s)
    if picture is not None:
        title = f"{name}: what a lost transfer leaves missing"
        write_atomically(picture, draw(schedule, losses, title).encode())
    return Addition(render(losses), losses.to_json(), losses.verdict)
