"""How an answer is shown: one frame for all families of collectives, who add lines and facts.

Text for people and one JSON object for machines are of the same facts. The frame says where the
schedule was written, that it is proved, what it is for, and what its optimality rests on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from latecomer.synth.answer import Answer
from latecomer.synth.cost import Cost, Setting
from latecomer.synth.units import format_bandwidth, format_bytes, format_seconds
from latecomer.verify.core.schedule import Incast, Schedule
from latecomer.verify.core.verdict import Report

Collective = Answer[Schedule, Report]
UNITS = "S: buffer bytes, alpha: seconds per message, beta: seconds per byte"


def text(path: str, title: str, lines: Iterable[str]) -> str:
    """The lines for people; those after the first are indented."""
    return "\n".join([f"{path}: proved; {title}", *(f"  {line}" for line in lines)])


def size(schedule: Schedule) -> str:
    """For the title: what kind of schedule this is."""
    return f"AllReduce of {schedule.ranks} ranks in {chunks(schedule.chunks)}"


def chunks(number: int) -> str:
    """A number of chunks in words."""
    return f"{number} chunk{'s' if number != 1 else ''}"


def ports(schedule: Schedule) -> str:
    """For the title: the model of the ports."""
    kind = schedule.ports
    return f"{f'incast {kind.incast}' if isinstance(kind, Incast) else kind} ports"


def phases(schedule: Schedule, *, absent: bool = False) -> str:
    """The rounds of each phase, with the ranks that are absent from it where asked for."""
    return " + ".join(
        f"{len(phase.rounds)} {phase.name}"
        + "".join(f" (without rank {rank})" for rank in phase.absent if absent)
        for phase in schedule.phases
    )


def legend(setting: Setting | None) -> str:
    """The meaning of the symbols, or their values."""
    if setting is None:
        return f"({UNITS})"
    return (
        f"(S = {format_bytes(setting.buffer_bytes)}, alpha = {format_seconds(setting.alpha_s)}, "
        f"1/beta = {format_bandwidth(setting.bandwidth)})"
    )


def costs(named: dict[str, Cost], setting: Setting | None) -> list[str]:
    """A line for each cost under its label, with its time where there is a setting."""
    width = max(map(len, named))
    formula = max(len(str(cost)) for cost in named.values())
    lines: list[str] = []
    for label, cost in named.items():
        line = f"{'' if lines else 'predicted':<10}  {label:<{width}}  {cost!s:>{formula}}"
        if setting is not None:
            line += f"  {format_seconds(setting.seconds(cost)):>9}"
        lines.append(line)
    return lines


def facts(path: str, answer: Collective) -> dict[str, Any]:
    """What the JSON object of every family begins with."""
    schedule = answer.schedule
    report = answer.report
    return {
        "file": path,
        "verdict": report.verdict.value,
        "ranks": schedule.ranks,
        "chunks": schedule.chunks,
        "late": schedule.late,
        "ports": schedule.ports,
        "phases": {phase.name: len(phase.rounds) for phase in schedule.phases},
        "completion_rounds": report.completion_rounds,
        "lower_bound": answer.bound,
        "optimal": True if answer.optimal else report.optimal,
        "basis": answer.basis,
        "basis_reason": answer.reason,
    }


def cost_facts(cost: Cost, setting: Setting | None) -> dict[str, Any]:
    """A cost for the JSON object; seconds where there is a setting."""
    return {
        "alphas": cost.messages,
        "share": float(cost.share),
        "seconds": None if setting is None else setting.seconds(cost),
    }


def standard(path: str, answer: Collective, cost: Cost) -> tuple[str, dict[str, Any]]:
    """A schedule that is known by name, without a straggler: text and facts."""
    schedule = answer.schedule
    title = f"{size(schedule)}, {ports(schedule)}"
    lines = [
        f"rounds      {phases(schedule)}",
        f"completion  {answer.value} rounds, lower bound {answer.bound}: {answer.claim}",
        f"predicted   {cost}",
        f"            {legend(None)}",
    ]
    predicted = {"completion": cost_facts(cost, None)}
    return text(path, title, lines), {**facts(path, answer), "predicted": predicted}


def marked(rows: Iterable[tuple[bool, str]], indent: int) -> list[str]:
    """Candidates, one a line, a star at the winner."""
    return [f"{'':{indent}}{'*' if winner else ' '} {row}" for winner, row in rows]
