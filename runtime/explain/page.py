"""All that ``explain`` finds as a page: the verdicts, the picture, and where each rank stands.

The page is one file. It has no script and loads nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from latecomer.runtime.explain.picture import as_picture
from latecomer.runtime.explain.standing import Place
from latecomer.runtime.telemetry.rank_names import names
from latecomer.verify.viewer.page import shared

HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="latecomer">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
{style}
section {{ margin-top: 16px; }}
pre {{ margin: 8px 0 0; overflow-x: auto; font: 13px/1.5 var(--mono); }}
.picture {{ overflow-x: auto; }}
table {{ border-collapse: collapse; width: 100%; }}
th, td {{ text-align: left; padding: 4px 10px 4px 0; vertical-align: top; }}
</style>
</head>
<body>
<header><h1>{title}</h1></header>
<main>
"""


def as_page(title: str, texts: Sequence[str], places: Sequence[Place]) -> str:
    """The page.

    Args:
        title: the first verdict in a line.
        texts: each verdict, as the command prints it.
        places: where the ranks stand.
    """
    parts = [HEAD.format(title=escape(title), style=shared("page.css"))]
    for text in texts:
        parts.append(f'<section class="panel"><pre>{escape(text)}</pre></section>\n')
    if places:
        picture = as_picture("who waits for whom", places)
        parts.append(f'<section class="panel picture">{picture}</section>\n')
        parts.append('<section class="panel"><table>\n')
        parts.append("<tr><th>ranks</th><th>are in</th><th>wait for</th></tr>\n")
        parts += [_row(place, places) for place in places]
        parts.append("</table></section>\n")
    parts.append("</main>\n</body>\n</html>\n")
    return "".join(parts)


def _row(place: Place, places: Sequence[Place]) -> str:
    who = names(place.ranks) if place.ranks else "others"
    awaited = "; ".join(names(places[number].ranks) for number in place.waits_for)
    cells = (who, place.text, awaited)
    return "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>\n"
