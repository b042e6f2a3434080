"""Which file that is there already a command may replace, so that nobody's work is lost.

A command replaces what a run of it has written: a file of the kind that it writes now, which is
told by how such files begin. For everything else there is ``--force``: for the file that the
command reads, for a file of another kind, and for a file of somebody else's. What is no file (a
pipe, ``/dev/stdout``) is written to as ever.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from latecomer.verify.core.format import read_bounded
from latecomer.verify.errors import ArgumentError, FormatError

BEGINNING = 4096  # bytes in which a kind of file shows itself

Force = Annotated[
    bool,
    typer.Option(
        "--force",
        rich_help_panel="Files and output",
        help="Replace files that this command has not written, too.",
    ),
]


class FileKind(NamedTuple):
    """What a command writes: how it is called, and what only such files begin with."""

    name: str
    beginning: re.Pattern[bytes]


def _kind(name: str, beginning: bytes) -> FileKind:
    return FileKind(name, re.compile(beginning, re.DOTALL))


SCHEDULE = _kind("schedule", rb'\{"format":"latecomer/\d+","kind":"\w+",')
PAGE = _kind("page", rb'<!doctype html>.*<meta name="generator" content="latecomer">')
DRAWING = _kind("picture", rb'<svg [^>]*font-family="sans-serif" font-size="11">\n<rect ')
PLOT = _kind("picture", rb".*(latecomer|matplotlib)")
TIMELINE = _kind("timeline", rb'\{"traceEvents": \[\{"ph": "M", "name": "process_name"')
CERTIFICATE = _kind("certificate", rb"(later|sooner|raise|lower) \d")
PYTORCH_CSV = _kind("PyTorch schedule", rb"\d*[A-Z_]+\d*(,[\dA-Z_]*)*\s")
MSCCL_XML = _kind("MSCCL program", rb'<algo name="latecomer"')
MSCCLPP_PLAN = _kind("MSCCL++ plan", rb'\{\s*"name": "latecomer"')
CHAKRA = _kind("Chakra trace", rb".{0,64}-chakra\.")
COQ_PROOF = _kind("proof", rb".{0,400}Written by verify --certify")
SMT2 = _kind("question", rb"; \w+, \d+ ranks, \d+ chunks")
PROFILE = _kind("profile", rb'\{\s*"ranks": \d+')
GPU_REPORT = _kind("report", rb'\{\s*"')


def require_replaceable(
    option: str, target: Path, kind: FileKind, *, inputs: Iterable[Path] = (), force: bool
) -> None:
    """Refuse a target whose replacement would lose something.

    Args:
        option: by which the target was named.
        target: where ``kind`` is to be written.
        inputs: the files that the command reads.
        force: the user has said that it may be lost.

    Raises:
        ArgumentError: the target is an input, or a file that no such command has written.
    """
    if force or not target.is_file():
        return
    remedy = "Name another file, or replace it with --force"
    if any(path.exists() and target.samefile(path) for path in inputs):
        raise ArgumentError(option, str(target), "is the file that is read", remedy)
    if not is_of_kind(target, kind):
        problem = f"is there already, and is no {kind.name} of this command's"
        raise ArgumentError(option, str(target), problem, remedy)


def is_of_kind(path: Path, kind: FileKind) -> bool:
    """Whether a file is empty, or begins as those do that a command writes."""
    try:
        data = read_bounded(str(path))[:BEGINNING]
    except (OSError, FormatError):
        return False
    return not data or kind.beginning.match(data) is not None
