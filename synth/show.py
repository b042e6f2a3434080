"""What the commands print: lines for people, one JSON object for machines, of the same facts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from synth.cost import Cost, completion_cost, direct_cost, rhd_cost, ring_cost, waiting_cost
from synth.straggler.choose import Candidate, Setting
from synth.straggler.generate import Generated
from synth.units import format_bandwidth, format_bytes, format_seconds
from verify.core.schedule import Incast, Schedule
from verify.core.verdict import Report


def standard_text(path: str, schedule: Schedule, report: Report) -> str:
    """A standard schedule that was written to ``path``."""
    bound = f"{report.completion_rounds} rounds, lower bound {report.lower_bound}"
    lines = [
        *_head(path, schedule),
        f"  completion  {bound}: {_optimality(report)}",
        f"  predicted   {completion_cost(schedule)}",
    ]
    return "\n".join([*lines, *_legend(None)])


def generated_text(
    path: str, generated: Generated, setting: Setting | None, candidates: Sequence[Candidate]
) -> str:
    """A generated schedule that was written to ``path``."""
    schedule, report = generated.schedule, generated.report
    return "\n".join(
        [
            *_head(path, schedule),
            f"  completion  {report.completion_rounds} rounds, lower bound {report.lower_bound}: "
            f"{generated.verdict}",
            f"  found by    {generated.method}; {generated.winner.owners} owners; "
            f"{generated.seconds:.2f} s, seed {schedule.meta['seed']}",
            *_choice(candidates),
            *_predictions(schedule, setting),
            *_legend(setting),
        ]
    )


def standard_json(path: str, schedule: Schedule, report: Report) -> dict[str, Any]:
    """The facts of :func:`standard_text`."""
    return {
        "file": path,
        **_facts(schedule, report),
        "predicted": {"completion": _cost_json(completion_cost(schedule), None)},
    }


def generated_json(
    path: str, generated: Generated, setting: Setting | None, candidates: Sequence[Candidate]
) -> dict[str, Any]:
    """The facts of :func:`generated_text`."""
    costs = _costs(generated.schedule)
    return {
        "file": path,
        **_facts(generated.schedule, generated.report),
        "gap": generated.gap,
        "why": generated.verdict,
        "solver": generated.solver,
        "method": generated.winner.method,
        "owners": generated.winner.owners,
        "seed": generated.schedule.meta["seed"],
        "search_s": generated.seconds,
        "attempts": generated.attempts,
        "setting": setting,
        "predicted": {name: _cost_json(cost, setting) for name, cost in costs.items()},
        "candidates": [
            {"m": c.m, "predicted_s": c.predicted_s, "note": c.note} for c in candidates
        ],
    }


def _head(path: str, schedule: Schedule) -> list[str]:
    ports = schedule.ports
    shown = f"incast {ports.incast}" if isinstance(ports, Incast) else ports
    late = "".join(f", rank {rank} late" for rank in schedule.late)
    phases = " + ".join(
        f"{len(phase.rounds)} {phase.name}"
        + "".join(f" (without rank {rank})" for rank in phase.absent)
        for phase in schedule.phases
    )
    return [
        f"{path}: proved; AllReduce of {schedule.ranks} ranks in {schedule.chunks} chunks"
        f"{late}, {shown} ports",
        f"  rounds      {phases}",
    ]


def _optimality(report: Report) -> str:
    if report.optimal == "unknown":
        return "optimality unknown"
    return "optimal" if report.optimal else "not optimal"


def _choice(candidates: Sequence[Candidate]) -> list[str]:
    """Which m were considered, and the winner."""
    if not candidates:
        return []
    found = [c for c in candidates if c.found is not None]
    winner = min(found, key=lambda c: c.predicted_s)
    lines = [f"  chosen      m = {winner.m}, the least predicted time of those found"]
    for c in candidates:
        if c.found is None and c.m != 1 and abs(c.m - winner.m) > 1:
            continue  # the JSON has them all
        mark = "*" if c is winner else " "
        lines.append(f"            {mark} m = {c.m}: {format_seconds(c.predicted_s)} ({c.note})")
    return lines


def _costs(schedule: Schedule) -> dict[str, Cost]:
    n = schedule.ranks
    return {
        "completion": completion_cost(schedule),
        "reduce_scatter": waiting_cost(schedule),
        "ring": ring_cost(n),
        "rhd": rhd_cost(n),
        "direct": direct_cost(n),
    }


LABELS = {
    "completion": "this, once the late rank is there",
    "reduce_scatter": "  the wait that hides its ReduceScatter",
    "ring": "ring",
    "rhd": "recursive halving-doubling",
    "direct": "direct (incast)",
}


def _predictions(schedule: Schedule, setting: Setting | None) -> list[str]:
    costs = _costs(schedule)
    width = max(map(len, LABELS.values()))
    formula = max(len(str(cost)) for cost in costs.values())
    lines: list[str] = []
    for name, cost in costs.items():
        line = f"  {'' if lines else 'predicted':<10}  {LABELS[name]:<{width}}  {cost!s:>{formula}}"
        if setting is not None:
            line += f"  {format_seconds(setting.seconds(cost)):>9}"
        lines.append(line)
    return lines


def _legend(setting: Setting | None) -> list[str]:
    if setting is None:
        return [
            "              (S: buffer bytes, alpha: seconds per message, beta: seconds per byte)"
        ]
    return [
        f"              (S = {format_bytes(setting.buffer_bytes)}, "
        f"alpha = {format_seconds(setting.alpha_s)}, "
        f"1/beta = {format_bandwidth(setting.bandwidth)})"
    ]


def _facts(schedule: Schedule, report: Report) -> dict[str, Any]:
    return {
        "verdict": report.verdict.value,
        "ranks": schedule.ranks,
        "chunks": schedule.chunks,
        "late": schedule.late,
        "ports": schedule.ports,
        "phases": {phase.name: len(phase.rounds) for phase in schedule.phases},
        "completion_rounds": report.completion_rounds,
        "lower_bound": report.lower_bound,
        "optimal": report.optimal,
    }


def _cost_json(cost: Cost, setting: Setting | None) -> dict[str, Any]:
    return {
        "alphas": cost.messages,
        "share": float(cost.share),
        "seconds": None if setting is None else setting.seconds(cost),
    }
