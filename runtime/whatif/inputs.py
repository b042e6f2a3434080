"""Which reader a file is for: all that ``latecomer whatif`` can read."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path

from latecomer.runtime.simulation import arrivals
from latecomer.runtime.whatif import kineto
from latecomer.runtime.whatif.operations import Recording, of_arrivals
from latecomer.verify.errors import ArgumentError, FormatError

LOOKED_AT = 4096  # bytes at the beginning of a file, by which it is known
PACKED = b"\x1f\x8b"  # how a file of gzip begins


def read_recording(paths: Sequence[Path]) -> Recording:
    """The operations that the files have; a LatecomerError if they have none."""
    files = [each for path in paths for each in _files(path)]
    if kineto.is_trace(_beginning(files[0])):
        return kineto.read_traces(files)
    if len(files) > 1:
        raise ArgumentError("FILE", len(files), "must be one, where it is a file of arrivals")
    return of_arrivals(arrivals.read(files[0]))


def _files(path: Path) -> list[Path]:
    """The file itself, or the traces in a directory."""
    if not path.is_dir():
        return [path]
    inside = [each for each in sorted(path.iterdir()) if each.is_file()]
    traces = [each for each in inside if kineto.is_trace(_beginning(each))]
    if not traces:
        raise ArgumentError("FILE", str(path), "is a directory in which no file is known")
    return traces


def _beginning(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            start = file.read(LOOKED_AT)
        if start.startswith(PACKED):
            with gzip.open(path) as packed:
                return packed.read(LOOKED_AT)
        return start
    except (OSError, EOFError) as error:
        raise FormatError(str(path), f"cannot be read: {error}") from None
