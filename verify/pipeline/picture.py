"""Timelines of pipelines: an SVG of our own, and a trace for Perfetto or chrome://tracing.

A sheet is a title and bars, planned (``latecomer.verify.pipeline.timeline``) or measured; several
sheets are drawn below each other on one scale of time, so that a plan and what became of it can be
compared. A row per rank; blue F, orange I, green W, red the fused B, numbered by microbatch. A
message that takes time is a line from its sender's row to its receiver's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from latecomer.verify.pipeline.schedule import COMPUTE, parse_action
from latecomer.verify.pipeline.verdict import Bar
from latecomer.verify.report import trace_events
from latecomer.verify.report.svg import page, words
from latecomer.verify.report.trace_events import Event

COLOURS = {"F": "#9ec9ef", "I": "#f7c48b", "W": "#a9d8a0", "B": "#f2a59d"}
NAMES = {
    "F": "forward",
    "I": "backward (input)",
    "W": "backward (weight)",
    "B": "backward",
}
SENT = {"SEND_F": "#2f6db0", "SEND_B": "#b4610e"}
# In pixels.
LEFT = 70
TOP = 54
ROW = 22
GAP = 12
WIDTH = 1100
MOST_LABELLED = 4000
"""Bars up to which each says its microbatch."""


@dataclass(frozen=True)
class Sheet:
    """One timeline."""

    title: str
    bars: Sequence[Bar]


def svg(sheets: Sequence[Sheet], unit: str = "") -> str:
    """The sheets as the text of an SVG file; ``unit`` is that of time."""
    end = max((float(bar.end) for sheet in sheets for bar in sheet.bars), default=0.0) or 1.0
    scale = WIDTH / end
    y = 0.0
    body = []
    kinds: dict[str, None] = {}
    for sheet in sheets:
        body += list(_sheet(sheet, y, scale, kinds))
        y += TOP + _ranks(sheet) * (ROW + GAP) + 34
    body += list(_legend(kinds, y + 8))
    height = y + 30
    total = LEFT + WIDTH + 30
    axis = f"time ({unit})" if unit else "time"
    body.append(words(LEFT + WIDTH, y - 4, axis, anchor="end", colour="#555"))
    return page(total, height, body)


def _ranks(sheet: Sheet) -> int:
    return 1 + max((bar.rank for bar in sheet.bars), default=0)


def _sheet(sheet: Sheet, y: float, scale: float, kinds: dict[str, None]) -> Iterator[str]:
    yield words(LEFT, y + 26, sheet.title, size=14, bold=True)
    top = y + TOP - 12
    ranks = _ranks(sheet)

    def row(rank: int) -> float:
        return top + rank * (ROW + GAP)

    for rank in range(ranks):
        yield words(LEFT - 8, row(rank) + 15, f"rank {rank}", anchor="end")
        yield (
            f'<rect x="{LEFT}" y="{row(rank):.1f}" width="{WIDTH}" height="{ROW}" fill="#f4f4f4"/>'
        )
    labelled = len(sheet.bars) <= MOST_LABELLED
    for bar in sheet.bars:
        action = parse_action(bar.action)
        x = LEFT + float(bar.start) * scale
        width = (float(bar.end) - float(bar.start)) * scale
        if action.kind in COMPUTE and width > 0:
            kinds[action.kind] = None
            tip = f"{bar.action}, rank {bar.rank}: {bar.start:g} to {bar.end:g}"
            yield (
                f'<rect x="{x:.2f}" y="{row(bar.rank):.1f}" width="{width:.2f}" height="{ROW}" '
                f'fill="{COLOURS[action.kind]}" stroke="#fff" stroke-width="0.6">'
                f"<title>{escape(tip)}</title></rect>"
            )
            label = str(action.microbatch)
            if labelled and width > 6.5 * len(label):
                yield words(x + width / 2, row(bar.rank) + 15, label, anchor="middle")
        elif bar.receiver is not None and width > 0:
            kinds[action.kind] = None
            down = bar.receiver > bar.rank
            y1 = row(bar.rank) + (ROW if down else 0)
            y2 = row(bar.receiver) + (0 if down else ROW)
            yield (
                f'<line x1="{x:.2f}" y1="{y1:.1f}" x2="{x + width:.2f}" y2="{y2:.1f}" '
                f'stroke="{SENT[action.kind]}" stroke-width="0.9" stroke-opacity="0.75">'
                f"<title>{bar.action}: {bar.start:g} to {bar.end:g}</title></line>"
            )
    base = row(ranks)
    last = max((float(bar.end) for bar in sheet.bars), default=0.0)
    for time in _ticks(WIDTH / scale):
        x = LEFT + time * scale
        yield f'<line x1="{x:.1f}" y1="{base - 4}" x2="{x:.1f}" y2="{base}" stroke="#999"/>'
        yield words(x, base + 11, f"{time:g}", anchor="middle", colour="#555")
    x = LEFT + last * scale
    yield f'<line x1="{x:.1f}" y1="{top - 4}" x2="{x:.1f}" y2="{base}" stroke="#c00"/>'
    yield words(x + 3, top - 5, f"{last:g}", colour="#c00", anchor="end" if x > WIDTH else "start")


def _ticks(end: float) -> list[float]:
    """About ten round numbers from 0 to ``end``."""
    step = 10.0 ** (len(f"{int(max(end, 1))}") - 2)
    while end / step > 14:
        step *= 2 if f"{step:g}".lstrip("0.")[0] in "15" else 2.5
    return [step * i for i in range(int(end / step) + 1)]


def _legend(kinds: dict[str, None], y: float) -> Iterator[str]:
    x = float(LEFT)
    for kind in [*NAMES, *SENT]:
        if kind not in kinds:
            continue
        if kind in SENT:
            yield (
                f'<line x1="{x}" y1="{y + 6}" x2="{x + 16}" y2="{y - 4}" stroke="{SENT[kind]}"/>'
            )
            name = "activation under way" if kind == "SEND_F" else "gradient under way"
        else:
            yield f'<rect x="{x}" y="{y - 5}" width="16" height="12" fill="{COLOURS[kind]}"/>'
            name = f"{kind}, {NAMES[kind]}"
        yield words(x + 22, y + 5, name)
        x += 40 + 6.2 * len(name)


def trace(sheets: Sequence[Sheet], microseconds: float = 1.0) -> str:
    """The sheets as a Chrome trace: a process per sheet, a thread per rank, arrows for messages.

    Args:
        sheets: what to show.
        microseconds: how many of them one unit of the bars' time is.
    """
    events: list[Event] = []
    for process, sheet in enumerate(sheets):
        events.append(trace_events.name(process, sheet.title))
        events += (trace_events.name(process, f"rank {r}", r) for r in range(_ranks(sheet)))
        for number, bar in enumerate(sheet.bars):
            begin = float(bar.start) * microseconds
            end = float(bar.end) * microseconds
            kind = parse_action(bar.action).kind
            here = {"name": bar.action, "cat": kind, "pid": process, "tid": bar.rank}
            if bar.receiver is None:
                events.append({**here, "ph": "X", "ts": begin, "dur": end - begin})
            elif end > begin:
                arrow = {**here, "id": f"{process}.{number}"}
                events += trace_events.span(arrow, begin, end)
                events.append({**arrow, "ph": "s", "ts": begin})
                events.append({**arrow, "ph": "f", "bp": "e", "tid": bar.receiver, "ts": end})
    return trace_events.document(events)
