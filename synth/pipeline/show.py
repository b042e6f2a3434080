"""What ``synth pipeline`` prints: lines for people, one JSON object for machines, same facts."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from rich.table import Table

from latecomer.synth.answer import Basis
from latecomer.synth.pipeline.answer import PipelineAnswer
from latecomer.synth.pipeline.compare import DelayComparison, FactorRow
from latecomer.synth.pipeline.robust import Robust
from latecomer.verify.pipeline import costs
from latecomer.verify.pipeline.schedule import Link

MOST_SHOWN = 16
"""Links or ranks that one line names."""


def text(planned: PipelineAnswer, written: list[str]) -> str:
    """The result; ``written`` are the files."""
    problem = planned.problem
    measures = planned.measures
    makespan, bound = planned.in_words
    virtual = f" on {problem.ranks} ranks" if problem.virtual > 1 else ""
    links = "".join(f", {described(link)}" for link in problem.instance.links[:MOST_SHOWN])
    lines = [
        f"{', '.join(written)}: proved",
        f"  {problem.stages} stages{virtual}, {problem.microbatches} microbatches{links}",
        f"  makespan {makespan}, lower bound {bound} ({planned.proof}): " + planned.claim,
        f"  method {planned.method}: {planned.choice}",
    ]
    if len(planned.candidates) > 1:
        tried = ", ".join(f"{name} {length:g}" for name, length in planned.candidates.items())
        lines.append(f"  tried: {tried}")
    lines += [f"  not tried: {why}" for why in planned.unsuited.values()]

    peaks = [costs.written(Fraction(halves, 2)) for halves in measures.exact.peak_memory]
    lines.append(f"  peak memory per rank: {_first_ones(peaks)}")

    slacks = []
    for link in measures.links:
        slack = "any" if link.slack is None else f"{link.slack:g}"
        slacks.append(f"{link.between[0]}-{link.between[1]}: {slack}")
    if slacks:
        lines.append(f"  more delay that each link takes at no cost: {_first_ones(slacks)}")

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
    exact = planned.measures.exact
    return {
        "files": written,
        "verdict": planned.report.verdict.value,
        "kind": "pipeline",
        "stages": planned.problem.stages,
        "ranks": planned.problem.ranks,
        "microbatches": planned.problem.microbatches,
        "method": planned.method,
        "reason": planned.choice,
        "makespan": costs.json_number(exact.time(exact.makespan)),
        "lower_bound": costs.json_number(exact.time(planned.bound_ticks)),
        "proved_by": planned.proof,
        "gap": planned.gap,
        "optimal": True if planned.optimal else "unknown",
        "basis": planned.basis,
        "basis_reason": planned.reason,
        "peak_memory": list(planned.measures.peak_memory),
        "slack": {
            f"{link.between[0]}-{link.between[1]}": link.slack for link in planned.measures.links
        },
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
    objective = "the worst" if robust.objective == "worst" else "on average"
    lines.append(
        f"  {objective} of {len(robust.makespans)} scenarios: {robust.value:g}, lower bound "
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


def comparison_table(comparison: DelayComparison) -> Table:
    """Makespans, a row per factor, a column per method; the best of the named ones in bold."""
    table = Table(title=comparison_title(comparison))
    is_one_link = len(comparison.problem.instance.links) == 1
    table.add_column("delay" if is_one_link else "delays", justify="right")
    for name in [*comparison.columns, "bound"]:
        table.add_column(name, justify="right")

    for row in comparison.rows:
        delay = f"{row.links[0].latency:g}" if is_one_link else f"x{row.factor:g}"
        makespans = []
        for name in comparison.columns:
            makespan = f"{row.makespans[name]:g}"
            makespans.append(f"[bold]{makespan}[/]" if name in row.best else makespan)
        bound = f"{row.bound:g}"
        if row.basis is not Basis.UNKNOWN:
            bound += f" (optimal: {row.basis})"
        table.add_row(delay, *makespans, bound)
    return table


def comparison_title(comparison: DelayComparison) -> str:
    """What is compared, in words."""
    problem = comparison.problem
    memory = ""
    if problem.instance.memory is not None:
        limits = sorted(set(problem.instance.memory))
        memory = f", memory {', '.join(f'{limit:g}' for limit in limits)}"
    return f"makespan, {problem.stages} stages, {problem.microbatches} microbatches{memory}"


def comparison_json(comparison: DelayComparison) -> dict[str, Any]:
    """The comparison as one JSON object."""
    return {
        "method": comparison.method,
        "rows": [_row_json(row) for row in comparison.rows],
        "unsuited": comparison.unsuited,
    }


def _row_json(row: FactorRow) -> dict[str, Any]:
    return {
        "factor": row.factor,
        "links": {f"{link.between[0]}-{link.between[1]}": link.latency for link in row.links},
        "makespans": row.makespans,
        "lower_bound": row.bound,
        "optimal": "unknown" if row.basis is Basis.UNKNOWN else True,
        "basis": row.basis,
    }


def described(link: Link) -> str:
    """A link in words."""
    occupancy = ""
    if link.occupancy:
        occupancy = f" and {link.occupancy:g} per message, {link.duplex} duplex"
    return f"link {link.between[0]}-{link.between[1]} takes {link.latency:g}{occupancy}"


def _first_ones(texts: list[str]) -> str:
    """The first ``MOST_SHOWN``, and how many there are in all if these are not all."""
    more = f", ... ({len(texts)} in all)" if len(texts) > MOST_SHOWN else ""
    return ", ".join(texts[:MOST_SHOWN]) + more
