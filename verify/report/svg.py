"""What all pictures share: the frame of an SVG file, and a line of text in it."""

from __future__ import annotations

from collections.abc import Iterable
from xml.sax.saxutils import escape


def page(width: float, height: float, body: Iterable[str], *, font_size: int = 11) -> str:
    """The text of an SVG file, white behind ``body``; sizes in pixels."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" font-family="sans-serif" '
        f'font-size="{font_size}">\n'
        '<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(body) + "\n</svg>\n"
    )


def words(
    x: float,
    y: float,
    text: str,
    *,
    size: int = 11,
    bold: bool = False,
    anchor: str = "start",
    colour: str = "#222",
) -> str:
    """A line of text whose ``anchor`` (start, middle or end) is at (x, y)."""
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}"{weight} text-anchor="{anchor}" '
        f'fill="{colour}">{escape(text)}</text>'
    )
