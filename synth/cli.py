"""The command ``synth``: makes schedules, proves them, writes them, says how good they are.

Exit codes: 0 written, 1 no schedule was made, 2 bad arguments, 3 nothing found within the time
limit, 130 interrupted. Nothing is written unless the exit code is 0.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import typer

from synth.checked import checked
from synth.compare_cli import register as register_tables
from synth.console import Json, Output, Quiet, Ranks, encoded, require_writable
from synth.generate_cli import generate
from synth.pipeline.command import register as register_pipeline
from synth.show import standard_json, standard_text
from synth.standard import direct as make_direct
from synth.standard import rhd as make_rhd
from synth.standard import ring as make_ring
from synth.transpose.command import register as register_transpose
from verify.cli import run
from verify.core.format import write
from verify.core.schedule import Schedule

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Make AllReduce and pipeline schedules, proved before they are written.",
)

app.command()(generate)


@app.command()
def ring(
    n: Ranks, output: Output = Path("schedule.json"), json: Json = False, quiet: Quiet = False
) -> None:
    """Write the ring AllReduce (no straggler)."""
    _standard(make_ring, n, output, json, quiet)


@app.command()
def rhd(
    n: Ranks, output: Output = Path("schedule.json"), json: Json = False, quiet: Quiet = False
) -> None:
    """Write AllReduce by recursive halving and doubling (no straggler)."""
    _standard(make_rhd, n, output, json, quiet)


@app.command()
def direct(
    n: Ranks, output: Output = Path("schedule.json"), json: Json = False, quiet: Quiet = False
) -> None:
    """Write the two-round AllReduce in which everybody sends to everybody (no straggler)."""
    _standard(make_direct, n, output, json, quiet)


register_transpose(app)
register_pipeline(app)
register_tables(app)


def main() -> None:
    """Entry point of the console command."""
    run(app)


def _standard(
    make: Callable[[int], Schedule], n: int, output: Path, json: bool, quiet: bool
) -> None:
    require_writable(output)
    schedule = make(n)
    report = checked(schedule)
    write(schedule, output)
    if json and not quiet:
        print(encoded(standard_json(str(output), schedule, report)))
    elif not quiet:
        print(standard_text(str(output), schedule, report))
