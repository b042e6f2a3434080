"""The graph of waits as a picture: places of ranks, and arrows to those for whom they wait."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from latecomer.runtime.explain.standing import Place
from latecomer.runtime.telemetry.rank_names import SHORT_RUN, names
from latecomer.verify.report.svg import page, words

WIDTH = 300  # of a place
GAP = 90  # between columns
HEIGHT = 46
APART = 14  # between places of a column
MARGIN = 20
TOP = 50
MOST_IN_A_COLUMN = 24
MOST_LETTERS = 46
BLAMED = "#d21f4b"
WAITS = "#d97a00"
FREE = "#08805d"
LEGEND = ((BLAMED, "holds up the others"), (WAITS, "waits"), (FREE, "waits for nobody"))


def as_picture(title: str, places: Sequence[Place]) -> str:
    """An SVG file; who waits is to the left of whom it waits for."""
    last = max((place.column for place in places), default=0)
    at: dict[int, tuple[float, float]] = {}  # by place, its upper left corner
    left_out: dict[int, int] = defaultdict(int)
    in_column: dict[int, int] = defaultdict(int)
    blamed_first = sorted(range(len(places)), key=lambda number: not places[number].is_blamed)
    for number in blamed_first:
        column = places[number].column
        if in_column[column] == MOST_IN_A_COLUMN:
            left_out[column] += 1
            continue
        x = MARGIN + (last - column) * (WIDTH + GAP)
        y = TOP + in_column[column] * (HEIGHT + APART)
        at[number] = (x, y)
        in_column[column] += 1

    body = [_arrow_head(), words(MARGIN, 24, title, size=13, bold=True)]
    for number, place in enumerate(places):
        for awaited in place.waits_for:
            if number in at and awaited in at:
                body.append(_arrow(at[number], at[awaited]))
    for number, corner in at.items():
        body += _box(corner, places[number])

    y = TOP + max(in_column.values(), default=0) * (HEIGHT + APART) + 6
    for column, count in left_out.items():
        x = MARGIN + (last - column) * (WIDTH + GAP)
        body.append(words(x, y + 4, f"and {count} more"))
    y += 24
    for position, (colour, text) in enumerate(LEGEND):
        x = MARGIN + position * 150
        body.append(f'<rect x="{x}" y="{y - 10}" width="12" height="12" fill="{colour}"/>')
        body.append(words(x + 18, y, text))
    width = max(2 * MARGIN + (last + 1) * WIDTH + last * GAP, MARGIN + len(LEGEND) * 150)
    return page(width, y + MARGIN, body)


def _box(corner: tuple[float, float], place: Place) -> list[str]:
    x, y = corner
    colour = FREE
    if place.is_blamed:
        colour = BLAMED
    elif place.waits_for:
        colour = WAITS
    frame = f'x="{x:.0f}" y="{y:.0f}" width="{WIDTH}" height="{HEIGHT}" rx="6"'
    who = names(place.ranks) if place.ranks else "others"
    if len(place.ranks) > SHORT_RUN:
        who += f" ({len(place.ranks)})"
    return [
        f'<rect {frame} fill="white" stroke="{colour}" stroke-width="2"/>',
        words(x + 10, y + 18, _short(who), bold=True, colour=colour),
        words(x + 10, y + 35, _short(place.text)),
    ]


def _short(text: str) -> str:
    return text if len(text) <= MOST_LETTERS else f"{text[: MOST_LETTERS - 1]}…"


def _arrow(start: tuple[float, float], end: tuple[float, float]) -> str:
    """From the right edge of a place to the left one of another; of one column, around it."""
    x1 = start[0] + WIDTH
    y1 = start[1] + HEIGHT / 2
    x2 = end[0]
    y2 = end[1] + HEIGHT / 2
    bend = GAP / 2
    if start[0] == end[0]:
        x2 = end[0] + WIDTH
        second = x2 + bend
    else:
        second = x2 - bend
    path = f"M {x1:.0f} {y1:.0f} C {x1 + bend:.0f} {y1:.0f} {second:.0f} {y2:.0f} {x2:.0f} {y2:.0f}"
    return f'<path d="{path}" fill="none" stroke="#6a707d" marker-end="url(#to)"/>'


def _arrow_head() -> str:
    return (
        '<defs><marker id="to" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" '
        'markerHeight="8" orient="auto"><path d="M 0 0 L 8 4 L 0 8 z" fill="#6a707d"/></marker>'
        "</defs>"
    )
