"""Makespan over delay, a line per method, as an SVG of our own."""

from __future__ import annotations

from xml.sax.saxutils import escape

from latecomer.synth.pipeline.compare import KEPT, DelayComparison
from latecomer.verify.pipeline.schedule import Number
from latecomer.verify.report.svg import page

COLOURS = ("#1b6ca8", "#c0392b", "#2e8b57", "#8e44ad", "#d68910", "#566573", "#17a2a2", "#a04000")
BOUND = "lower bound"
# In pixels.
LEFT = 76
TOP = 50
WIDTH = 640
HEIGHT = 360
RIGHT = 200


def svg(comparison: DelayComparison, title: str) -> str:
    """The picture as the text of an SVG file."""
    rows = comparison.rows
    longest = max(max(row.makespans.values()) for row in rows)
    highest = float(longest) * 1.05 or 1.0
    farthest = float(rows[-1].factor) or 1.0

    def x(factor: float) -> float:
        return LEFT + WIDTH * factor / farthest

    def y(makespan: float) -> float:
        return TOP + HEIGHT * (1 - makespan / highest)

    body = [
        f'<text x="{LEFT}" y="26" font-size="15" font-weight="bold">{escape(title)}</text>',
        f'<rect x="{LEFT}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}" fill="#f7f7f7"/>',
    ]

    for grid_line in range(6):
        value = highest * grid_line / 5
        body.append(
            f'<line x1="{LEFT}" y1="{y(value):.1f}" x2="{LEFT + WIDTH}" y2="{y(value):.1f}" '
            f'stroke="#ddd"/><text x="{LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">'
            f"{value:.4g}</text>"
        )
    for row in rows:
        body.append(
            f'<text x="{x(float(row.factor)):.1f}" y="{TOP + HEIGHT + 18}" text-anchor="middle">'
            f"{row.factor:g}</text>"
        )

    curves: list[tuple[str, list[Number]]] = []
    for name in comparison.columns:
        curves.append((name, [row.makespans[name] for row in rows]))
    curves.append((BOUND, [row.bound for row in rows]))
    for number, (name, values) in enumerate(curves):
        colour = "#111" if name == BOUND else COLOURS[number % len(COLOURS)]
        dash = ' stroke-dasharray="5 4"' if name in (BOUND, KEPT) else ""
        points = " ".join(
            f"{x(float(row.factor)):.1f},{y(float(value)):.1f}"
            for row, value in zip(rows, values, strict=True)
        )
        body.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>'
        )
        legend_x = LEFT + WIDTH + 14
        legend_y = TOP + 12 + 18 * number
        body.append(
            f'<line x1="{legend_x}" y1="{legend_y}" x2="{legend_x + 24}" y2="{legend_y}" '
            f'stroke="{colour}" stroke-width="2"{dash}/>'
            f'<text x="{legend_x + 30}" y="{legend_y + 4}">{escape(name)}</text>'
        )

    bottom = TOP + HEIGHT + 38
    body.append(
        f'<text x="{LEFT + WIDTH / 2}" y="{bottom}" text-anchor="middle">times the delay</text>'
        f'<text x="16" y="{TOP - 8}">makespan</text>'
    )
    return page(LEFT + WIDTH + RIGHT, bottom + 14, body, font_size=12)
