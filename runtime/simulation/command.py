"""The command ``latecomer simulate``: what a step would take in each mode, without a cluster."""

from __future__ import annotations

import json as json_text
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from latecomer.verify.errors import ArgumentError
from latecomer.verify.replacing import DRAWING, Force, require_replaceable

if TYPE_CHECKING:
    from latecomer.runtime.policy.options import Mode
    from latecomer.runtime.simulation.arrivals import Arrivals

INTERRUPTED = 130
MOST_RANKS = 4096


def simulate(
    ranks: Annotated[int | None, typer.Option(help="Default: as the arrivals' file has.")] = None,
    arrivals: Annotated[
        str,
        typer.Option(
            metavar="FILE|none|late:TIME|random:TIME|pareto:SHAPE,TIME",
            help="When ranks have their gradients: as in a file; together; the last rank, or "
            "another one in each step, late by TIME; each by a Pareto delay from TIME.",
        ),
    ] = "random:20ms",
    bandwidth: Annotated[str, typer.Option(help="Of each rank's port, each way.")] = "25Gbit/s",
    latency: Annotated[str, typer.Option(help="Of a message.")] = "20us",
    size: Annotated[str, typer.Option("--bytes", help="Of a bucket.")] = "25MiB",
    buckets: Annotated[int, typer.Option(min=1, help="Of a step.")] = 1,
    overlap: Annotated[
        str, typer.Option(help="The buckets become ready over so long before the last one is.")
    ] = "0s",
    steps: Annotated[int, typer.Option(min=1, help="How many.")] = 50,
    modes: Annotated[str, typer.Option(help="Which, beside native.")] = "static,predict,eager,auto",
    seed: Annotated[int, typer.Option(help="Of everything that is drawn.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="For machines, on stdout.")] = False,
    picture: Annotated[Path | None, typer.Option(help="An SVG file of the step times.")] = None,
    force: Force = False,
) -> None:
    """Predict what a training step takes in each mode, from when the ranks are ready.

    What decides is the code that ships, an agent for each rank; messages and bytes are modelled.

    \b
    Examples:
      latecomer simulate --ranks 64
      latecomer simulate --ranks 256 --arrivals pareto:1.2,20ms --bandwidth 100Gbit/s --bytes 1GiB
      latecomer simulate --arrivals arrivals.json --ranks 1024 --steps 200 --picture steps.svg
      latecomer simulate --ranks 8 --arrivals late:2s --bandwidth 200Mbit/s --bytes 14MB --buckets 3
    """
    if picture is not None:
        require_replaceable("--picture", picture, DRAWING, force=force)

    from latecomer.runtime.simulation.cluster import StepWork
    from latecomer.runtime.simulation.comparison import Setting, compare
    from latecomer.runtime.simulation.report import as_picture, as_text
    from latecomer.synth.units import parse_bandwidth, parse_bytes, parse_seconds

    setting = Setting(
        arrivals=source(arrivals, ranks, seed),
        latency_s=parse_seconds("--latency", latency),
        bandwidth=parse_bandwidth("--bandwidth", bandwidth),
        work=StepWork(
            nbytes=parse_bytes("--bytes", size),
            buckets=buckets,
            overlap_s=parse_seconds("--overlap", overlap),
        ),
        steps=steps,
        seed=seed,
    )
    chosen = chosen_modes(modes)
    try:
        with showing_progress(steps, is_quiet=json) as progress:
            comparison = compare(setting, chosen, progress)
    except KeyboardInterrupt:
        print("interrupted: nothing is written", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None

    if picture is not None:
        picture.write_text(as_picture(comparison))
    print(json_text.dumps(comparison.as_json()) if json else as_text(comparison))


def source(text: str, ranks: int | None, seed: int) -> Callable[[], Arrivals]:
    """What makes the arrivals that ``--arrivals`` asks for, the same each time.

    Raises:
        ArgumentError: no such arrivals, or a number of ranks that cannot be.
    """
    from latecomer.runtime.simulation.arrivals import OfTrace, OneLate, Tails, read
    from latecomer.synth.units import parse_seconds

    kind, _, rest = text.partition(":")
    if kind not in ("none", "late", "random", "pareto") or os.path.exists(text):
        trace = read(text)
        number = require_ranks(ranks or trace.ranks)
        return lambda: OfTrace(trace, number, seed)

    if ranks is None:
        raise ArgumentError("--ranks", None, "is needed where the arrivals are in no file")
    number = require_ranks(ranks)
    if kind == "pareto":
        shape_text, _, scale_text = rest.partition(",")
        try:
            shape = float(shape_text)
        except ValueError:
            shape = 0.0
        if not 0 < shape < float("inf"):
            raise ArgumentError("--arrivals", text, "must be pareto:SHAPE,TIME, as pareto:1.2,20ms")
        scale_s = parse_seconds("--arrivals", scale_text)
        return lambda: Tails(number, seed, shape, scale_s)
    late_s = 0.0 if kind == "none" else parse_seconds("--arrivals", rest)
    return lambda: OneLate(number, seed, late_s, is_random=kind == "random")


def require_ranks(ranks: int) -> int:
    """The number, or ArgumentError."""
    if not 2 <= ranks <= MOST_RANKS:
        raise ArgumentError("--ranks", ranks, f"must be in 2..{MOST_RANKS}")
    return ranks


def chosen_modes(text: str) -> tuple[Mode, ...]:
    """The modes that are named, in their order; ArgumentError for what is none."""
    from latecomer.runtime.policy.options import MODES

    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in MODES:
            raise ArgumentError("--modes", text, f"must be of {', '.join(MODES)}; {name} is none")
    return tuple(cast("Mode", name) for name in dict.fromkeys(names))


@contextmanager
def showing_progress(steps: int, *, is_quiet: bool) -> Iterator[Callable[[Mode, int], None]]:
    """Shows, on a terminal, how far it is; yields what is told."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = TextColumn("{task.description:<8}"), BarColumn(), TimeRemainingColumn()
    is_off = is_quiet or not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=is_off) as bars:
        tasks: dict[Mode, int] = {}

        def progress(mode: Mode, done: int) -> None:
            if mode not in tasks:
                tasks[mode] = bars.add_task(mode, total=steps)
            bars.update(bars.task_ids[tasks[mode]], completed=done)

        yield progress
