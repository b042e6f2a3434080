"""A report on a pipeline schedule as text that a person can act on."""

from __future__ import annotations

from fractions import Fraction

from latecomer.verify.pipeline.costs import told_apart, written
from latecomer.verify.pipeline.schedule import Instance, PipelineSchedule
from latecomer.verify.pipeline.verdict import Bar, Measures, PipelineReport, gap_in_words
from latecomer.verify.report.render import MOST_SHOWN, evidence, listed


def render(name: str, schedule: PipelineSchedule, report: PipelineReport) -> str:
    """The report on ``schedule``, read from ``name``, as lines of text."""
    lines = [f"{name}: {report.verdict.value.upper()}", f"  {headline(schedule, report)}"]
    if report.measures is not None:
        lines += _measures(report, report.measures)
    lines += listed(report.results)
    for result in report.results.values():
        if result.counterexample is not None:
            lines += evidence(result.counterexample)
    return "\n".join(lines)


def headline(schedule: PipelineSchedule, report: PipelineReport) -> str:
    """What was checked, in a line."""
    virtual = f" on {report.ranks} ranks" if report.ranks != report.stages else ""
    return (
        f"pipeline of {report.stages} stages{virtual}, {report.microbatches} microbatches, "
        f"{report.form.replace('_', ' ')}{_delays(schedule.instance)}"
    )


def _delays(instance: Instance) -> str:
    links = [
        f"{link.between[0]}-{link.between[1]}: {link.latency:g}"
        + (f" and {link.occupancy:g} per message, {link.duplex} duplex" if link.occupancy else "")
        for link in instance.links
    ]
    return f", delay on {_few(links)}" if links else ""


def against_bound(found: Measures) -> list[str]:
    """Makespan and lower bound as texts, which are alike only if both are equal."""
    exact = found.exact
    return told_apart(exact.time(exact.makespan), exact.time(exact.lower_bound))


def makespan_in_words(report: PipelineReport, found: Measures) -> str:
    """The makespan against its bound; never "optimal" without what that rests on."""
    verdict = {
        True: "optimal (paper: at the lower bound)",
        False: "not right, so not optimal",
        "unknown": "optimality unknown",
    }
    makespan, bound = against_bound(found)
    return (
        f"makespan {makespan}, lower bound {bound} "
        f"(gap {gap_in_words(found.gap)}): {verdict[report.optimal]}"
    )


def makespan_in_order(found: Measures) -> str:
    """The makespan with rendezvous sends, where it is another; else empty."""
    exact = found.exact
    if exact.makespan_in_order in (None, exact.makespan):
        return ""
    assert exact.makespan_in_order is not None
    return told_apart(exact.time(exact.makespan_in_order), exact.time(exact.makespan))[0]


def _measures(report: PipelineReport, found: Measures) -> list[str]:
    lines = [f"  {makespan_in_words(report, found)}"]
    in_order = makespan_in_order(found)
    if in_order:
        lines.append(
            f"  makespan {in_order} if a send that is not received yet holds up "
            "later messages of its rank"
        )
    peaks = [written(Fraction(halves, 2)) for halves in found.exact.peak_memory]
    lines.append(f"  peak memory per rank: {_few(peaks)} activations")
    slack = [
        f"{link.name}: " + ("any" if link.slack is None else f"{link.slack:g}")
        for link in found.links
    ]
    if slack:
        lines.append(f"  delay that each link takes at no cost: {_few(slack)}")
    lines.append(f"  critical path: {_path(found.critical_path)}")
    return lines


def _path(bars: tuple[Bar, ...]) -> str:
    """The compute actions of the path, with a mark where a message is waited for."""
    steps = []
    for bar in bars:
        if bar.receiver is None:
            steps.append(bar.action)
        elif bar.end > bar.start:
            steps.append(f"~{bar.end - bar.start:g}~")
    if len(steps) > MOST_SHOWN:
        half = MOST_SHOWN // 2
        steps = [*steps[:half], f"({len(steps) - 2 * half} more)", *steps[-half:]]
    return " ".join(steps)


def _few(texts: list[str]) -> str:
    more = f", ... ({len(texts)} in all)" if len(texts) > MOST_SHOWN else ""
    return ", ".join(texts[:MOST_SHOWN]) + more
