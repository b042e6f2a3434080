"""What the commands print of a schedule for given arrivals: lines, or one JSON object."""

from __future__ import annotations

from typing import Any

from synth.arrivals.generate import Arranged
from synth.arrivals.portfolio import Candidate
from synth.straggler.choose import Setting
from synth.units import format_bandwidth, format_bytes, format_seconds


def arranged_text(path: str, arranged: Arranged, setting: Setting | None) -> str:
    """A schedule that was written to ``path``."""
    schedule, arrival = arranged.schedule, arranged.arrivals.arrival
    late = ", ".join(f"{rank} at round {arrival[rank]}" for rank in schedule.late)
    phases = " + ".join(f"{len(phase.rounds)} {phase.name}" for phase in schedule.phases)
    ports = schedule.ports if isinstance(schedule.ports, str) else f"incast {schedule.ports.incast}"
    lines = [
        f"{path}: proved; AllReduce of {schedule.ranks} ranks in {schedule.chunks} chunks, "
        f"{ports} ports",
        f"  late        rank {late}",
        f"  rounds      {phases}",
        f"  completion  {arranged.report.completion_rounds} rounds after the last arrival, lower "
        f"bound {arranged.lower_bound}: {arranged.verdict}",
        f"  search      {arranged.seconds:.2f} s, seed {schedule.meta['seed']}",
        f"  candidates  {'':<22}{'chunks':>7}{'rounds':>7}  after the last arrival",
    ]
    for candidate in arranged.candidates:
        mark = "*" if candidate.method == arranged.method else " "
        note = f"  ({candidate.note})" if candidate.note else ""
        time = f"  {format_seconds(setting.seconds(candidate.cost))}" if setting else ""
        lines.append(
            f"            {mark} {candidate.method:<22}{candidate.arrivals.chunks:>7}"
            f"{candidate.rounds:>7}  {candidate.cost}{time}{note}"
        )
    units = "S: buffer bytes, alpha: seconds per message, beta: seconds per byte"
    if setting is not None:
        units = (
            f"S = {format_bytes(setting.buffer_bytes)}, alpha = {format_seconds(setting.alpha_s)}, "
            f"1/beta = {format_bandwidth(setting.bandwidth)}"
        )
    return "\n".join([*lines, f"              ({units})"])


def arranged_json(path: str, arranged: Arranged, setting: Setting | None) -> dict[str, Any]:
    """The facts of :func:`arranged_text`."""
    schedule, report = arranged.schedule, arranged.report
    return {
        "file": path,
        "verdict": report.verdict.value,
        "ranks": schedule.ranks,
        "chunks": schedule.chunks,
        "late": schedule.late,
        "arrivals": {rank: arranged.arrivals.arrival[rank] for rank in schedule.late},
        "ports": schedule.ports,
        "phases": {phase.name: len(phase.rounds) for phase in schedule.phases},
        "completion_rounds": report.completion_rounds,
        "lower_bound": arranged.lower_bound,
        "gap": arranged.gap,
        "why": arranged.verdict,
        "method": arranged.method,
        "seed": schedule.meta["seed"],
        "search_s": arranged.seconds,
        "setting": setting,
        "candidates": [_candidate_json(candidate, setting) for candidate in arranged.candidates],
    }


def _candidate_json(candidate: Candidate, setting: Setting | None) -> dict[str, Any]:
    return {
        "method": candidate.method,
        "chunks": candidate.arrivals.chunks,
        "rounds": candidate.rounds,
        "alphas": candidate.cost.messages,
        "share": float(candidate.cost.share),
        "seconds": setting.seconds(candidate.cost) if setting else None,
        "made": candidate.schedule is not None,
        "note": candidate.note,
    }
