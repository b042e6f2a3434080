"""A report on a program of thread blocks as text that a person can act on."""

from __future__ import annotations

from latecomer.verify.asynchronous.sizes import in_words
from latecomer.verify.asynchronous.verdict import AsynchronousReport
from latecomer.verify.report.render import evidence, listed


def render(name: str, report: AsynchronousReport) -> str:
    """The report on the file ``name`` as lines of text."""
    lines = [
        f"{name}: {report.verdict.value.upper()}",
        f"  {headline(report)}",
        f"  {meant_in_words(report)}",
        f"  {freedom_in_words(report)}",
    ]
    lines += listed(report.results)
    for result in report.results.values():
        if result.counterexample is not None:
            lines += evidence(result.counterexample)
    if report.limits:
        lines.append("  what the executor would refuse, or not use (not part of the verdict):")
        lines += [f"    {line}" for line in report.limits]
    return "\n".join(lines)


def headline(report: AsynchronousReport) -> str:
    """What was checked, in a line."""
    return (
        f"{report.kind} of {report.ranks} ranks, {' and '.join(report.placements)}, "
        f"{report.steps} steps in {report.blocks} thread blocks ({report.format})"
    )


def meant_in_words(report: AsynchronousReport) -> str:
    """The protocol, and the sizes that the verdict is about."""
    slots = "FIFOs without bound"
    if report.slots is not None:
        slots = f"{_counted(report.slots, 'message')} a FIFO"
    sizes = report.sizes
    if sizes is None:
        return f"{report.protocol}: {slots}"

    if sizes.max_bytes is not None:
        span = f"from {in_words(sizes.min_bytes)} to {in_words(sizes.max_bytes)}"
    elif sizes.min_bytes:
        span = f"from {in_words(sizes.min_bytes)} on"
    else:
        span = "of any size"
    return f"{report.protocol}: {slots}; buffers {span}, in {_counted(sizes.chunks, 'chunk')}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number > 1 else ''}"


def freedom_in_words(report: AsynchronousReport) -> str:
    """What freedom from deadlock depends on."""
    freedom = report.freedom
    unlimited = "free" if freedom.unlimited else "not free"
    rendezvous = "free" if freedom.rendezvous else "not free"
    if not freedom.unlimited:
        first = "free of deadlock at no size, with no number of slots"
    elif freedom.up_to is None:
        first = "free of deadlock at any size"
    elif freedom.up_to == 0:
        meant = " meant" if report.sizes and report.sizes.min_bytes else ""
        first = f"free of deadlock at no size{meant}, but with {freedom.slots_needed} slots"
    else:
        first = f"free of deadlock up to {in_words(freedom.up_to)}"
    slack = "" if report.slack is None else f", slack {report.slack} slots"
    return f"{first}{slack}; without bound on slots {unlimited}, with rendezvous {rendezvous}"
