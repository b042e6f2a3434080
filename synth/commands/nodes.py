"""``synth nodes``: a schedule for one late rank among nodes with fast links inside."""

from __future__ import annotations

from dataclasses import dataclass
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
    refuse,
    searching,
    write_and_show,
)
from latecomer.synth.cost import Link
from latecomer.synth.twolevel import show
from latecomer.synth.twolevel.machine import Machine
from latecomer.synth.twolevel.search import search
from latecomer.synth.units import parse_bandwidth, parse_bytes, parse_seconds
from latecomer.verify.replacing import Force

LINK_BETWEEN_NODES = ("10us", "50GB/s")
"""Its latency and bandwidth where none are given."""
PANEL = "Machines of two levels"

NetworkPorts = Annotated[
    int | None,
    typer.Option(rich_help_panel=PANEL, help="Network ports of a node (default: one per rank)."),
]
OuterAlpha = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        rich_help_panel=PANEL,
        help=f"Latency of a message between nodes (default: {LINK_BETWEEN_NODES[0]}).",
    ),
]
OuterBandwidth = Annotated[
    str | None,
    typer.Option(
        metavar="RATE",
        rich_help_panel=PANEL,
        help=f"Bandwidth of a network port (default: {LINK_BETWEEN_NODES[1]}).",
    ),
]
Stages = Annotated[
    bool,
    typer.Option(
        "--stages",
        rich_help_panel=PANEL,
        help="Only in stages, inside nodes or between them: for GPUs of several machines.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class MachineOptions:
    """A machine of two levels as it was typed; ``alpha``, ``bandwidth``: of links in a node."""

    nodes: int
    per_node: int
    network_ports: int | None
    alpha: str | None
    bandwidth: str | None
    outer_alpha: str | None
    outer_bandwidth: str | None


def nodes(
    context: typer.Context,
    nodes: Annotated[int, typer.Option(rich_help_panel=PANEL, help="Nodes.")],
    per_node: Annotated[int, typer.Option(rich_help_panel=PANEL, help="Ranks in each node.")],
    buffer: Annotated[
        str, typer.Option("--bytes", metavar="SIZE", help="Size of the whole buffer, as 1GiB.")
    ],
    network_ports: NetworkPorts = None,
    outer_alpha: OuterAlpha = None,
    outer_bandwidth: OuterBandwidth = None,
    stages: Stages = False,
    alpha: Annotated[str | None, latency(LINK[0])] = None,
    bandwidth: Annotated[str | None, bandwidth_each_way(LINK[1])] = None,
    late: LateRank = None,
    m: ChunksPerHelper = None,
    chunks: Chunks = None,
    solver: Solver = "z3",
    seed: Seed = 0,
    effort: Effort = 1.0,
    time_limit: TimeLimit = None,
    output: Output = Path("schedule.json"),
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Search for the fastest AllReduce schedule for one late rank on nodes with fast links inside.

    \b
    Examples:
      synth nodes --nodes 2 --per-node 8 --bytes 1GiB
      synth nodes --nodes 2 --per-node 4 --network-ports 1 --late 3 --bytes 1MiB
      synth nodes --nodes 2 --per-node 8 --bytes 64MiB --stages
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
    machine = MachineOptions(
        nodes=nodes,
        per_node=per_node,
        network_ports=network_ports,
        alpha=alpha,
        bandwidth=bandwidth,
        outer_alpha=outer_alpha,
        outer_bandwidth=outer_bandwidth,
    )
    refuse_links_of_no_use(context, machine)
    make_for_nodes(common, buffer, parse_machine(machine), late=late, stages=stages)


def refuse_links_of_no_use(context: typer.Context, machine: MachineOptions) -> None:
    """ArgumentError for an option about links that this machine does not have."""
    if machine.nodes == 1:
        network = ["network_ports", "outer_alpha", "outer_bandwidth"]
        refuse(context, network, "has no use with one node", "Leave it out, or add nodes")
    if machine.per_node == 1:
        remedy = "Give --outer-alpha and --outer-bandwidth"
        refuse(context, ["alpha", "bandwidth"], "has no use with one rank in each node", remedy)


def parse_machine(options: MachineOptions) -> Machine:
    """The machine that the options describe, with the defaults of those left out."""
    network_ports = options.network_ports
    if network_ports is None:
        network_ports = options.per_node

    inner = Link(
        parse_seconds("--alpha", options.alpha or LINK[0]),
        parse_bandwidth("--bandwidth", options.bandwidth or LINK[1]),
    )
    outer = Link(
        parse_seconds("--outer-alpha", options.outer_alpha or LINK_BETWEEN_NODES[0]),
        parse_bandwidth("--outer-bandwidth", options.outer_bandwidth or LINK_BETWEEN_NODES[1]),
    )
    return Machine(options.nodes, options.per_node, network_ports, inner, outer)


def make_for_nodes(
    common: CommonOptions, buffer: str, machine: Machine, *, late: int | None, stages: bool
) -> None:
    """Search, write and show it; ArgumentError before the search for what can't be asked."""
    with nothing_written_if_interrupted(), searching(common.quiet) as progress:
        answer = search(
            machine,
            parse_bytes("--bytes", buffer),
            late=late,
            m=common.m,
            chunks=common.chunks,
            stages=stages,
            seed=common.seed,
            effort=common.effort,
            time_limit_s=common.time_limit_s,
            solver=common.solver,
            progress=progress,
        )

    write_and_show(show, common.output, answer, json=common.json, quiet=common.quiet)
