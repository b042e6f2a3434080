"""A machine of two levels on the command line: its options, what they exclude, the machine."""

from __future__ import annotations

from typing import Annotated

import typer

from synth.commands.options import refuse
from synth.cost import Link
from synth.twolevel.machine import Machine
from synth.units import parse_bandwidth, parse_seconds
from verify.errors import ArgumentError

INNER = ("3us", "450GB/s")
OUTER = ("10us", "50GB/s")
EITHER = "Leave one of them out"
MACHINE_OPTIONS = ["nodes", "per_node", "network_ports", "outer_alpha", "outer_bandwidth"]
PANEL = "Machines of two levels"

Nodes = Annotated[
    int | None,
    typer.Option(rich_help_panel=PANEL, help="Nodes; also give --per-node and --bytes."),
]
PerNode = Annotated[int | None, typer.Option(rich_help_panel=PANEL, help="Ranks in each node.")]
NetworkPorts = Annotated[
    int | None,
    typer.Option(rich_help_panel=PANEL, help="Network ports of a node (default: one per rank)."),
]
OuterAlpha = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        rich_help_panel=PANEL,
        help=f"Latency of a message between nodes (default: {OUTER[0]}).",
    ),
]
OuterBandwidth = Annotated[
    str | None,
    typer.Option(
        metavar="RATE",
        rich_help_panel=PANEL,
        help=f"Bandwidth of a network port (default: {OUTER[1]}).",
    ),
]


def refuse_beside_nodes(
    context: typer.Context,
    n: int | None,
    nodes: int,
    per_node: int,
    buffer: str | None,
    late: list[int],
) -> None:
    """ArgumentError for what has no use on this machine, contradicts it, or is missing."""
    refuse(context, ["delay", "arrivals"], "is not used with --nodes", EITHER)
    if len(late) > 1:
        raise ArgumentError("--late", late, "must be one rank with --nodes", "Name one rank")
    if nodes == 1:
        network = ["network_ports", "outer_alpha", "outer_bandwidth"]
        refuse(context, network, "has no use with one node", "Leave it out, or add nodes")
    if per_node == 1:
        remedy = "Give --outer-alpha and --outer-bandwidth"
        refuse(context, ["alpha", "bandwidth"], "has no use with one rank in each node", remedy)
    if buffer is None:
        raise ArgumentError("--bytes", None, "is needed with --nodes", "For example: --bytes 1GiB")
    if n is not None and n != nodes * per_node:
        requirement = f"must be --nodes times --per-node, {nodes * per_node}"
        raise ArgumentError("--n", n, requirement, "Leave --n out")


def parse_machine(
    nodes: int,
    per_node: int,
    network_ports: int | None,
    alpha: str | None,
    bandwidth: str | None,
    outer_alpha: str | None,
    outer_bandwidth: str | None,
) -> Machine:
    """The machine that the options describe, with the defaults of those left out."""
    return Machine(
        nodes,
        per_node,
        per_node if network_ports is None else network_ports,
        Link(
            parse_seconds("--alpha", alpha or INNER[0]),
            parse_bandwidth("--bandwidth", bandwidth or INNER[1]),
        ),
        Link(
            parse_seconds("--outer-alpha", outer_alpha or OUTER[0]),
            parse_bandwidth("--outer-bandwidth", outer_bandwidth or OUTER[1]),
        ),
    )
