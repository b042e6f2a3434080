"""What ``synth transpose`` prints: lines for people, one JSON object for machines.

Two predictions, because incast helps latency only where messages overlap: *one at a time*, a rank
pays alpha for each message of a round; *overlapped*, once per round. Two bounds on time hold for
every AllReduce of n ranks whose ports carry 1 / beta bytes per second each way: the 2 (n - 1) S
bytes that must be received in all, over n ports (``verify/core/bounds.py``, volume), and
ceil(log_{I+1} n) alpha until anybody can know all contributions (knowledge).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from synth.cost import Cost, Latency, Link, completion_cost
from synth.units import format_bandwidth, format_bytes, format_seconds
from verify.core.bounds import dissemination_bound
from verify.core.schedule import Incast, Schedule
from verify.core.verdict import Report

LATENCIES: dict[str, Latency] = {"one at a time": "message", "overlapped": "round"}


@dataclass(frozen=True)
class Buffer:
    """What to predict the time for: so many bytes over such links."""

    size_bytes: int
    link: Link


@dataclass(frozen=True)
class Made:
    """A schedule that was made, proved and written to ``path``."""

    path: str
    schedule: Schedule
    report: Report
    incast: int
    fewest_rounds: int | None
    """Of any schedule without detours; None with groups, where sums do take one."""


def text(made: Made, buffer: Buffer | None) -> str:
    """The facts as lines."""
    schedule, report = made.schedule, made.report
    phases = " + ".join(f"{len(phase.rounds)} {phase.name}" for phase in schedule.phases)
    ports = schedule.ports
    assert isinstance(ports, Incast)
    chunks = "" if ports.incast <= made.incast else f" of messages, {ports.incast} of chunks"
    lines = [
        f"{made.path}: proved; transpose AllReduce of {schedule.ranks} ranks in "
        f"{schedule.chunks} chunks, incast {made.incast}{chunks}",
        f"  rounds        {phases} = {schedule.rounds}",
        f"  lower bound   {report.lower_bound} rounds for any AllReduce through these ports"
        + (": optimal" if report.optimal is True else ""),
    ]
    if made.fewest_rounds is not None:
        lines.append(f"                {made.fewest_rounds} without detours over a third rank")
    for name, latency in LATENCIES.items():
        cost, bound = completion_cost(schedule, latency), _time_bound(made, latency)
        line = f"  {name:<13} {cost}"
        if buffer is not None:
            line += f" = {format_seconds(_seconds(cost, buffer))}"
            least = format_seconds(_least_seconds(bound, buffer))
        else:
            least = f"{bound.messages} alpha, or {float(bound.share):.4g} S*beta"
        lines.append(f"{line}; no AllReduce takes less than {least}")
    return "\n".join([*lines, _legend(buffer)])


def as_json(made: Made, buffer: Buffer | None) -> dict[str, Any]:
    """The facts of :func:`text`."""
    schedule, report = made.schedule, made.report
    return {
        "file": made.path,
        "verdict": report.verdict.value,
        "ranks": schedule.ranks,
        "chunks": schedule.chunks,
        "incast": made.incast,
        "ports": schedule.ports,
        "phases": {phase.name: len(phase.rounds) for phase in schedule.phases},
        "rounds": schedule.rounds,
        "lower_bound": report.lower_bound,
        "optimal": report.optimal,
        "fewest_rounds_without_detours": made.fewest_rounds,
        "buffer": buffer,
        "predicted": {
            name.replace(" ", "_"): _prediction(made, latency, buffer)
            for name, latency in LATENCIES.items()
        },
    }


def _prediction(made: Made, latency: Latency, buffer: Buffer | None) -> dict[str, Any]:
    cost, bound = completion_cost(made.schedule, latency), _time_bound(made, latency)
    return {
        "alphas": cost.messages,
        "share": float(cost.share),
        "seconds": None if buffer is None else _seconds(cost, buffer),
        "at_least_alphas": bound.messages,
        "at_least_share": float(bound.share),
        "at_least_seconds": None if buffer is None else _least_seconds(bound, buffer),
    }


def _time_bound(made: Made, latency: Latency) -> Cost:
    """Two bounds in one: so many alphas, and so large a share of S*beta; not their sum."""
    n = made.schedule.ranks
    ways = made.incast if latency == "round" else 1
    return Cost(dissemination_bound(n, 1, ways), Fraction(2 * (n - 1), n))


def _seconds(cost: Cost, buffer: Buffer) -> float:
    return cost.over(buffer.size_bytes, buffer.link)


def _least_seconds(bound: Cost, buffer: Buffer) -> float:
    latency, volume = Cost(bound.messages, Fraction(0)), Cost(0, bound.share)
    return max(_seconds(latency, buffer), _seconds(volume, buffer))


def _legend(buffer: Buffer | None) -> str:
    if buffer is None:
        return "  (S: buffer bytes, alpha: seconds per message, beta: seconds per byte)"
    return (
        f"  (S = {format_bytes(buffer.size_bytes)}, alpha = {format_seconds(buffer.link.alpha_s)}, "
        f"1/beta = {format_bandwidth(buffer.link.bandwidth)})"
    )
