"""``synth generate``: ``synth straggler``, ``synth arrivals`` or ``synth nodes``, by the options.

``--nodes`` with ``--per-node`` asks for nodes; ``--delay``, ``--arrivals`` or several ranks after
``--late`` for arrivals; anything else for one straggler. It is older than the three, which take
only the options that can be combined; here the others have to be refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from latecomer.synth.arrivals.request import late_ranks
from latecomer.synth.commands import arrivals as arrivals_command
from latecomer.synth.commands.arrivals import Arrivals, Exact, LateRanks, make_arrivals
from latecomer.synth.commands.late_ranks import LINK, Chunks, ChunksPerHelper, CommonOptions
from latecomer.synth.commands.nodes import (
    PANEL,
    MachineOptions,
    NetworkPorts,
    OuterAlpha,
    OuterBandwidth,
    Stages,
    make_for_nodes,
    parse_machine,
    refuse_links_of_no_use,
)
from latecomer.synth.commands.options import (
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
    refuse,
)
from latecomer.synth.commands.straggler import ChunkOwners, Ports, make_straggler
from latecomer.synth.straggler.instance import Owners, PortModel
from latecomer.verify.errors import ArgumentError, MissingArgument
from latecomer.verify.replacing import Force

EITHER = "Leave one of them out"
MACHINE_OPTIONS = [
    "nodes",
    "per_node",
    "network_ports",
    "outer_alpha",
    "outer_bandwidth",
    "stages",
]

RanksIfAny = Annotated[int | None, typer.Option("--n", "-n", "--ranks", help="Number of ranks.")]
DelayOfGenerate = Annotated[
    str | None,
    typer.Option(
        metavar="ROUNDS|TIME",
        rich_help_panel=arrivals_command.PANEL,
        help="The late ranks arrive after so many rounds, or so long as 3ms with --bytes "
        "(default: late enough to hide the whole ReduceScatter).",
    ),
]
NodesIfAny = Annotated[
    int | None,
    typer.Option(rich_help_panel=PANEL, help="Nodes; also give --per-node and --bytes."),
]
PerNodeIfAny = Annotated[
    int | None, typer.Option(rich_help_panel=PANEL, help="Ranks in each node.")
]


@dataclass(frozen=True, kw_only=True)
class GenerateOptions:
    """All options as they were typed; beside the common ones each belongs to some families only."""

    common: CommonOptions
    n: int | None
    late: list[str] | None
    ports: PortModel
    owners: Owners
    delay: str | None
    arrivals: str | None
    exact: bool
    nodes: int | None
    per_node: int | None
    network_ports: int | None
    outer_alpha: str | None
    outer_bandwidth: str | None
    stages: bool


def generate(
    context: typer.Context,
    n: RanksIfAny = None,
    late: LateRanks = None,
    m: ChunksPerHelper = None,
    chunks: Chunks = None,
    ports: Ports = "duplex",
    owners: ChunkOwners = "auto",
    buffer: Buffer = None,
    alpha: Annotated[str | None, latency(LINK[0])] = None,
    bandwidth: Annotated[str | None, bandwidth_each_way(LINK[1])] = None,
    delay: DelayOfGenerate = None,
    arrivals: Arrivals = None,
    exact: Exact = False,
    nodes: NodesIfAny = None,
    per_node: PerNodeIfAny = None,
    network_ports: NetworkPorts = None,
    outer_alpha: OuterAlpha = None,
    outer_bandwidth: OuterBandwidth = None,
    stages: Stages = False,
    solver: Solver = "z3",
    seed: Seed = 0,
    effort: Effort = 1.0,
    time_limit: TimeLimit = None,
    output: Output = Path("schedule.json"),
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Search for the AllReduce schedule with the fewest rounds after a late rank arrives.

    The options decide which of these it is: synth straggler, synth arrivals or synth nodes.

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
      synth generate --nodes 2 --per-node 8 --bytes 64MiB --stages
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
    options = GenerateOptions(
        common=common,
        n=n,
        late=late,
        ports=ports,
        owners=owners,
        delay=delay,
        arrivals=arrivals,
        exact=exact,
        nodes=nodes,
        per_node=per_node,
        network_ports=network_ports,
        outer_alpha=outer_alpha,
        outer_bandwidth=outer_bandwidth,
        stages=stages,
    )
    _make(context, options)


def _make(context: typer.Context, options: GenerateOptions) -> None:
    """Find out which family is meant, refuse what belongs to others, then do as its command."""
    options.common.require_usable(context)
    late = late_ranks(options.late)

    if options.nodes is not None and options.per_node is not None:
        _make_for_nodes(context, options, options.nodes, options.per_node, late)
        return

    refuse(context, MACHINE_OPTIONS, "is used only with both --nodes and --per-node", "Give both")
    if options.n is None:
        remedy = "For example: --n 8; or give --nodes and --per-node"
        raise MissingArgument("--n", "the number of ranks", remedy)

    if options.delay is not None or options.arrivals is not None or len(late) > 1:
        _refuse_straggler_options(options, beside="--delay or --arrivals")
        make_arrivals(
            context,
            options.common,
            n=options.n,
            late=late,
            arrivals=options.arrivals,
            delay=options.delay,
            exact=options.exact,
        )
        return

    _refuse_exact(context)
    make_straggler(
        context,
        options.common,
        n=options.n,
        late=_first(late),
        ports=options.ports,
        owners=options.owners,
    )


def _make_for_nodes(
    context: typer.Context,
    options: GenerateOptions,
    nodes: int,
    per_node: int,
    late: Sequence[int],
) -> None:
    refuse(context, ["delay", "arrivals"], "is not used with --nodes", EITHER)
    if len(late) > 1:
        raise ArgumentError("--late", late, "must be one rank with --nodes", "Name one rank")

    machine = MachineOptions(
        nodes=nodes,
        per_node=per_node,
        network_ports=options.network_ports,
        alpha=options.common.alpha,
        bandwidth=options.common.bandwidth,
        outer_alpha=options.outer_alpha,
        outer_bandwidth=options.outer_bandwidth,
    )
    refuse_links_of_no_use(context, machine)

    buffer = options.common.buffer
    if buffer is None:
        what = "the size of the buffer, with --nodes"
        raise MissingArgument("--bytes", what, "For example: --bytes 1GiB")
    if options.n is not None and options.n != nodes * per_node:
        requirement = f"must be --nodes times --per-node, {nodes * per_node}"
        raise ArgumentError("--n", options.n, requirement, "Leave --n out")

    parsed = parse_machine(machine)
    _refuse_exact(context)
    _refuse_straggler_options(options, beside="--nodes")
    make_for_nodes(options.common, buffer, parsed, late=_first(late), stages=options.stages)


def _first(late: Sequence[int]) -> int | None:
    """The late rank of a family that has one; None for the last rank."""
    return late[0] if late else None


def _refuse_exact(context: typer.Context) -> None:
    refuse(context, ["exact"], "is used only with --delay or --arrivals", "Add --delay 1")


def _refuse_straggler_options(options: GenerateOptions, *, beside: str) -> None:
    """ArgumentError for what only a straggler's schedule can choose."""
    if options.ports != "duplex":
        raise ArgumentError("--ports", options.ports, f"must be duplex with {beside}", EITHER)
    if options.owners != "auto":
        raise ArgumentError("--owners", options.owners, f"can't be chosen with {beside}", EITHER)
