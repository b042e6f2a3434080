"""The command ``synth``: makes schedules, proves them, writes them, says how good they are.

Exit codes: 0 written, 1 no schedule was made, 2 bad arguments, 3 nothing found within the time
limit, 130 interrupted. Nothing is written unless the exit code is 0.
"""

from __future__ import annotations

import typer

from latecomer.synth.commands.arrivals import arrivals
from latecomer.synth.commands.compare import compare
from latecomer.synth.commands.export import export
from latecomer.synth.commands.generate import generate
from latecomer.synth.commands.nodes import nodes
from latecomer.synth.commands.pipeline.command import pipeline
from latecomer.synth.commands.program import program
from latecomer.synth.commands.standard import circulant, direct, doubling, rhd, ring, tree
from latecomer.synth.commands.straggler import straggler
from latecomer.synth.commands.table import table
from latecomer.synth.commands.transpose import transpose
from latecomer.verify.running import Version, run

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
    circulant,
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
