"""``synth compare``: what to expect of every AllReduce. Exit codes: 0 done, 2 bad arguments."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from latecomer.synth.commands.options import Json, Ranks, encoded, refuse
from latecomer.synth.compare import as_json, as_text, parse_sizes, plot, require_picture
from latecomer.synth.compare import compare as make_comparison
from latecomer.synth.cost import MOST_CHUNKS, Latency, Link
from latecomer.synth.units import parse_bandwidth, parse_seconds
from latecomer.verify.replacing import PLOT, Force, require_replaceable


def compare(
    context: typer.Context,
    n: Ranks,
    alpha: Annotated[str, typer.Option(metavar="TIME", help="Latency of a message.")] = "3us",
    bandwidth: Annotated[
        str, typer.Option(metavar="RATE", help="Bandwidth of a rank, each direction.")
    ] = "450GB/s",
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
    most_chunks: Annotated[int, typer.Option(help="Most chunks of the buffer.")] = MOST_CHUNKS,
    plot_file: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw it, too (.svg or .png).")
    ] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Predict every AllReduce over a range of sizes, in the style of nccl-tests.

    \b
    Examples:
      synth compare --n 8
      synth compare --n 8 --alpha 30us --bandwidth 25Gbit/s --sizes 1MiB:1GiB
      synth compare --n 8 --plot compare.svg
    """
    if ":" not in sizes:
        refuse(context, ["factor"], "has no use with one size", "Give --sizes FIRST:LAST")
    if plot_file is not None:
        require_picture(plot_file)
        require_replaceable("--plot", plot_file, PLOT, force=force)
    link = Link(parse_seconds("--alpha", alpha), parse_bandwidth("--bandwidth", bandwidth))
    comparison = make_comparison(
        n, parse_sizes("--sizes", sizes, factor), link, latency=latency, most_chunks=most_chunks
    )
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print(encoded(as_json(comparison)) if json else as_text(comparison, width))
    if plot_file is not None:
        plot(comparison, plot_file)
