"""The files that ranks write under LATECOMER_HASHES: their names, and what a line of them may be.

A rank has a file for each ``ddp.attach``, ``hashes-rank3-0.jsonl`` for its first. A file begins
with a line that says whose it is and of what kind of run; then come the lines of one step after the
other: the inputs, the averaged gradients in the order in which their buckets were reduced, and the
step's end. What comes after the last end is of a step that this rank has not completed.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import msgspec

VARIABLE = "LATECOMER_HASHES"
NAME = re.compile(r"hashes-rank(\d{1,9})-(\d{1,9})\.jsonl", re.ASCII)


class Head(msgspec.Struct, frozen=True):
    """Whose file it is, and what else the bits of a run depend on."""

    rank: int  # in the job
    ranks: tuple[int, ...]  # of the job, that average this model's gradients
    bits: str  # same or any
    contributions: int  # to each sum; with any, the ranks
    conditions: dict[str, str]  # of the rank: its threads, kernels, hardware


class Input(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a microbatch is computed from."""

    step: int
    hash: str
    microbatch: int | None = None  # its number, where the program says it


class Gradient(msgspec.Struct, frozen=True):
    """A parameter's averaged gradient, as it left the all-reduce."""

    step: int
    parameter: str
    hash: str


class End(msgspec.Struct, frozen=True):
    """All of a step has been written."""

    step: int


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line: one of these. What a later version adds is neither read nor an error."""

    head: Head | None = None
    input: Input | None = None
    gradient: Gradient | None = None
    end: End | None = None


class FileName(NamedTuple):
    """A file by what its name says."""

    rank: int
    attachment: int  # how often the rank had attached before

    def within(self, directory: Path) -> Path:
        """Where it is."""
        return directory / f"hashes-rank{self.rank}-{self.attachment}.jsonl"


def files_in(directory: Path) -> list[FileName]:
    """The files of all ranks, in order; OSError if there is no such directory."""
    matches = (NAME.fullmatch(path.name) for path in directory.iterdir())
    return sorted(FileName(int(match[1]), int(match[2])) for match in matches if match)


ENCODER = msgspec.json.Encoder()
DECODER = msgspec.json.Decoder(Line)


def encode(line: Line) -> bytes:
    """A line, with its end."""
    return ENCODER.encode(line) + b"\n"
