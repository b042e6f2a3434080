"""The commands ``synth compare`` and ``synth table``: what to expect, and what can be found.

Exit codes: 0 done (gaps are no failure), 2 bad arguments, 3 a row of the table found nothing,
130 interrupted; what was printed by then stays.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from synth.compare import as_json, as_text, parse_sizes, plot, require_picture
from synth.compare import compare as make_comparison
from synth.console import INTERRUPTED, NOTHING_FOUND, encoded, searching
from synth.cost import MOST_M, Latency, Link
from synth.solvers import SolverName
from synth.standard import MOST_RANKS
from synth.straggler.instance import Owners, PortModel
from synth.survey import HEADER, Row, parse_range, summary, summary_json, survey
from synth.units import parse_bandwidth, parse_seconds

Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]
Alpha = Annotated[str, typer.Option(metavar="TIME", help="Latency of a message.")]
Bandwidth = Annotated[
    str, typer.Option(metavar="RATE", help="Bandwidth of a rank, each direction.")
]


def register(app: typer.Typer) -> None:
    """Add both commands to ``app``."""
    app.command()(compare)
    app.command()(table)


def compare(
    n: Annotated[int, typer.Option("--n", help="Number of ranks.")],
    alpha: Alpha = "3us",
    bandwidth: Bandwidth = "450GB/s",
    sizes: Annotated[
        str, typer.Option(metavar="FIRST:LAST", help="Buffer sizes, from the first to the last.")
    ] = "1KiB:4GiB",
    factor: Annotated[int, typer.Option(help="Each size is so many times the one before.")] = 4,
    latency: Annotated[
        Latency,
        typer.Option(
            help="Pay alpha for every message of a rank in a round, or once per round: matters for "
            "direct only."
        ),
    ] = "message",
    most_m: Annotated[int, typer.Option(help="Most chunks per helper.")] = MOST_M,
    plot_file: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw it, too (.svg or .png).")
    ] = None,
    json: Json = False,
) -> None:
    """Predict every AllReduce over a range of sizes, in the style of nccl-tests.

    \b
    Examples:
      synth compare --n 8
      synth compare --n 8 --alpha 30us --bandwidth 25Gbit/s --sizes 1MiB:1GiB
      synth compare --n 8 --plot compare.svg
    """
    if plot_file is not None:
        require_picture(plot_file)
    link = Link(parse_seconds("--alpha", alpha), parse_bandwidth("--bandwidth", bandwidth))
    comparison = make_comparison(
        n, parse_sizes("--sizes", sizes, factor), link, latency=latency, most_m=most_m
    )
    print(encoded(as_json(comparison)) if json else as_text(comparison))
    if plot_file is not None:
        plot(comparison, plot_file)


def table(
    n: Annotated[str, typer.Option("--n", metavar="RANGE", help="Ranks, as 2..64 or 2,3,8..12.")],
    m: Annotated[str, typer.Option(metavar="RANGE", help="Chunks per helper.")] = "1",
    ports: Annotated[PortModel, typer.Option(help="As for generate.")] = "duplex",
    owners: Annotated[Owners, typer.Option(help="As for generate.")] = "auto",
    solver: Annotated[SolverName, typer.Option(help="The solver that searches.")] = "cp-sat",
    seed: Annotated[int, typer.Option(help="Random seed of the solver.")] = 0,
    time_limit: Annotated[
        float, typer.Option(metavar="SECONDS", help="For the search of each row.")
    ] = 20.0,
    json: Json = False,
) -> None:
    """Search and prove a schedule for each number of ranks and chunks; nothing is written.

    \b
    Examples:
      synth table --n 2..16
      synth table --n 2,3,8..12 --m 1,2,4 --ports matching --time-limit 5
    """
    ns = parse_range("--n", n, 2, MOST_RANKS)
    ms = parse_range("--m", m, 1, MOST_RANKS)
    rows: list[Row] = []
    interrupted = False
    if not json:
        print(HEADER, flush=True)
    try:
        with searching(json) as progress:
            for row in survey(
                ns,
                ms,
                ports=ports,
                owners=owners,
                seed=seed,
                time_limit_s=time_limit,
                solver=solver,
                progress=progress,
            ):
                rows.append(row)
                print(encoded(row) if json else row, flush=True)
    except KeyboardInterrupt:
        interrupted = True
    asked = len(ns) * len(ms)
    print(encoded({"summary": summary_json(rows, asked)}) if json else summary(rows, asked))
    if interrupted:
        print("interrupted: the rows above are what was done", file=sys.stderr)
        raise typer.Exit(INTERRUPTED)
    if any(row.rounds is None for row in rows):
        raise typer.Exit(NOTHING_FOUND)
