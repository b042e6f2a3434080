"""What ``synth pipeline`` prints: lines for people, one JSON object for machines, same facts."""

from __future__ import annotations

from typing import Any

from synth.pipeline.plan import Planned
from verify.pipeline.schedule import Link

MOST_SHOWN = 16


def text(planned: Planned, written: list[str]) -> str:
    """The result; ``written`` are the files."""
    problem, found = planned.problem, planned.measures
    virtual = f" on {problem.ranks} ranks" if problem.virtual > 1 else ""
    lines = [
        f"{', '.join(written)}: proved",
        f"  {problem.stages} stages{virtual}, {problem.microbatches} microbatches"
        + "".join(f", {described(link)}" for link in problem.situation.links[:MOST_SHOWN]),
        f"  makespan {found.makespan:g}, lower bound {planned.bound:g} ({planned.proof}): "
        + ("optimal" if planned.optimal else f"gap {planned.gap:.2%}, optimality unknown"),
        f"  method {planned.method}: {planned.reason}",
    ]
    if len(planned.candidates) > 1:
        tried = ", ".join(f"{name} {length:g}" for name, length in planned.candidates.items())
        lines.append(f"  tried: {tried}")
    lines += [f"  not tried: {name} ({why})" for name, why in planned.unsuited.items()]
    lines.append(f"  peak memory per rank: {_few([f'{x:g}' for x in found.peak_memory])}")
    slack = [
        f"{link.between[0]}-{link.between[1]}: "
        + ("any" if link.slack is None else f"{link.slack:g}")
        for link in found.links
    ]
    if slack:
        lines.append(f"  more delay that each link takes at no cost: {_few(slack)}")
    if planned.schedule.has_messages:
        lines.append("  messages are written out: their order on a shared link matters")
    lines.append(f"  {planned.seconds:.2f} s")
    return "\n".join(lines)


def as_json(planned: Planned, written: list[str]) -> dict[str, Any]:
    """The result as one JSON object."""
    found = planned.measures
    return {
        "files": written,
        "verdict": planned.report.verdict.value,
        "kind": "pipeline",
        "stages": planned.problem.stages,
        "ranks": planned.problem.ranks,
        "microbatches": planned.problem.microbatches,
        "method": planned.method,
        "reason": planned.reason,
        "makespan": found.makespan,
        "lower_bound": planned.bound,
        "proved_by": planned.proof,
        "gap": planned.gap,
        "optimal": True if planned.optimal else "unknown",
        "peak_memory": list(found.peak_memory),
        "slack": {f"{x.between[0]}-{x.between[1]}": x.slack for x in found.links},
        "candidates": planned.candidates,
        "unsuited": planned.unsuited,
        "form": planned.report.form,
        "seconds": planned.seconds,
    }


def described(link: Link) -> str:
    """A link in words."""
    busy = f" and {link.occupancy:g} per message, {link.duplex} duplex" if link.occupancy else ""
    return f"link {link.between[0]}-{link.between[1]} takes {link.latency:g}{busy}"


def _few(texts: list[str]) -> str:
    more = f", ... ({len(texts)} in all)" if len(texts) > MOST_SHOWN else ""
    return ", ".join(texts[:MOST_SHOWN]) + more
