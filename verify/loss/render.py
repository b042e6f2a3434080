"""The report on losses as text that a person can act on."""

from __future__ import annotations

from collections.abc import Sequence

from latecomer.verify.core.verdict import SHOWN, LocatedTransfer
from latecomer.verify.loss.report import Answer, EntryBlock, LossReport
from latecomer.verify.runs import runs_of

TITLES = (
    "one loss in", "transfers", "missing entries", "at ranks", "contributions", "twice", "differ",
)  # fmt: skip


def render(report: LossReport) -> str:
    """The report as lines of text, indented as part of that on the schedule."""
    several = f"any {report.at_most} or fewer of " if report.at_most > 1 else "any of "
    lines = [f"  loss of {several}{report.transfers} transfers ({report.entries} entries in all)"]
    lines += _table(report)
    lines.append("    (twice, differ: how many of them make a count go above one, or ranks differ)")
    lines.append(
        f"    mean way of an entry: {report.mean_way:.4g} transfers; if a transfer is lost with "
        f"probability p, at most {report.mean_way:.4g} p of the entries are missing on average"
    )
    lines += _worst(report)
    lines += _answer("a contribution counted twice", report.twice)
    lines += _answer("ranks with different sums", report.differ)
    return "\n".join(lines)


def _table(report: LossReport) -> list[str]:
    rows = [TITLES]
    for kind in report.kinds:
        spread = str(kind.least)
        if kind.least < kind.most:
            spread = f"{kind.least} .. {kind.most}, mean {kind.mean:.4g}"
        counts = (kind.transfers, spread, kind.ranks, kind.contributions, kind.twice, kind.differ)
        rows.append((f"{kind.phase} {kind.op}", *map(str, counts)))  # type: ignore[arg-type]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "    " + "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])
        for row in rows
    ]


def _worst(report: LossReport) -> list[str]:
    worst = report.worst
    share = f"{worst.entries} of {report.entries} entries missing"
    if worst.exact:
        lines = [f"    worst: {share}, nothing is worse (proved)"]
    else:
        lines = [f"    worst found: {share}; proved: at most {worst.bound}; between, unknown"]
    lines += [f"      lost: {lost}" for lost in worst.lost]
    lines += [f"      {_block(block)}" for block in worst.missing[:SHOWN]]
    if len(worst.missing) > SHOWN:
        lines.append(f"      and {len(worst.missing) - SHOWN} more (--json has all)")
    return lines


def _answer(question: str, answer: Answer) -> list[str]:
    if answer.possible is True:
        return [f"    {question}: possible{_after(answer.lost)}"]
    if answer.possible is False:
        return [f"    {question}: never ({answer.why})"]
    return [f"    {question}: unknown ({answer.why})"]


def _after(lost: Sequence[LocatedTransfer]) -> str:
    return ", after the loss of " + "; ".join(map(str, lost))


def _block(block: EntryBlock) -> str:
    many = "miss" if len(block.ranks) > 1 else "misses"
    return (
        f"chunk {block.chunk}: {_names('rank', block.ranks)} {many} "
        f"what {_names('rank', block.contributions)} contributed"
    )


def _names(what: str, members: Sequence[int]) -> str:
    """``ranks 0-3, 5``: runs of numbers together."""
    runs = runs_of(members)
    shown = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"{what}{'s' if len(members) > 1 else ''} {shown}"
