"""The command ``synth transpose``.

Exit codes as for all of ``synth``: 0 written, 1 no schedule was made, 2 bad arguments.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from synth.checked import checked
from synth.console import Json, Output, Quiet, Ranks, encoded, require_writable
from synth.cost import Link
from synth.transpose.generate import Exchange
from synth.transpose.generate import transpose as make_transpose
from synth.transpose.show import Buffer, Made, as_json, text
from synth.units import parse_bandwidth, parse_bytes, parse_seconds
from verify.errors import ArgumentError
from verify.output import write

DEFAULT_ALPHA = "50us"
DEFAULT_BANDWIDTH = "25Gbit/s"


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(transpose)


def transpose(
    n: Ranks,
    incast: Annotated[
        int, typer.Option(help="Messages a rank receives (and sends) at the same time.")
    ] = 1,
    groups: Annotated[
        int, typer.Option(help="Work inside so many groups of ranks, and between them.")
    ] = 1,
    exchange: Annotated[
        Exchange,
        typer.Option(
            help="How groups add up their sums: in the fewest rounds (doubling), or with the "
            "fewest bytes (transpose)."
        ),
    ] = "doubling",
    buffer: Annotated[
        str | None,
        typer.Option("--bytes", metavar="SIZE", help="Size of the whole buffer, as 25MiB."),
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
    output: Output = Path("schedule.json"),
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write the transpose AllReduce: what is lost on one link concerns two ranks only.

    What a lost transfer does to the result: verify --loss 1 schedule.json

    \b
    Examples:
      synth transpose --n 8
      synth transpose --n 8 --incast 2 --bytes 25MiB
      synth transpose --n 64 --groups 16
      synth transpose --n 64 --groups 8 --exchange transpose -o two-level.json
    """
    require_writable(output)
    setting = _buffer(buffer, alpha, bandwidth)
    schedule = make_transpose(n, incast=incast, groups=groups, exchange=exchange)
    report = checked(schedule)
    write(schedule, output)
    if quiet:
        return
    detour_free = 2 * -(-(n - 1) // incast) if groups == 1 else None
    made = Made(str(output), schedule, report, incast, detour_free)
    print(encoded(as_json(made, setting)) if json else text(made, setting))


def _buffer(size: str | None, alpha: str | None, bandwidth: str | None) -> Buffer | None:
    """The numbers for the prediction; None without ``--bytes``."""
    if size is None:
        for name, value in [("--alpha", alpha), ("--bandwidth", bandwidth)]:
            if value is not None:
                raise ArgumentError(name, value, "is used only with --bytes", "Add --bytes SIZE")
        return None
    return Buffer(
        parse_bytes("--bytes", size),
        Link(
            parse_seconds("--alpha", alpha or DEFAULT_ALPHA),
            parse_bandwidth("--bandwidth", bandwidth or DEFAULT_BANDWIDTH),
        ),
    )
