"""``synth arrivals``: a schedule for ranks that come in given rounds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from latecomer.synth.arrivals import show
from latecomer.synth.arrivals.generate import search
from latecomer.synth.arrivals.request import arrival_rounds, late_ranks
from latecomer.synth.commands.late_ranks import LINK, Chunks, ChunksPerHelper, CommonOptions
from latecomer.synth.commands.options import (
    Buffer,
    Effort,
    Json,
    Output,
    Quiet,
    Ranks,
    Seed,
    Solver,
    TimeLimit,
    bandwidth_each_way,
    latency,
    nothing_written_if_interrupted,
    parse_setting,
    searching,
    write_and_show,
)
from latecomer.verify.replacing import Force

PANEL = "Arrivals"

LateRanks = Annotated[
    list[str] | None,
    typer.Option(metavar="RANKS", help="The late rank, or several as 6,7 (default: the last)."),
]
Arrivals = Annotated[
    str | None,
    typer.Option(
        metavar="ROUNDS|TIMES",
        rich_help_panel=PANEL,
        help="When each late rank arrives, as 3,9 or 1ms,3ms.",
    ),
]
Delay = Annotated[
    str | None,
    typer.Option(
        metavar="ROUNDS|TIME",
        rich_help_panel=PANEL,
        help="The late ranks arrive together, after so many rounds, or so long as 3ms with "
        "--bytes. Give this or --arrivals.",
    ),
]
Exact = Annotated[
    bool,
    typer.Option(
        "--exact",
        rich_help_panel=PANEL,
        help="Refuse, unless ranks and chunks are few enough for a solver to search all schedules.",
    ),
]


def arrivals(
    context: typer.Context,
    n: Ranks,
    late: LateRanks = None,
    arrivals: Arrivals = None,
    delay: Delay = None,
    exact: Exact = False,
    m: ChunksPerHelper = None,
    chunks: Chunks = None,
    buffer: Buffer = None,
    alpha: Annotated[str | None, latency(LINK[0])] = None,
    bandwidth: Annotated[str | None, bandwidth_each_way(LINK[1])] = None,
    solver: Solver = "z3",
    seed: Seed = 0,
    effort: Effort = 1.0,
    time_limit: TimeLimit = None,
    output: Output = Path("schedule.json"),
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Search for the AllReduce schedule with the fewest rounds after the last of the late ranks.

    What is ready is exchanged while the rest is still awaited.

    \b
    Examples:
      synth arrivals --n 8 --delay 2
      synth arrivals --n 8 --late 6,7 --arrivals 3,9
      synth arrivals --n 8 --late 6,7 --delay 20us --bytes 1MiB
      synth arrivals --n 4 --delay 1 --exact
    """
    common = CommonOptions(
        m=m,
        chunks=chunks,
        buffer=buffer,
        alpha=alpha,
        bandwidth=bandwidth,
        solver=solver,
        seed=seed,
        effort=effort,
        time_limit_s=time_limit,
        output=output,
        force=force,
        json=json,
        quiet=quiet,
    )
    common.require_usable(context)
    ranks = late_ranks(late)
    make_arrivals(context, common, n=n, late=ranks, arrivals=arrivals, delay=delay, exact=exact)


def make_arrivals(
    context: typer.Context,
    common: CommonOptions,
    *,
    n: int,
    late: Sequence[int],
    arrivals: str | None,
    delay: str | None,
    exact: bool,
) -> None:
    """Search, write and show it; ArgumentError before the search for what can't be asked."""
    setting = parse_setting(context, common.buffer, common.alpha, common.bandwidth, LINK)
    rounds_of_late = arrival_rounds(n, late, arrivals, delay, common.m or 1, common.chunks, setting)

    with nothing_written_if_interrupted(), searching(common.quiet) as progress:
        answer = search(
            n,
            rounds_of_late,
            m=common.m,
            chunks=common.chunks,
            seed=common.seed,
            effort=common.effort,
            time_limit_s=common.time_limit_s,
            solver=common.solver,
            setting=setting,
            exact=exact,
            progress=progress,
        )

    write_and_show(show, common.output, answer, setting, json=common.json, quiet=common.quiet)
