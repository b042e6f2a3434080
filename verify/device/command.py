"""What ``verify --device SETS`` adds to the report on a schedule."""

from __future__ import annotations

from collections.abc import Callable

from latecomer.verify.core.schedule import Schedule
from latecomer.verify.core.verdict import Report, Result, Verdict
from latecomer.verify.device.check import DeviceReport, check
from latecomer.verify.device.program import device_program, document
from latecomer.verify.device.stages import StagesReport, check_stages
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


def addition_in_stages(schedule: Schedule, report: Report, sets: int, nodes: int) -> Addition:
    """Check the kernels and transfers of ``nodes`` nodes, of a schedule that is not refuted.

    Raises:
        ArgumentError: the schedule's ranks are not of so many equal nodes.
    """
    if report.verdict is Verdict.REFUTED:
        text = "  stages not examined: the schedule is wrong"
        return Addition(text, None, Verdict.REFUTED)
    stages_report = check_stages(schedule, nodes, sets)
    text = "\n".join(lines_of_stages(stages_report))
    return Addition(text, stages_report.to_json(), stages_report.verdict)


def lines_of_stages(report: StagesReport) -> list[str]:
    """The report as text, below that on its schedule: each node's part of a stage on a line."""
    proved = " for any number of operations" * (report.verdict is Verdict.PROVED)
    shown = [
        f"  kernels inside {report.nodes} nodes, transfers between them: "
        f"{report.verdict.value.upper()}{proved}",
        f"    {report.stages} stages, those with even numbers inside",
        *listed({"in_stages": report.results["in_stages"]}),
    ]
    for (stage, node), part in report.parts:
        size = f"{part.rows} rows, {part.sets} x {part.slots} slots"
        shown.append(f"    stage {stage} of node {node}: {part.verdict.value.upper()}, {size}")
    for result in report.results.values():
        if result.counterexample is not None:
            shown += evidence(result.counterexample)
    return shown


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
