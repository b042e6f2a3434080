"""The picture of the README: four ranks, one of them late; the ring beside a straggler schedule.

    python docs/pictures/straggler.py [OUT.svg]

Both schedules are made by ``synth`` and drawn to one scale of time: a round takes the time of its
chunk on a link, and the unit is the time of the whole buffer.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from latecomer import synth
from latecomer.verify import Schedule, Transfer, check
from latecomer.verify.report.svg import page, words

RANKS, LATE = 4, 3
LEFT, UNIT, LANE, TITLE = 66.0, 400.0, 34.0, 62.0
"""Pixels: left margin, the time of the whole buffer, between ranks, above the first rank."""
HIGH = TITLE + RANKS * LANE + 42
COLOURS = "#2b62d9", "#c25e00", "#08805d", "#8a3ab9"
INK, SOFT, BACK, AWAY, ARRIVAL = "#17191f", "#565c69", "#f1f2ee", "#d3d5cf", "#c3183f"


def arrow(x: float, top: float, transfer: Transfer) -> Iterator[str]:
    """A transfer: the chunk's number at its source, a head at its destination."""
    start, end = (top + (rank + 0.5) * LANE for rank in (transfer.src, transfer.dst))
    colour = COLOURS[transfer.chunk]
    down = 1 if end > start else -1
    dashed = ' stroke-dasharray="4 3"' if transfer.op == "copy" else ""
    fill = colour if transfer.op == "reduce" else "white"
    yield (
        f'<line x1="{x:.1f}" y1="{start:.1f}" x2="{x:.1f}" y2="{end - 8 * down:.1f}" '
        f'stroke="{colour}" stroke-width="2"{dashed}/>'
        f'<path d="M{x:.1f} {end:.1f}l-5 {-9 * down}h10z" fill="{fill}" stroke="{colour}" '
        f'stroke-width="1.5"/><circle cx="{x:.1f}" cy="{start:.1f}" r="7.5" fill="{colour}"/>'
    )
    label = str(transfer.chunk)
    yield words(x, start + 3.7, label, bold=True, anchor="middle", colour="white")


def lanes(top: float, arrival: float, right: float) -> Iterator[str]:
    """A line for each rank; a bar where the late one is not there."""
    for rank in range(RANKS):
        y = top + (rank + 0.5) * LANE
        colour = ARRIVAL if rank == LATE else INK
        yield words(LEFT - 12, y + 4, f"rank {rank}", size=12, anchor="end", colour=colour)
        yield (
            f'<line x1="{LEFT}" y1="{y}" x2="{right:.1f}" y2="{y}" stroke="#b9bcb4" '
            'stroke-width="1"/>'
        )
    y = top + (LATE + 0.5) * LANE
    yield (
        f'<rect x="{LEFT}" y="{y - 9}" width="{arrival - LEFT:.1f}" height="18" rx="3" '
        f'fill="{AWAY}"/>'
    )
    middle = (LEFT + arrival) / 2
    yield words(middle, y + 4, "not there yet", anchor="middle", colour=SOFT)


def panel(name: str, schedule: Schedule, top: float, arrival: float, facts: str) -> Iterator[str]:
    """A schedule whose last rounds, those with the late rank, begin at its arrival."""
    width = UNIT / schedule.chunks
    first = top + TITLE
    waiting = sum(len(phase.rounds) for phase in schedule.phases if LATE in phase.absent)
    rounds = list(schedule.located_rounds())
    begin = arrival - waiting * width
    right = begin + len(rounds) * width
    yield words(LEFT, top + 16, name, size=14, bold=True, colour=INK)
    text = f"rank {LATE} arrives"
    yield words(arrival, first - 25, text, anchor="middle", bold=True, colour=ARRIVAL)
    for number in range(len(rounds)):
        x = begin + number * width
        yield (
            f'<rect x="{x + 2:.1f}" y="{first - 18}" width="{width - 4:.1f}" '
            f'height="{RANKS * LANE + 20}" rx="5" fill="{BACK}"/>'
        )
        label = f"round {number + 1}"
        yield words(x + width / 2, first - 5, label, anchor="middle", colour=SOFT)
    yield from lanes(first, arrival, right)
    for number, (_, _, transfers) in enumerate(rounds):
        for place, transfer in enumerate(sorted(transfers, key=lambda t: (t.src, t.dst)), 1):
            x = begin + (number + place / (len(transfers) + 1)) * width
            yield from arrow(x, first, transfer)
    if not waiting:
        middle, y = (LEFT + arrival) / 2, first + 1.5 * LANE
        yield words(middle, y - 6, "the other ranks wait", anchor="middle", colour=SOFT)
    y = first + RANKS * LANE + 22
    yield (
        f'<path d="M{arrival:.1f} {first - 19}V{y}" stroke="{ARRIVAL}" stroke-width="1.5" '
        f'stroke-dasharray="6 4"/>'
        f'<path d="M{arrival:.1f} {y - 5}v10m0 -5H{right:.1f}m0 -5v10" stroke="{ARRIVAL}" '
        'stroke-width="1.5" fill="none"/>'
    )
    yield words((arrival + right) / 2, y + 15, facts, anchor="middle", colour=ARRIVAL)


def legend(y: float, *schedules: Schedule) -> Iterator[str]:
    """What circles, heads and colours mean."""
    x = LEFT
    sizes = " and ".join(f"1/{schedule.chunks}" for schedule in schedules)
    yield f'<circle cx="{x + 8}" cy="{y}" r="7.5" fill="{COLOURS[0]}"/>'
    yield words(x + 8, y + 3.7, "0", bold=True, anchor="middle", colour="white")
    yield words(x + 22, y + 4, f"a rank sends this chunk ({sizes} of the buffer)", colour=SOFT)
    x += 330
    yield f'<path d="M{x} {y + 5}l-5 -9h10z" fill="{COLOURS[0]}" stroke="{COLOURS[0]}"/>'
    yield words(x + 12, y + 4, "the receiver adds it to its own", colour=SOFT)
    x += 230
    yield f'<path d="M{x} {y + 5}l-5 -9h10z" fill="white" stroke="{COLOURS[0]}"/>'
    yield words(x + 12, y + 4, "the receiver takes it in place of its own", colour=SOFT)


def draw() -> str:
    """The picture as the text of an SVG file."""
    ring, straggler = synth.ring(RANKS), synth.generate(RANKS, late=LATE)
    waiting = sum(len(phase.rounds) for phase in straggler.phases if LATE in phase.absent)
    report = check(straggler)
    arrival = LEFT + waiting * UNIT / straggler.chunks
    rounds, bound = report.completion_rounds, report.lower_bound
    ring_rounds = check(ring).completion_rounds
    of = "times as long as the buffer takes on a link"
    ring_facts = f"{ring_rounds} rounds after the arrival, {ring_rounds / ring.chunks:.2f} {of}"
    facts = (
        f"{rounds} rounds, {rounds / straggler.chunks:.2f} {of}; "
        f"lower bound for {straggler.chunks} chunks: {bound} rounds"
    )
    height = 2 * HIGH + 56
    body = [
        *panel("Ring: no rank can begin before all are there", ring, 6, arrival, ring_facts),
        *panel("Straggler schedule: the helpers begin", straggler, 14 + HIGH, arrival, facts),
        *legend(height - 20, ring, straggler),
    ]
    return page(LEFT + (waiting / straggler.chunks + 1.5) * UNIT + 24, height, body)


if __name__ == "__main__":
    target = Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).with_suffix(".svg")
    target.write_text(draw())
