"""What ``verify --loss F [--draw FILE.svg]`` adds to the report on a schedule."""

from __future__ import annotations

from pathlib import Path

from latecomer.verify.core.schedule import Schedule
from latecomer.verify.core.verdict import Report, Verdict
from latecomer.verify.loss.examine import examine
from latecomer.verify.loss.picture import draw
from latecomer.verify.loss.render import render
from latecomer.verify.output import write_atomically
from latecomer.verify.report.addition import Addition


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
