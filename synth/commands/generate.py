"""``synth generate``: one late rank, arrivals of several, or a machine of two levels.

Which of the three is meant follows from the options: ``--delay``, ``--arrivals`` or several ranks
after ``--late`` are arrivals, ``--nodes`` is a machine of two levels.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from synth.arrivals import generate as arrivals_family
from synth.arrivals import show as arrivals_show
from synth.arrivals.request import arrival_rounds, late_ranks
from synth.commands.machine import (
    EITHER,
    INNER,
    MACHINE_OPTIONS,
    NetworkPorts,
    Nodes,
    OuterAlpha,
    OuterBandwidth,
    PerNode,
    parse_machine,
    refuse_beside_nodes,
)
from synth.commands.options import (
    Buffer,
    Effort,
    Json,
    Output,
    Quiet,
    Seed,
    Solver,
    TimeLimit,
    bandwidth_each_way,
    latency,
    nothing_written_if_interrupted,
    parse_setting,
    refuse,
    refuse_json_if_quiet,
    require_writable,
    searching,
    write_and_show,
)
from synth.straggler import show as straggler_show
from synth.straggler.choose import choose
from synth.straggler.instance import Owners, PortModel
from synth.twolevel import search as twolevel_family
from synth.twolevel import show as twolevel_show
from synth.units import parse_bytes
from verify.errors import ArgumentError

ARRIVALS = "Arrivals"


def generate(
    context: typer.Context,
    n: Annotated[int | None, typer.Option("--n", help="Number of ranks.")] = None,
    late: Annotated[
        list[str] | None,
        typer.Option(metavar="RANKS", help="The late rank, or several as 6,7 (default: the last)."),
    ] = None,
    m: Annotated[
        int | None,
        typer.Option(
            help="Chunks per helper; the buffer has (n - 1) * m. Default: 1, unless --chunks or "
            "--bytes is given."
        ),
    ] = None,
    chunks: Annotated[
        int | None,
        typer.Option(
            help="Chunks of the whole buffer, any number. Default with --bytes: the one with the "
            "least predicted time."
        ),
    ] = None,
    ports: Annotated[
        PortModel,
        typer.Option(
            help="In a round each rank sends one chunk and receives one (duplex), or ranks form "
            "disjoint pairs (matching)."
        ),
    ] = "duplex",
    owners: Annotated[
        Owners,
        typer.Option(
            help="Whose partial sums: chunks dealt out evenly (balanced), chosen by the method "
            "(free), or balanced where that is quickly found at the bound, else free (auto)."
        ),
    ] = "auto",
    buffer: Buffer = None,
    alpha: Annotated[str | None, latency(INNER[0])] = None,
    bandwidth: Annotated[str | None, bandwidth_each_way(INNER[1])] = None,
    delay: Annotated[
        str | None,
        typer.Option(
            metavar="ROUNDS|TIME",
            rich_help_panel=ARRIVALS,
            help="The late ranks arrive after so many rounds, or so long as 3ms with --bytes "
            "(default: late enough to hide the whole ReduceScatter).",
        ),
    ] = None,
    arrivals: Annotated[
        str | None,
        typer.Option(
            metavar="ROUNDS|TIMES",
            rich_help_panel=ARRIVALS,
            help="When each late rank arrives, as 3,9 or 1ms,3ms.",
        ),
    ] = None,
    exact: Annotated[
        bool,
        typer.Option(
            "--exact",
            rich_help_panel=ARRIVALS,
            help="Refuse, unless ranks and chunks are few enough for a solver to search all "
            "schedules.",
        ),
    ] = False,
    nodes: Nodes = None,
    per_node: PerNode = None,
    network_ports: NetworkPorts = None,
    outer_alpha: OuterAlpha = None,
    outer_bandwidth: OuterBandwidth = None,
    solver: Solver = "z3",
    seed: Seed = 0,
    effort: Effort = 1.0,
    time_limit: TimeLimit = None,
    output: Output = Path("schedule.json"),
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Search for the AllReduce schedule with the fewest rounds after a late rank arrives.

    \b
    Examples:
      synth generate --n 8
      synth generate --n 8 --late 3 --m 4 -o late3.json
      synth generate --n 8 --chunks 2
      synth generate --n 8 --bytes 1GiB --alpha 3us --bandwidth 450GB/s
      synth generate --n 8 --delay 2
      synth generate --n 8 --late 6,7 --arrivals 3,9
      synth generate --n 4 --delay 1 --exact
      synth generate --nodes 2 --per-node 8 --bytes 1GiB
    """
    require_writable(output)
    refuse_json_if_quiet(context, quiet=quiet)
    if chunks is not None:
        refuse(context, ["m"], "has no use with --chunks", "Leave one of them out")
    named = late_ranks(late)
    has_arrivals = delay is not None or arrivals is not None or len(named) > 1
    machine = None
    if nodes is None or per_node is None:
        needs = "is used only with both --nodes and --per-node"
        refuse(context, MACHINE_OPTIONS, needs, "Give both")
        if n is None:
            raise ArgumentError("--n", None, "is needed", "Or give --nodes and --per-node")
    else:
        links = alpha, bandwidth, outer_alpha, outer_bandwidth
        refuse_beside_nodes(context, n, nodes, per_node, buffer, named)
        machine = parse_machine(nodes, per_node, network_ports, *links)
    if machine is not None or not has_arrivals:
        refuse(context, ["exact"], "is used only with --delay or --arrivals", "Add --delay 1")
    if machine is not None or has_arrivals:
        beside = "--nodes" if machine is not None else "--delay or --arrivals"
        if ports != "duplex":
            raise ArgumentError("--ports", ports, f"must be duplex with {beside}", EITHER)
        if owners != "auto":
            raise ArgumentError("--owners", owners, f"can't be chosen with {beside}", EITHER)
    elif owners == "free":
        refuse(context, ["solver", "effort", "time_limit"], "has no use with --owners free", EITHER)
    one = named[0] if named else None
    if machine is not None:
        assert buffer is not None
        with nothing_written_if_interrupted(), searching(quiet) as progress:
            placed = twolevel_family.search(
                machine,
                parse_bytes("--bytes", buffer),
                late=one,
                m=m,
                chunks=chunks,
                seed=seed,
                effort=effort,
                time_limit_s=time_limit,
                solver=solver,
                progress=progress,
            )
        write_and_show(twolevel_show, output, placed, json=json, quiet=quiet)
        return
    assert n is not None
    setting = parse_setting(context, buffer, alpha, bandwidth, INNER)
    if has_arrivals:
        when = arrival_rounds(n, named, arrivals, delay, m or 1, chunks, setting)
        with nothing_written_if_interrupted(), searching(quiet) as progress:
            arranged = arrivals_family.search(
                n,
                when,
                m=m,
                chunks=chunks,
                seed=seed,
                effort=effort,
                time_limit_s=time_limit,
                solver=solver,
                setting=setting,
                exact=exact,
                progress=progress,
            )
        write_and_show(arrivals_show, output, arranged, setting, json=json, quiet=quiet)
        return
    with nothing_written_if_interrupted(), searching(quiet) as progress:
        answer, candidates = choose(
            n,
            setting,
            late=one,
            m=m,
            chunks=chunks,
            ports=ports,
            owners=owners,
            seed=seed,
            effort=effort,
            time_limit_s=time_limit,
            solver=solver,
            progress=progress,
        )
    write_and_show(straggler_show, output, answer, setting, candidates, json=json, quiet=quiet)
