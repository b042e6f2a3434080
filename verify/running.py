"""How a command line runs: errors are a line on stderr, and exit codes say what kind they are.

Apart from ``latecomer.verify.cli``, so that a command which proves nothing need not load what
proofs take.
"""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer

from latecomer.verify.core.verdict import Verdict
from latecomer.verify.errors import InputError, LatecomerError, SearchTimeout
from latecomer.verify.version import version

EXIT = {Verdict.PROVED: 0, Verdict.REFUTED: 1, Verdict.UNKNOWN: 3}
# As Typer's own for options that it cannot read: input to be mended, no verdict.
MALFORMED = 2


def _print_version(is_asked: bool) -> None:
    if is_asked:
        print(f"latecomer {version()}")
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option("--version", callback=_print_version, is_eager=True, help="Print it and end."),
]


def run(application: typer.Typer) -> None:
    """Run a command line; errors are one line on stderr, no traceback.

    Exit code 2 for what the user can fix in the command or its files, 1 for other failures.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # odd file names can be printed
    try:
        application()
    except LatecomerError as error:
        print(f"error: {error}", file=sys.stderr)
        codes = {InputError: MALFORMED, SearchTimeout: EXIT[Verdict.UNKNOWN]}
        sys.exit(next((code for kind, code in codes.items() if isinstance(error, kind)), 1))
