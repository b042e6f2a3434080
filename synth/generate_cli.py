"""The command ``synth generate``: one late rank, arrivals of several, or a machine of two levels.

Which of the three is meant follows from the options: ``--delay``, ``--arrivals`` or several ranks
after ``--late`` are arrivals, ``--nodes`` is a machine of two levels. An option that has no use
there is refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from synth.arrivals import generate as arrivals_generate
from synth.arrivals.request import arrival_rounds, late_ranks
from synth.arrivals.show import arranged_json, arranged_text
from synth.console import (
    Json,
    Output,
    Quiet,
    encoded,
    nothing_written_if_interrupted,
    require_writable,
    searching,
)
from synth.show import generated_json, generated_text
from synth.solvers import SolverName
from synth.straggler.choose import Setting, choose
from synth.straggler.instance import Owners, PortModel
from synth.twolevel import command as two_level
from synth.units import parse_bandwidth, parse_bytes, parse_seconds
from verify.core.format import write
from verify.errors import ArgumentError

DEFAULT_ALPHA = "3us"
DEFAULT_BANDWIDTH = "450GB/s"
MACHINE, ARRIVALS = "Machines of two levels", "Arrivals"


def generate(
    n: Annotated[int | None, typer.Option("--n", help="Number of ranks.")] = None,
    late: Annotated[
        list[str] | None,
        typer.Option(metavar="RANKS", help="The late rank, or several as 6,7 (default: the last)."),
    ] = None,
    m: Annotated[
        int | None,
        typer.Option(
            help="Chunks per helper; the buffer has (n - 1) * m. Default: 1, or with --bytes the "
            "one with the least predicted time."
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
    buffer: Annotated[
        str | None,
        typer.Option("--bytes", metavar="SIZE", help="Size of the whole buffer, as 1GiB."),
    ] = None,
    alpha: Annotated[
        str | None,
        typer.Option(metavar="TIME", help=f"Latency of a message (default: {DEFAULT_ALPHA})."),
    ] = None,
    bandwidth: Annotated[
        str | None,
        typer.Option(
            metavar="RATE",
            help=f"Bandwidth of a rank, each direction (default: {DEFAULT_BANDWIDTH}).",
        ),
    ] = None,
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
    nodes: Annotated[
        int | None,
        typer.Option(rich_help_panel=MACHINE, help="Nodes; also give --per-node and --bytes."),
    ] = None,
    per_node: Annotated[
        int | None, typer.Option(rich_help_panel=MACHINE, help="Ranks in each node.")
    ] = None,
    network_ports: Annotated[
        int | None,
        typer.Option(
            rich_help_panel=MACHINE, help="Network ports of a node (default: one per rank)."
        ),
    ] = None,
    outer_alpha: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            rich_help_panel=MACHINE,
            help="Latency of a message between nodes (default: 10us).",
        ),
    ] = None,
    outer_bandwidth: Annotated[
        str | None,
        typer.Option(
            metavar="RATE",
            rich_help_panel=MACHINE,
            help="Bandwidth of a network port (default: 50GB/s).",
        ),
    ] = None,
    solver: Annotated[SolverName, typer.Option(help="The solver that searches.")] = "cp-sat",
    seed: Annotated[int, typer.Option(help="Random seed of the solver.")] = 0,
    time_limit: Annotated[
        float, typer.Option(metavar="SECONDS", help="For the whole search.")
    ] = 60.0,
    output: Output = Path("schedule.json"),
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Search for the AllReduce schedule with the fewest rounds after a late rank arrives.

    \b
    Examples:
      synth generate --n 8
      synth generate --n 8 --late 3 --m 4 -o late3.json
      synth generate --n 8 --bytes 1GiB --alpha 3us --bandwidth 450GB/s
      synth generate --n 8 --delay 2
      synth generate --n 8 --late 6,7 --arrivals 3,9
      synth generate --n 4 --delay 1 --exact
      synth generate --nodes 2 --per-node 8 --bytes 1GiB
    """
    require_writable(output)
    levels = two_level.Options(
        nodes, per_node, network_ports, alpha, bandwidth, outer_alpha, outer_bandwidth
    )
    named = late_ranks(late)
    has_arrivals = delay is not None or arrivals is not None or len(named) > 1
    if exact and (levels.given() or not has_arrivals):
        raise ArgumentError("--exact", exact, "is used only with --delay or --arrivals")
    if levels.given():
        _refuse("--nodes", {"--delay": delay, "--arrivals": arrivals})
        if len(named) > 1:
            raise ArgumentError("--late", named, "must be one rank with --nodes")
        _require_default("--nodes", ports, owners)
        with nothing_written_if_interrupted(), searching(quiet) as progress:
            record = two_level.generate(
                levels,
                output,
                n=n,
                buffer=buffer,
                late=named[0] if named else None,
                m=m,
                ports=ports,
                seed=seed,
                time_limit_s=time_limit,
                progress=progress,
            )
        shown = two_level.shown(record, output, json=json)
    elif n is None:
        raise ArgumentError("--n", None, "is needed", "Or give --nodes and --per-node")
    elif has_arrivals:
        _require_default("--delay or --arrivals", ports, owners)
        setting = _setting(buffer, alpha, bandwidth)
        when = arrival_rounds(n, named, arrivals, delay, m or 1, setting)
        with nothing_written_if_interrupted(), searching(quiet) as progress:
            arranged = arrivals_generate.search(
                n,
                when,
                m=m,
                seed=seed,
                time_limit_s=time_limit,
                solver=solver,
                setting=setting,
                exact=exact,
                progress=progress,
            )
        write(arranged.schedule, output)
        if json:
            shown = encoded(arranged_json(str(output), arranged, setting))
        else:
            shown = arranged_text(str(output), arranged, setting)
    else:
        setting = _setting(buffer, alpha, bandwidth)
        with nothing_written_if_interrupted(), searching(quiet) as progress:
            generated, candidates = choose(
                n,
                setting,
                late=named[0] if named else None,
                m=m,
                ports=ports,
                owners=owners,
                seed=seed,
                time_limit_s=time_limit,
                solver=solver,
                progress=progress,
            )
        write(generated.schedule, output)
        if json:
            shown = encoded(generated_json(str(output), generated, setting, candidates))
        else:
            shown = generated_text(str(output), generated, setting, candidates)
    if not quiet:
        print(shown)


def _setting(buffer: str | None, alpha: str | None, bandwidth: str | None) -> Setting | None:
    """The numbers for the prediction; None without ``--bytes``."""
    if buffer is None:
        for name, value in [("--alpha", alpha), ("--bandwidth", bandwidth)]:
            if value is not None:
                raise ArgumentError(name, value, "is used only with --bytes", "Add --bytes SIZE")
        return None
    return Setting(
        parse_bytes("--bytes", buffer),
        parse_seconds("--alpha", alpha or DEFAULT_ALPHA),
        parse_bandwidth("--bandwidth", bandwidth or DEFAULT_BANDWIDTH),
    )


def _refuse(beside: str, options: dict[str, str | None]) -> None:
    for name, value in options.items():
        if value is not None:
            raise ArgumentError(name, value, f"is not used with {beside}", "Leave one of them out")


def _require_default(beside: str, ports: PortModel, owners: Owners) -> None:
    if ports != "duplex":
        raise ArgumentError("--ports", ports, f"must be duplex with {beside}")
    if owners != "auto":
        raise ArgumentError("--owners", owners, f"can't be chosen with {beside}")
