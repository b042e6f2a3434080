"""What ``verify --device SETS`` adds to the report on a schedule."""

from __future__ import annotations

from verify import kernel
from verify.core.schedule import Schedule
from verify.core.verdict import Report, Verdict
from verify.device.check import DeviceReport, check
from verify.device.program import device_program, document, require_power_of_two
from verify.errors import ArgumentError
from verify.loss.command import Addition
from verify.report.render import evidence, listed

MOST_SETS = 16


def require_sets(sets: int | None) -> None:
    """ArgumentError for a number of staging sets that can't be."""
    if sets is not None and not 1 <= sets <= MOST_SETS:
        raise ArgumentError("--device", sets, f"must be 1 to {MOST_SETS} sets", "The runtime has 2")
    if sets is not None:
        require_power_of_two(sets, "--device")


def addition(
    schedule: Schedule,
    report: Report,
    sets: int,
    data: bytes,
    timeout_s: float | None = None,
) -> Addition:
    """Check the program that one kernel per rank runs, of a schedule that is not refuted.

    With ``timeout_s``, the extracted checker is asked, too: about the rows, and ``data``, the file.
    """
    if report.verdict is Verdict.REFUTED:
        text = "  device program not examined: the schedule is wrong"
        return Addition(text, None, Verdict.REFUTED)
    program = device_program(schedule, sets)
    found = check(program, schedule)
    if timeout_s is not None:
        text_of_program = document(program, data)
        found.results["coq_kernel"] = kernel.opinion(text_of_program, found, timeout_s)
    return Addition("\n".join(lines(found)), found.to_json(), found.verdict)


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
