"""What ``verify --device SETS`` adds to the report on a schedule."""

from __future__ import annotations

from collections.abc import Callable

from latecomer.verify.core.schedule import Schedule
from latecomer.verify.core.verdict import Report, Result, Verdict
from latecomer.verify.device.check import DeviceReport, check
from latecomer.verify.device.program import device_program, document
from latecomer.verify.report.addition import Addition
from latecomer.verify.report.render import evidence, listed

Opinion = Callable[[bytes, DeviceReport], Result]
"""Of a text with rows in it, and what was found about them: what another checker says."""


def addition(
    schedule: Schedule,
    report: Report,
    sets: int,
    data: bytes,
    opinion: Opinion | None = None,
) -> Addition:
    """Check the program that one kernel per rank runs, of a schedule that is not refuted.

    Args:
        schedule: what was checked; ``report``: what was found.
        sets: staging sets of the program.
        data: the schedule file, uncompressed.
        opinion: asks the extracted checker, too, about the rows and the file.
    """
    if report.verdict is Verdict.REFUTED:
        text = "  device program not examined: the schedule is wrong"
        return Addition(text, None, Verdict.REFUTED)
    program = device_program(schedule, sets)
    device_report = check(program, schedule)
    if opinion is not None:
        device_report.results["coq_kernel"] = opinion(document(program, data), device_report)
    text = "\n".join(lines(device_report))
    return Addition(text, device_report.to_json(), device_report.verdict)


def lines(report: DeviceReport) -> list[str]:
    """The report as text, below that on its schedule."""
    sets = f"{report.sets} staging set{'s' if report.sets > 1 else ''}"
    proved = " for any number of operations" * (report.verdict is Verdict.PROVED)
    shown = [
        f"  one kernel per rank: {report.verdict.value.upper()}{proved}",
        f"    {report.rows} rows, {sets} of {report.slots} slots (a chunk each, cut into blocks)",
    ]
    shown += listed(report.results)
    for result in report.results.values():
        if result.counterexample is not None:
            shown += evidence(result.counterexample)
    return shown
