"""``synth straggler``: a schedule for one rank that comes after the others' ReduceScatter."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from latecomer.synth.commands.late_ranks import (
    LINK,
    Chunks,
    ChunksPerHelper,
    CommonOptions,
    LateRank,
)
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
    refuse,
    searching,
    write_and_show,
)
from latecomer.synth.straggler import show
from latecomer.synth.straggler.choose import choose
from latecomer.synth.straggler.instance import Owners, PortModel
from latecomer.verify.replacing import Force

Ports = Annotated[
    PortModel,
    typer.Option(
        help="In a round each rank sends one chunk and receives one (duplex), or ranks form "
        "disjoint pairs (matching)."
    ),
]
ChunkOwners = Annotated[
    Owners,
    typer.Option(
        help="Whose partial sums: chunks dealt out evenly (balanced), chosen by the method "
        "(free), or balanced where that is quickly found at the bound, else free (auto)."
    ),
]


def straggler(
    context: typer.Context,
    n: Ranks,
    late: LateRank = None,
    m: ChunksPerHelper = None,
    chunks: Chunks = None,
    ports: Ports = "duplex",
    owners: ChunkOwners = "auto",
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
    """Search for the AllReduce schedule with the fewest rounds after one late rank arrives.

    That rank comes late enough for the others to hide their whole ReduceScatter. For one that comes
    sooner: synth arrivals.

    \b
    Examples:
      synth straggler --n 8
      synth straggler --n 8 --late 3 --m 4 -o late3.json
      synth straggler --n 8 --chunks 2
      synth straggler --n 6 --ports matching
      synth straggler --n 8 --bytes 1GiB --alpha 3us --bandwidth 450GB/s
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
    make_straggler(context, common, n=n, late=late, ports=ports, owners=owners)


def make_straggler(
    context: typer.Context,
    common: CommonOptions,
    *,
    n: int,
    late: int | None,
    ports: PortModel,
    owners: Owners,
) -> None:
    """Search, write and show it; ArgumentError before the search for what can't be asked."""
    if owners == "free":
        asked_of_a_solver = ["solver", "effort", "time_limit"]
        refuse(context, asked_of_a_solver, "has no use with --owners free", "Leave one of them out")
    setting = parse_setting(context, common.buffer, common.alpha, common.bandwidth, LINK)

    with nothing_written_if_interrupted(), searching(common.quiet) as progress:
        answer, candidates = choose(
            n,
            setting,
            late=late,
            m=common.m,
            chunks=common.chunks,
            ports=ports,
            owners=owners,
            seed=common.seed,
            effort=common.effort,
            time_limit_s=common.time_limit_s,
            solver=common.solver,
            progress=progress,
        )

    write_and_show(
        show, common.output, answer, setting, candidates, json=common.json, quiet=common.quiet
    )
