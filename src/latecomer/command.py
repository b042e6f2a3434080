"""The command ``latecomer``: everything that there is to type, under one name.

``synth`` and ``verify`` are programs of their own, too; here they get the rest of the line as it
is. What takes torch, or a solver, is imported by the command that needs it.
"""

from __future__ import annotations

import sys

import typer

from latecomer.runtime.explain.command import dump, explain
from latecomer.runtime.pipeline_command import pipeline
from latecomer.runtime.profile_command import profile
from latecomer.runtime.samebits.command import compare_bits
from latecomer.runtime.selftest.command import selftest
from latecomer.runtime.simulation.command import simulate
from latecomer.runtime.telemetry.page.command import watch
from latecomer.runtime.whatif.command import whatif
from latecomer.verify.running import Version, run

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

WHOLE_LINE = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


@app.callback()
def latecomer(show_version: Version = False) -> None:
    """Training with stragglers: make schedules, prove them, run them, see who is late.

    \b
    Examples:
      latecomer synth generate --n 8 -o schedule.json
      latecomer verify schedule.json
      latecomer selftest
      latecomer watch watched/
      latecomer explain dumps/
      latecomer whatif traces/
    """


@app.command(context_settings=WHOLE_LINE)
def synth() -> None:
    """Make AllReduce and pipeline schedules, proved before they are written."""
    from latecomer.synth.cli import main as synth_main

    _keep_line_of("synth")
    synth_main()


@app.command(context_settings=WHOLE_LINE)
def verify() -> None:
    """Decide whether schedules are right, and how good they are."""
    from latecomer.verify.cli import main as verify_main

    _keep_line_of("verify")
    verify_main()


def _keep_line_of(program: str) -> None:
    """Leave in ``sys.argv`` what the program would have got had it been typed itself.

    The context of the command has it, too, but without a ``--``, which the parser takes.
    """
    position = sys.argv.index(program)
    sys.argv = [f"latecomer {program}", *sys.argv[position + 1 :]]


for command in (
    watch,
    dump,
    explain,
    whatif,
    compare_bits,
    selftest,
    simulate,
    profile,
    pipeline,
):
    app.command()(command)


def main() -> None:
    """Entry point of the console command."""
    run(app)
