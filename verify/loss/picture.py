"""The blast radius as one picture, an SVG of our own.

On the left the schedule, round by round: a square per transfer in the row of the rank that
receives it, the darker the more entries its loss leaves missing; the darkest is n (n - 1), the most
there can be; so pictures for equal n compare. A dot: ranks then end with different sums. A ring:
something is counted twice. On the right the worst case: for each chunk touched, which ranks (rows)
miss whose contributions (columns).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

from latecomer.verify.core.schedule import Schedule
from latecomer.verify.errors import ArgumentError
from latecomer.verify.loss.report import MOST_LISTED, LossReport, Single
from latecomer.verify.report.svg import page, words

# In pixels.
LEFT = 62
TOP = 96
GAP = 46
BOTTOM = 104
WIDEST = 1100.0
NARROWEST = 320.0
LEGEND = 830.0
MOST_GRIDS = 3
"""Chunks of the worst case that are drawn, and its losses that are named."""
PALE = (253, 231, 210)
DARK = (140, 20, 20)
HARMLESS = "#e9eef2"


def draw(schedule: Schedule, report: LossReport, title: str) -> str:
    """The picture as the text of an SVG file.

    Raises:
        ArgumentError: the schedule has too many transfers to be looked at.
    """
    if report.each is None:
        requirement = f"needs a schedule of at most {MOST_LISTED} transfers"
        raise ArgumentError("--draw", report.transfers, requirement)
    slots, width = _slots(schedule)
    size = max(3.0, min(24.0, WIDEST / max(1, width)))
    end = LEFT + width * size
    grids = list(dict.fromkeys(block.chunk for block in report.worst.missing))[:MOST_GRIDS]
    right = end + GAP + 14
    height = TOP + max(schedule.ranks * size, 90) + BOTTOM
    total = right + max(NARROWEST, len(grids) * (schedule.ranks * size + 30))
    total = max(total, LEFT + LEGEND, LEFT + 9.0 * len(title))
    most = schedule.ranks * (schedule.ranks - 1)
    body = [
        words(LEFT, 24, title, size=15, bold=True),
        words(LEFT, 44, _legend_of(report), colour="#555"),
        *_axes(schedule, slots, size),
        *_squares(report, slots, size, most),
        *_worst(schedule, report, grids, right, size),
        *_legend(most, height - 14),
    ]
    return page(total, height, body)


def _slots(schedule: Schedule) -> tuple[dict[int, int], int]:
    """The column of each transfer: a round is as wide as the most that one rank receives in it."""
    slots: dict[int, int] = {}
    column = index = 0
    for _, _, transfers in schedule.located_rounds():
        received = [0] * schedule.ranks
        for transfer in transfers:
            slots[index] = column + received[transfer.dst]
            received[transfer.dst] += 1
            index += 1
        column += max(1, *received)
    return slots, column


def _axes(schedule: Schedule, slots: dict[int, int], size: float) -> Iterator[str]:
    step = -(-schedule.ranks // 32)
    for rank in range(0, schedule.ranks, step):
        y = TOP + (rank + 0.5) * size + 4
        yield words(LEFT - 8, y, f"rank {rank}", anchor="end")
    index = 0
    for phase in schedule.phases:
        columns = []
        for transfers in phase.rounds:
            columns += [slots[index + i] for i in range(len(transfers))]
            index += len(transfers)
        if columns:
            x = LEFT + min(columns) * size
            bottom = TOP + schedule.ranks * size
            yield words(x, TOP - 8, phase.name)
            yield f'<path d="M{x - 1:.1f} {TOP - 18}V{bottom:.1f}" stroke="#999"/>'


def _squares(report: LossReport, slots: dict[int, int], size: float, most: int) -> Iterator[str]:
    assert report.each is not None
    for index, single in enumerate(report.each):
        x = LEFT + slots[index] * size
        y = TOP + single.lost.dst * size
        yield (
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{size - 1:.1f}" height="{size - 1:.1f}" '
            f'fill="{_colour(single.entries, most)}"><title>{escape(_tip(single))}</title></rect>'
        )
        middle = f'cx="{x + size / 2 - 0.5:.1f}" cy="{y + size / 2 - 0.5:.1f}"'
        if single.differ:
            yield f'<circle {middle} r="{size / 9:.1f}" fill="#123"/>'
        if single.twice:
            yield f'<circle {middle} r="{size / 3:.1f}" fill="none" stroke="#06c"/>'


def _worst(
    schedule: Schedule, report: LossReport, grids: Sequence[int], right: float, size: float
) -> Iterator[str]:
    worst = report.worst
    n = schedule.ranks
    bound = "the worst" if worst.exact else "the worst found"
    yield words(right, TOP - 28, f"{bound}: {worst.entries} entries missing", bold=True)
    for number, chunk in enumerate(grids):
        x = right + number * (n * size + 30)
        yield words(x, TOP - 8, f"chunk {chunk}: rows miss columns")
        gone = {
            (rank, contribution)
            for block in worst.missing
            if block.chunk == chunk
            for rank in block.ranks
            for contribution in block.contributions
        }
        for rank in range(n):
            for contribution in range(n):
                colour = _colour(1, 1) if (rank, contribution) in gone else HARMLESS
                yield (
                    f'<rect x="{x + contribution * size:.1f}" y="{TOP + rank * size:.1f}" '
                    f'width="{size - 1:.1f}" height="{size - 1:.1f}" fill="{colour}"/>'
                )
    below = TOP + n * size + 16
    for number, lost in enumerate(worst.lost[:MOST_GRIDS]):
        yield words(right, below + 14 * number, f"lost: {lost}")
    if len(worst.lost) > MOST_GRIDS:
        more = f"and {len(worst.lost) - MOST_GRIDS} more"
        yield words(right, below + 14 * MOST_GRIDS, more)


def _legend_of(report: LossReport) -> str:
    return (
        f"each square: one of {report.transfers} transfers, in the row of its receiver; "
        f"{report.entries} entries (rank, chunk, contribution) in all"
    )


def _legend(most: int, y: float) -> Iterator[str]:
    x = float(LEFT)
    levels = sorted({0, *(round(most * share) for share in (0.25, 0.5, 0.75, 1))})
    for entries in levels:
        yield (
            f'<rect x="{x:.1f}" y="{y - 10:.1f}" width="12" height="12" '
            f'fill="{_colour(entries, most)}"/>'
        )
        yield words(x + 17, y, str(entries))
        x += 30 + 8 * len(str(entries))
    yield words(x, y, "entries missing after its loss")
    x += 190
    yield f'<circle cx="{x:.1f}" cy="{y - 4:.1f}" r="2.6" fill="#123"/>'
    yield words(x + 10, y, "ranks end with different sums")
    x += 195
    yield f'<circle cx="{x:.1f}" cy="{y - 4:.1f}" r="6" fill="none" stroke="#06c"/>'
    yield words(x + 12, y, "something is counted twice")


def _tip(single: Single) -> str:
    return f"{single.lost}: {single.entries} entries missing after its loss"


def _colour(entries: int, most: int) -> str:
    if not entries:
        return HARMLESS
    share = entries / most
    mixed = (round(a + (b - a) * share) for a, b in zip(PALE, DARK, strict=True))
    return "#" + "".join(f"{value:02x}" for value in mixed)
