"""``synth ring``, ``synth rhd`` and ``synth direct``: the schedules for ranks on time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import typer

from synth import standard
from synth.answer import answered
from synth.commands.options import (
    Json,
    Output,
    Quiet,
    Ranks,
    encoded,
    refuse_json_if_quiet,
    require_writable,
)
from synth.cost import completion_cost
from synth.show import standard as shown
from verify.core.schedule import Schedule
from verify.output import write

FILE = Path("schedule.json")


def ring(
    context: typer.Context,
    n: Ranks,
    output: Output = FILE,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write the ring AllReduce (no straggler)."""
    _write(context, standard.ring, n, output, json, quiet)


def rhd(
    context: typer.Context,
    n: Ranks,
    output: Output = FILE,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write AllReduce by recursive halving and doubling (no straggler)."""
    _write(context, standard.rhd, n, output, json, quiet)


def direct(
    context: typer.Context,
    n: Ranks,
    output: Output = FILE,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write the two-round AllReduce in which every rank sends to every other (no straggler)."""
    _write(context, standard.direct, n, output, json, quiet)


def _write(
    context: typer.Context,
    make: Callable[[int], Schedule],
    n: int,
    output: Path,
    json: bool,
    quiet: bool,
) -> None:
    require_writable(output)
    refuse_json_if_quiet(context, quiet=quiet)
    answer = answered(make(n))
    write(answer.schedule, output)
    text, facts = shown(str(output), answer, completion_cost(answer.schedule))
    if not quiet:
        print(encoded(facts) if json else text)
