"""Schedules as files, written atomically: complete, or not there; compressed where they say so.

And what is printed beside them.
"""

from __future__ import annotations

import gzip
import io
import os
import tempfile
from pathlib import Path
from typing import TextIO

import msgspec
import zstandard

from latecomer.verify.core.schedule import FORMAT, Schedule
from latecomer.verify.errors import ArgumentError

EXACT_JSON = msgspec.json.Encoder(decimal_format="number")
"""Writes numbers that are given as Decimal with all their digits."""


def encode(schedule: Schedule) -> bytes:
    """The schedule as the (uncompressed) text of a file, one round per line.

    Examples:
        >>> from latecomer import verify
        >>> both = (verify.Transfer(0, 1, 0, "reduce"), verify.Transfer(1, 0, 0, "reduce"))
        >>> phases = (verify.Phase("exchange", (), (both,)),)
        >>> print(verify.encode(verify.Schedule(ranks=2, chunks=1, phases=phases)).decode())
        {"format":"latecomer/1","kind":"allreduce","ranks":2,"chunks":1,"late":[],"ports":"duplex",
         "phases": [
          {"name":"exchange","absent":[],"rounds":[
           [[0,1,0,"reduce"],[1,0,0,"reduce"]]]}],
         "meta": {}}
        <BLANKLINE>
    """
    encoder = msgspec.json.Encoder()
    head = {
        "format": FORMAT,
        "kind": schedule.kind,
        "ranks": schedule.ranks,
        "chunks": schedule.chunks,
        "late": schedule.late,
        "ports": schedule.ports,
    }
    out = io.BytesIO()
    out.write(encoder.encode(head)[:-1] + b',\n "phases": [')
    for p, phase in enumerate(schedule.phases):
        out.write(b",\n  " if p else b"\n  ")
        out.write(b'{"name":' + encoder.encode(phase.name))
        out.write(b',"absent":' + encoder.encode(phase.absent) + b',"rounds":[')
        # see latecomer.verify.arrays
        rows = getattr(phase.rounds, "rows", phase.rounds.__getitem__)
        for t in range(len(phase.rounds)):
            out.write((b",\n   " if t else b"\n   ") + encoder.encode(list(rows(t))))
        out.write(b"]}")
    out.write(b'],\n "meta": ' + encoder.encode(schedule.meta) + b"}\n")
    return out.getvalue()


def write(schedule: Schedule, path: str | os.PathLike[str]) -> None:
    """Write a schedule file atomically, compressed where the name says so (.gz, .zst).

    Raises:
        ArgumentError: the path can't be written.

    Examples:
        >>> from latecomer import synth, verify
        >>> verify.write(synth.ring(4), "ring.json.gz")
        >>> verify.read("ring.json.gz").rounds
        6
    """
    store(encode(schedule), path)


def store(data: bytes, path: str | os.PathLike[str]) -> None:
    """Write a file atomically, compressed where the name says so; ArgumentError if it can't be."""
    target = Path(path)
    if target.suffix == ".gz":
        data = gzip.compress(data, mtime=0)  # without the time: equal schedules, equal files
    elif target.suffix == ".zst":
        data = zstandard.compress(data)
    write_atomically(target, data)


def write_atomically(target: Path, data: bytes) -> None:
    """Put ``data`` at ``target`` in one step: readers see the old file or the whole new one.

    A link is followed. A device (``/dev/stdout``) or a pipe is written in place.

    Raises:
        ArgumentError: the path can't be written.
    """
    try:
        if target.is_relative_to("/dev") or (target.exists() and not target.is_file()):
            target.write_bytes(data)
            return
        target = Path(os.path.realpath(target))
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask()
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
                stream.flush()
                # Before it gets its name: after a crash that would else stand for an empty file.
                os.fsync(stream.fileno())
            os.chmod(temporary, mode)
            os.replace(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise ArgumentError(
            "output file", str(target), f"can't be written ({error.strerror})"
        ) from None


def print_now(text: str, stream: TextIO) -> None:
    """Print at once; a reader who has gone away does not change the verdict."""
    try:
        print(text, file=stream, flush=True)
    except BrokenPipeError:
        # Else Python would fail once more when it flushes the stream at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _umask() -> int:
    # It can only be read by setting it.
    current = os.umask(0)
    os.umask(current)
    return current
