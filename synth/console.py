"""What the commands of ``synth`` share: options, checks before long work, progress, output."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from synth.straggler.search import Progress
from verify.errors import ArgumentError

NOTHING_FOUND = 3
INTERRUPTED = 130

Ranks = Annotated[int, typer.Option("--n", help="Number of ranks.")]
Output = Annotated[
    Path, typer.Option("-o", "--output", metavar="FILE", help="Where to write (.json[.gz|.zst]).")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]


def require_writable(path: Path, option: str = "--output") -> None:
    """Refuse a hopeless output path before a long search, not after it."""
    problem = ""
    if path.is_dir():
        problem = "is a directory"
    elif not path.parent.is_dir():
        problem = f"can't be written: there is no directory {path.parent}"
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        problem = "can't be written: permission denied"
    if problem:
        raise ArgumentError(option, str(path), problem)


@contextmanager
def searching(quiet: bool) -> Iterator[Progress]:
    """A spinner on stderr that says what is being tried; nothing where nobody watches."""
    if quiet or not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console

    with Console(stderr=True).status("searching") as status:
        yield lambda text: status.update(f"searching: {text}")


@contextmanager
def nothing_written_if_interrupted() -> Iterator[None]:
    """Turn Ctrl-C into one line and exit code 130."""
    try:
        yield
    except KeyboardInterrupt:
        print("interrupted: nothing was written", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None


def encoded(value: Any) -> str:
    """One line of JSON."""
    return msgspec.json.encode(value).decode()
