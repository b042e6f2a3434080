"""What ``synth pipeline`` prints: lines for people, one JSON object for machines, same facts."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from rich.table import Table

from synth.answer import Basis
from synth.pipeline.answer import PipelineAnswer
from synth.pipeline.compare import Comparison
from synth.pipeline.robust import Robust
from verify.pipeline import costs
from verify.pipeline.schedule import Link

MOST_SHOWN = 16


def text(planned: PipelineAnswer, written: list[str]) -> str:
    """The result; ``written`` are the files."""
    problem = planned.problem
    found = planned.measures
    makespan, bound = planned.in_words
    virtual = f" on {problem.ranks} ranks" if problem.virtual > 1 else ""
    lines = [
        f"{', '.join(written)}: proved",
        f"  {problem.stages} stages{virtual}, {problem.microbatches} microbatches"
        + "".join(f", {described(link)}" for link in problem.instance.links[:MOST_SHOWN]),
        f"  makespan {makespan}, lower bound {bound} ({planned.proof}): " + planned.claim,
        f"  method {planned.method}: {planned.choice}",
    ]
    if len(planned.candidates) > 1:
        tried = ", ".join(f"{name} {length:g}" for name, length in planned.candidates.items())
        lines.append(f"  tried: {tried}")
    lines += [f"  not tried: {why}" for why in planned.unsuited.values()]
    peaks = [costs.written(Fraction(halves, 2)) for halves in found.exact.peak_memory]
    lines.append(f"  peak memory per rank: {_few(peaks)}")
    slack = [
        f"{link.between[0]}-{link.between[1]}: "
        + ("any" if link.slack is None else f"{link.slack:g}")
        for link in found.links
    ]
    if slack:
        lines.append(f"  more delay that each link takes at no cost: {_few(slack)}")
    if planned.schedule.has_messages:
        lines.append("  messages are written out: their order on a shared link matters")
    if planned.certificate:
        cases = 1 + sum(line.startswith("either") for line in planned.certificate)
        lines.append(
            f"  certificate: {len(planned.certificate)} steps, cases: {cases}, "
            f"in {planned.certificate_s:.2f} s"
        )
    lines.append(f"  {planned.seconds:.2f} s")
    return "\n".join(lines)


def as_json(planned: PipelineAnswer, written: list[str]) -> dict[str, Any]:
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
        "reason": planned.choice,
        "makespan": costs.json_number(found.exact.time(found.exact.makespan)),
        "lower_bound": costs.json_number(found.exact.time(planned.bound_ticks)),
        "proved_by": planned.proof,
        "gap": planned.gap,
        "optimal": True if planned.optimal else "unknown",
        "basis": planned.basis,
        "basis_reason": planned.reason,
        "peak_memory": list(found.peak_memory),
        "slack": {f"{x.between[0]}-{x.between[1]}": x.slack for x in found.links},
        "candidates": planned.candidates,
        "unsuited": planned.unsuited,
        "form": planned.report.form,
        "seconds": planned.seconds,
        "certificate_steps": len(planned.certificate),
        "certificate_seconds": planned.certificate_s,
    }


def robust_text(robust: Robust, written: list[str]) -> str:
    """The result for several scenarios."""
    lines = [text(robust.planned, written)]
    what = "the worst" if robust.objective == "worst" else "on average"
    lines.append(
        f"  {what} of {len(robust.makespans)} scenarios: {robust.value:g}, lower bound "
        f"{robust.bound:g}: " + robust.claim
    )
    for name, makespan in robust.makespans.items():
        lines.append(f"    {name}: {makespan:g} (planned for it alone: {robust.alone[name]:g})")
    return "\n".join(lines)


def robust_json(robust: Robust, written: list[str]) -> dict[str, Any]:
    """The result for several scenarios as one JSON object."""
    return {
        **as_json(robust.planned, written),
        "objective": robust.objective,
        "value": robust.value,
        "value_bound": robust.bound,
        "value_basis": robust.basis,
        "scenarios": robust.makespans,
        "alone": robust.alone,
    }


def comparison_table(comparison: Comparison) -> Table:
    """Makespans, a row per factor, a column per method; the best of the named ones in bold."""
    table = Table(title=comparison_title(comparison))
    alone = len(comparison.problem.instance.links) == 1
    table.add_column("delay" if alone else "delays", justify="right")
    for name in [*comparison.columns, "bound"]:
        table.add_column(name, justify="right")
    for row in comparison.rows:
        table.add_row(
            f"{row.links[0].latency:g}" if alone else f"x{row.factor:g}",
            *(
                f"[bold]{row.makespans[name]:g}[/]"
                if name in row.best
                else f"{row.makespans[name]:g}"
                for name in comparison.columns
            ),
            f"{row.bound:g}"
            + (f" (optimal: {row.basis})" if row.basis is not Basis.UNKNOWN else ""),
        )
    return table


def comparison_title(comparison: Comparison) -> str:
    """What is compared, in words."""
    problem = comparison.problem
    memory = problem.instance.memory
    limit = "" if memory is None else f", memory {', '.join(f'{x:g}' for x in sorted(set(memory)))}"
    return f"makespan, {problem.stages} stages, {problem.microbatches} microbatches{limit}"


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """The comparison as one JSON object."""
    return {
        "method": comparison.method,
        "rows": [
            {
                "factor": row.factor,
                "links": {f"{x.between[0]}-{x.between[1]}": x.latency for x in row.links},
                "makespans": row.makespans,
                "lower_bound": row.bound,
                "optimal": "unknown" if row.basis is Basis.UNKNOWN else True,
                "basis": row.basis,
            }
            for row in comparison.rows
        ],
        "unsuited": comparison.unsuited,
    }


def described(link: Link) -> str:
    """A link in words."""
    busy = f" and {link.occupancy:g} per message, {link.duplex} duplex" if link.occupancy else ""
    return f"link {link.between[0]}-{link.between[1]} takes {link.latency:g}{busy}"


def _few(texts: list[str]) -> str:
    more = f", ... ({len(texts)} in all)" if len(texts) > MOST_SHOWN else ""
    return ", ".join(texts[:MOST_SHOWN]) + more
