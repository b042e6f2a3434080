"""The command ``synth``: makes schedules, proves them, writes them, says how good they are.

Exit codes: 0 written, 1 no schedule was made, 2 bad arguments, 3 nothing found within the time
limit, 130 interrupted. Nothing is written unless the exit code is 0.
"""

from __future__ import annotations

import typer

from synth.commands.arrivals import arrivals
from synth.commands.compare import compare
from synth.commands.export import export
from synth.commands.generate import generate
from synth.commands.nodes import nodes
from synth.commands.pipeline.command import pipeline
from synth.commands.program import program
from synth.commands.standard import direct, doubling, rhd, ring, tree
from synth.commands.straggler import straggler
from synth.commands.table import table
from synth.commands.transpose import transpose
from verify.running import Version, run

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS = (
    straggler,
    arrivals,
    nodes,
    generate,
    ring,
    rhd,
    tree,
    doubling,
    direct,
    transpose,
    pipeline,
    program,
    export,
    compare,
    table,
)


@app.callback()
def synth(show_version: Version = False) -> None:
    """Make AllReduce and pipeline schedules, proved before they are written."""


for command in COMMANDS:
    app.command()(command)


def main() -> None:
    """Entry point of the console command."""
    run(app)
