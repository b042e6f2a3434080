"""A report as text that a person can act on, and as an object for machines."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec

from latecomer.verify.core.schedule import Incast, Schedule
from latecomer.verify.core.verdict import Counterexample, Report, Result, Verdict
from latecomer.verify.report.explain import explained

EVIDENCE = ("property", "phase", "round", "rank", "chunk", "expected", "found", "transfers")
"""What a counterexample has in JSON."""

MOST_SHOWN = 16
"""Transfers or actions that are shown of a counterexample."""

MARKS = {Verdict.PROVED: "proved", Verdict.REFUTED: "REFUTED", Verdict.UNKNOWN: "unknown"}


def render(name: str, schedule: Schedule, report: Report) -> str:
    """The report on a schedule as lines of text, with why it is wrong where it is.

    Args:
        name: of the file, for the first line.
        schedule: what was checked; ``report``: what was found.

    Examples:
        >>> from latecomer import synth, verify
        >>> from latecomer.verify.report.render import render
        >>> ring = synth.ring(4)
        >>> print(render("ring.json", ring, verify.check(ring)))
        ring.json: PROVED
          allreduce of 4 ranks in 4 chunks, duplex ports
          6 rounds: 3 reduce_scatter + 3 all_gather
          completion: 6 rounds, lower bound 6: optimal (theorem: at the lower bound)
            well_formed    proved
        ...
    """
    lines = [f"{name}: {report.verdict.value.upper()}", f"  {instance_in_words(schedule)}"]
    lines.append(f"  {report.rounds} rounds: {_phases(schedule)}")
    lines.append(f"  {bound_in_words(schedule, report)}")
    lines += listed(report.results)
    if report.staging:
        lines.append(f"  needs {report.staging} chunk buffer(s) per rank for staging")
    for result in report.results.values():
        if result.counterexample is not None:
            lines += evidence(explained(schedule, result.counterexample))
    return "\n".join(lines)


def to_json(schedule: Schedule, report: Report) -> dict[str, Any]:
    """The object that ``verify --json`` prints."""
    notes = {name: result.note for name, result in report.results.items() if result.note}
    doubt = reservation(schedule, report)
    if doubt:
        notes["optimal"] = doubt

    counterexample = None
    if report.counterexample is not None:
        fields = msgspec.to_builtins(explained(schedule, report.counterexample))
        counterexample = {name: fields[name] for name in EVIDENCE}
    return {
        "verdict": report.verdict.value,
        "kind": report.kind,
        "ranks": report.ranks,
        "chunks": report.chunks,
        "rounds": report.rounds,
        "completion_rounds": report.completion_rounds,
        "lower_bound": report.lower_bound,
        "optimal": report.optimal,
        "staging": report.staging,
        "properties": {name: result.verdict.value for name, result in report.results.items()},
        "notes": notes,
        "counterexample": counterexample,
    }


def instance_in_words(schedule: Schedule) -> str:
    """What was checked, in a line."""
    ports = schedule.ports
    kind_of_ports = f"incast {ports.incast}" if isinstance(ports, Incast) else ports
    text = (
        f"{schedule.kind} of {schedule.ranks} ranks in {schedule.chunks} chunks, "
        f"{kind_of_ports} ports"
    )
    if schedule.late:
        text += f", late {_ranks(schedule.late)}"
    return text


def _phases(schedule: Schedule) -> str:
    """Each phase with its rounds, and who is absent from it."""
    texts = []
    for phase in schedule.phases:
        text = f"{len(phase.rounds)} {phase.name}"
        if phase.absent:
            text += f" (without {_ranks(phase.absent)})"
        texts.append(text)
    return " + ".join(texts)


def _ranks(ranks: tuple[int, ...]) -> str:
    noun = "rank" if len(ranks) == 1 else "ranks"
    return f"{noun} {', '.join(map(str, ranks))}"


def reservation(schedule: Schedule, report: Report) -> str:
    """Why optimality is unknown whatever the bound is: who is absent again; else empty."""
    if report.optimal != "unknown":
        return ""
    for earlier, phase in pairwise(schedule.phases):
        again = set(phase.absent) - set(earlier.absent)
        if again:
            reason = f"rank {min(again)} is absent again after its arrival, in {phase.name}"
            if report.completion_rounds == report.lower_bound:
                return f"optimal only given its other phases: {reason}"
            return reason
    return ""


def bound_in_words(schedule: Schedule, report: Report) -> str:
    """How far from the lower bound; never "optimal" without what that rests on (trust.md)."""
    if report.verdict is Verdict.REFUTED:
        claim = "not right, so not optimal"
    elif report.optimal == "unknown":
        claim = "optimality unknown"
        doubt = reservation(schedule, report)
        if doubt:
            claim += f" ({doubt})"
    elif report.optimal:
        claim = "optimal (theorem: at the lower bound)"
    else:
        claim = "not optimal (theorem: a round of the completion moves nothing)"
    return (
        f"completion: {report.completion_rounds} rounds, lower bound {report.lower_bound}: {claim}"
    )


def listed(results: dict[str, Result]) -> list[str]:
    """A line for each property, with its note."""
    width = max(map(len, results))
    lines = []
    for name, result in results.items():
        note = f"  ({result.note})" if result.note else ""
        lines.append(f"    {name:<{width}}  {MARKS[result.verdict]}{note}")
    return lines


def evidence(counterexample: Counterexample) -> list[str]:
    """A counterexample, of any family, as lines of text."""
    location = [
        f"{field} {getattr(counterexample, field)}"
        for field in ("phase", "round", "rank", "chunk", "position")
        if getattr(counterexample, field) is not None
    ]
    if counterexample.action is not None:
        location.append(counterexample.action)

    headline = f"  {counterexample.property} fails"
    if location:
        headline += f" at {', '.join(location)}"
    lines = [
        headline,
        f"    expected: {counterexample.expected}",
        f"    found:    {counterexample.found}",
    ]
    what_matters = {"transfers": counterexample.transfers, "actions": counterexample.actions}
    for title, items in what_matters.items():
        if items:
            lines.append(f"    {title} that matter:")
            lines += [f"      {item}" for item in items[:MOST_SHOWN]]
        if len(items) > MOST_SHOWN:
            lines.append(f"      ... ({len(items)} in all)")
    return lines
