"""``python -m runtime watch --html OUT TRACE...``: a page on who was late, and what was decided."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from runtime.telemetry.page.model import model
from runtime.telemetry.page.read import read_trace
from verify.output import write_atomically
from verify.viewer.page import page, shared, source
from verify.viewer.part import parse_part


def page_of(of: dict[str, Any]) -> str:
    """The page of a model."""
    scripts = {"timeline.js": shared("timeline.js")}
    for name in ("operations.js", "arrivals.js"):
        scripts[name] = source("runtime.telemetry.page", name)
    return page(of, scripts)


def watch(
    traces: Annotated[
        list[Path],
        typer.Argument(metavar="TRACE...", help="What w.write_trace of runtime.watch() wrote."),
    ],
    html: Annotated[Path, typer.Option(metavar="FILE.html", help="Where the page goes.")],
    operations: Annotated[
        str | None, typer.Option(metavar="FROM-TO", help="Only these; for long runs.")
    ] = None,
) -> None:
    """Write a page on watched all-reduces: who was late, who waited, what was decided and why.

    \b
    Examples:
      python -m runtime watch --html run.html trace.json
      python -m runtime watch --html run.html --operations 10-19 trace.json
    """
    part = None if operations is None else parse_part(operations, "--operations")
    blocks = {os.fspath(path): read_trace(path) for path in traces}
    title = " + ".join(path.name for path in traces)
    shown = model(title, blocks, part)
    write_atomically(html, page_of(shown).encode())
    print(f"{html}: {shown['headline']}")
