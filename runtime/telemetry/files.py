"""The files of a running job: their names, and what a line of them may be.

Each rank has files of its own in the directory, ``rank3-000000.jsonl`` and so on. A file begins
with a line that says whose it is and of which watch; then comes one line for each thing that
happened, a JSON object with one key that says what it is. A later watch begins a new file.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import msgspec

from latecomer.runtime.telemetry.origin import Origin
from latecomer.runtime.telemetry.records import Collective, Members, Record, Round, Stage, UbtStep

DUMPS = "dumps"  # in it, a directory for what ranks write of what is overdue
NAME = re.compile(r"rank(\d{1,9})-(\d{6,12})\.jsonl", re.ASCII)


class State(msgspec.Struct, frozen=True):
    """Where a rank stands, now and then: a rank that hangs has entered less than the others."""

    unix_s: float  # by the clock of its host
    clock_s: float  # on the clock of all other times
    uncertainty_s: float  # of the rank's clock against the reference's
    entered: int  # operations since the watch began
    done: int  # of which it has the result
    messages: int  # sent for control since then
    unwritten: int  # lines that got lost, at most: they could not be written
    over: bool = False  # the watch has ended, so nothing comes after this line
    error: str = ""  # by this exception
    open: tuple[Collective, ...] = ()  # the oldest in which it is, where native ones are watched


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line: one of these. What a later version adds is neither read nor an error."""

    origin: Origin | None = None
    operation: Record | None = None
    round: Round | None = None
    stage: Stage | None = None
    step: UbtStep | None = None
    state: State | None = None
    group: Members | None = None
    collective: Collective | None = None


class FileName(NamedTuple):
    """A file by what its name says, in the order in which files are written."""

    rank: int
    number: int

    def within(self, directory: Path) -> Path:
        """Where it is."""
        return directory / f"rank{self.rank}-{self.number:06}.jsonl"


def files_in(directory: Path) -> list[FileName]:
    """The files of all ranks, in order; OSError if there is no such directory."""
    matches = (NAME.fullmatch(path.name) for path in directory.iterdir())
    return sorted(FileName(int(match[1]), int(match[2])) for match in matches if match)


ENCODER = msgspec.json.Encoder()
DECODER = msgspec.json.Decoder(Line)


def encode(line: Line) -> bytes:
    """A line, with its end."""
    return ENCODER.encode(line) + b"\n"
