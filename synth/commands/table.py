"""``synth table``: what can be found.

Exit codes: 0 done (gaps are no failure), 2 bad arguments, 3 a row of the table found nothing,
130 interrupted; what was printed by then stays.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from latecomer.synth.commands.options import (
    INTERRUPTED,
    NOTHING_FOUND,
    Effort,
    Json,
    Seed,
    Solver,
    TimeLimit,
    encoded,
    refuse,
    searching,
)
from latecomer.synth.cost import MOST_CHUNKS
from latecomer.synth.standard import MOST_RANKS
from latecomer.synth.straggler.instance import Owners, PortModel
from latecomer.synth.survey import HEADER, Row, parse_range, summary, summary_json, survey


def table(
    context: typer.Context,
    n: Annotated[
        str,
        typer.Option(
            "--n",
            "-n",
            "--ranks",
            metavar="RANGE",
            help="Ranks, as 2..64 or 2,3,8..12.",
        ),
    ],
    m: Annotated[str, typer.Option(metavar="RANGE", help="Chunks per helper.")] = "1",
    chunks: Annotated[
        str | None, typer.Option(metavar="RANGE", help="Chunks of the buffer, instead of --m.")
    ] = None,
    ports: Annotated[PortModel, typer.Option(help="As for straggler.")] = "duplex",
    owners: Annotated[Owners, typer.Option(help="As for straggler.")] = "auto",
    solver: Solver = "z3",
    seed: Seed = 0,
    effort: Effort = 1.0,
    time_limit: TimeLimit = None,
    json: Json = False,
) -> None:
    """Search and prove a schedule for each number of ranks and chunks; nothing is written.

    \b
    Examples:
      synth table --n 2..16
      synth table --n 2,3,8..12 --m 1,2,4 --ports matching --time-limit 5
      synth table --n 2..16 --chunks 1..8
    """
    if owners == "free":
        needs = "has no use with --owners free: no solver is asked"
        refuse(context, ["solver", "effort", "time_limit"], needs, "Leave one of them out")
    ns = parse_range("--n", n, 2, MOST_RANKS)
    if chunks is not None:
        refuse(context, ["m"], "has no use with --chunks", "Leave one of them out")
    ms = parse_range("--m", m, 1, MOST_RANKS)
    ks = [] if chunks is None else parse_range("--chunks", chunks, 1, MOST_CHUNKS)
    rows: list[Row] = []
    interrupted = False
    try:
        with searching(json) as progress:
            for row in survey(
                ns,
                ms,
                chunks=ks,
                ports=ports,
                owners=owners,
                seed=seed,
                effort=effort,
                time_limit_s=time_limit,
                solver=solver,
                progress=progress,
            ):
                if not json and not rows:
                    print(HEADER)
                rows.append(row)
                print(encoded(row) if json else row, flush=True)
    except KeyboardInterrupt:
        interrupted = True
    asked = len(ns) * len(ks or ms)
    print(encoded({"summary": summary_json(rows, asked)}) if json else summary(rows, asked))
    if interrupted:
        print("interrupted: the rows above are what was done", file=sys.stderr)
        raise typer.Exit(INTERRUPTED)
    if any(row.rounds is None for row in rows):
        raise typer.Exit(NOTHING_FOUND)
