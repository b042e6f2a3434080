"""``latecomer watch``: who is late and what runs, in a running job or in a trace."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from latecomer.runtime.host import host
from latecomer.runtime.telemetry.follower import Follower
from latecomer.runtime.telemetry.overview import overview, shown
from latecomer.runtime.telemetry.page.model import MOST_ARRIVALS, model
from latecomer.runtime.telemetry.page.read import read_trace
from latecomer.runtime.telemetry.summary import summarize
from latecomer.verify.errors import ArgumentError, FormatError
from latecomer.verify.output import write_atomically
from latecomer.verify.replacing import PAGE, Force, require_replaceable
from latecomer.verify.viewer.page import page, shared, source
from latecomer.verify.viewer.part import Part, parse_part

PATIENCE = 5  # looks at a job that begins, for which the files of all ranks are waited for


def page_of(of: dict[str, Any]) -> str:
    """The page of a model."""
    scripts = {"timeline.js": shared("timeline.js")}
    for name in ("operations.js", "arrivals.js"):
        scripts[name] = source("latecomer.runtime.telemetry.page", name)
    return page(of, scripts)


def watch(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR|TRACE...",
            help="The directory of latecomer.watch(directory=...), or what write_trace wrote.",
        ),
    ],
    html: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Write a page, instead of a table.")
    ] = None,
    operations: Annotated[
        str | None, typer.Option(metavar="FROM-TO", help="Traces: only these; for long runs.")
    ] = None,
    last: Annotated[
        int, typer.Option(help="DIR: operations that figures and page are about.", min=1)
    ] = 1000,
    once: Annotated[bool, typer.Option("--once", help="DIR: print the table and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and end.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="DIR, with --html: write it again and again.")
    ] = False,
    every: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.1)] = 2.0,
    prometheus: Annotated[
        str | None,
        typer.Option(metavar="[ADDRESS:]PORT", help="DIR: while it follows, serve metrics, too."),
    ] = None,
    force: Force = False,
) -> None:
    """Follow a running job, or look at one that is over: who was late, who waited, and what ran.

    A directory is followed until Ctrl-C. It may be of a job that has crashed: what it has told
    stays.

    \b
    Examples:
      latecomer watch watched/
      latecomer watch --once watched/
      latecomer watch --html run.html --follow watched/
      latecomer watch --prometheus 9465 watched/
      latecomer watch --html run.html trace.json
      latecomer watch --html run.html --operations 10-19 trace.json
    """
    part = None if operations is None else parse_part(operations, "--operations")
    if html is not None and as_json:
        raise ArgumentError("--json", str(html), "goes without --html")
    if follow and (html is None or once):
        remedy = "The table follows by itself, without --once"
        raise ArgumentError("--follow", str(paths[0]), "goes with --html", remedy)

    ends_at_once = once or as_json or (html is not None and not follow)
    if prometheus is not None and ends_at_once:
        raise ArgumentError("--prometheus", prometheus, "goes with a job that is followed")
    if html is not None:
        require_replaceable("--html", html, PAGE, inputs=paths, force=force)

    directories = [path for path in paths if path.is_dir()]
    if not directories:
        if follow or prometheus is not None:
            option = "--follow" if follow else "--prometheus"
            raise ArgumentError(option, str(paths[0]), "goes with a directory")
        _show_traces(paths, html, part, as_json=as_json)
        return

    if len(paths) > 1:
        raise ArgumentError("DIR", " ".join(map(str, paths)), "must be one directory")
    if part is not None:
        raise ArgumentError("--operations", part.text, "goes with traces", "Use --last")
    if ends_at_once:
        _show_once(directories[0], html, last, as_json=as_json)
        return
    with _served(prometheus) as tell:
        if html is None:
            _follow_table(directories[0], last, every, tell)
        else:
            _follow_page(directories[0], html, last, every, tell)


def _show_traces(paths: list[Path], html: Path | None, part: Part | None, *, as_json: bool) -> None:
    blocks = {os.fspath(path): read_trace(path) for path in paths}
    if html is None:
        for name, block in blocks.items():
            summary = summarize(block, max(rank.rank for rank in block) + 1)
            print(summary.as_json() if as_json else f"{name}\n{summary}")
        return
    title = " + ".join(path.name for path in paths)
    shown_model = model(title, blocks, part)
    write_atomically(html, page_of(shown_model).encode())
    print(f"{html}: {shown_model['headline']}")


def _show_once(directory: Path, html: Path | None, last: int, *, as_json: bool) -> None:
    follower = Follower(directory)
    follower.read()
    if html is not None:
        headline = _write_page(follower, html, last, reload_s=None)
        print(f"{html}: {headline}")
        return
    glance = overview(follower, last, host.unix_time())
    if as_json:
        print(json.dumps(glance.as_json()))
    else:
        Console().print(shown(glance))


Tell = Callable[[Follower], None]


@contextlib.contextmanager
def _served(prometheus: str | None) -> Iterator[Tell]:
    """Serve what is told, if anywhere; ArgumentError if it can't be served there."""
    if prometheus is None:
        yield lambda follower: None
        return

    from latecomer.runtime.telemetry.job_metrics import JobMetrics
    from latecomer.runtime.telemetry.served import parse_address, serve

    metrics = JobMetrics()
    try:
        close = serve(metrics, parse_address(prometheus, "--prometheus"))
    except OSError as error:
        problem = f"can't be served at ({error.strerror or error})"
        raise ArgumentError("--prometheus", prometheus, problem, "Choose another port") from None
    try:
        yield metrics.update
    finally:
        close()


def _follow_page(directory: Path, html: Path, last: int, every_s: float, tell: Tell) -> None:
    follower = Follower(directory, PATIENCE)
    follower.read()
    tell(follower)
    _write_page(follower, html, last, reload_s=every_s)
    print(f"{html}: written every {every_s:g} s, until Ctrl-C; it loads itself again", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            host.sleep(every_s)
            with contextlib.suppress(FormatError):  # emptied for the next job: the page stays
                follower.read()
                tell(follower)
                _write_page(follower, html, last, reload_s=every_s)


def _follow_table(directory: Path, last: int, every_s: float, tell: Tell) -> None:
    follower = Follower(directory, PATIENCE)
    with contextlib.suppress(KeyboardInterrupt), Live(auto_refresh=False) as terminal:
        while True:
            try:
                follower.read()
            except FormatError as error:  # a job that is about to begin has told nothing yet
                terminal.update(Text(f"{error}; Ctrl-C ends the wait"), refresh=True)
            else:
                tell(follower)
                terminal.update(shown(overview(follower, last, host.unix_time())), refresh=True)
            host.sleep(every_s)


def _write_page(follower: Follower, html: Path, last: int, reload_s: float | None) -> str:
    """Write the page of the last operations; its headline."""
    name = os.fspath(follower.directory)
    most = max(1, MOST_ARRIVALS // follower.world_size)
    ranks = follower.last_ranks(min(last, most))
    made = model(follower.directory.resolve().name, {name: ranks}, None, reload_s)
    write_atomically(html, page_of(made).encode())
    return str(made["headline"])
