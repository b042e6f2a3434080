"""One rank's files, of bounded size: lines are appended, and the oldest file goes first.

Deviation from ``logging.handlers.RotatingFileHandler``: files keep their names, for a reader that
follows them; and each begins with the rank's origin, so that it can be read without the others.

Nothing is held back: what ``write`` has taken is with the kernel, and is there after the process
has been killed (not after its host has crashed). A disk that was full may have room again, so
``write`` goes on after an error; what it has torn ends before the next line.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable
from pathlib import Path

from latecomer.runtime.telemetry.files import FileName, files_in

BATCH_BYTES = 2**18  # handed to the kernel at once


class RankFiles:
    """The files of one rank.

    Args:
        directory: made when the first line is written.
        rank: whose they are.
        head: the first line of each file.
        file_bytes: a file that would be larger is the last but one.
        files: so many there are at most, those of earlier watches among them.
    """

    def __init__(
        self, directory: Path, rank: int, head: bytes, file_bytes: int, files: int
    ) -> None:
        self._directory = directory
        self._rank = rank
        self._head = head
        self._file_bytes = file_bytes
        self._files = files
        self._stream: io.FileIO | None = None
        self._has_head = False
        self._is_torn = False  # the last write has failed, perhaps in the middle of a line
        self._written_bytes = 0  # of this file

    def write(self, lines: Iterable[bytes]) -> None:
        """Append whole lines, with their ends; OSError if they can't be, all or in part."""
        batch = bytearray()
        for line in lines:
            if len(batch) + len(line) > min(BATCH_BYTES, self._room_bytes()):
                self._write_batch(batch)
                batch = bytearray()
            batch += line
        self._write_batch(batch)

    def close(self) -> None:
        """Nothing is written any more."""
        if self._stream is not None:
            with contextlib.suppress(OSError):  # a disk that is full has been told of
                self._stream.close()
            self._stream = None

    def _write_batch(self, lines: bytearray) -> None:
        if not lines:
            return
        if self._stream is None or len(lines) > self._room_bytes():
            self._begin_file()
        if not self._has_head:
            self._append(self._head)
            self._has_head = True
        self._append(lines)

    def _room_bytes(self) -> int:
        """For lines, in this file, or in the first one as long as there is none."""
        return self._file_bytes - max(self._written_bytes, len(self._head))

    def _begin_file(self) -> None:
        if self._stream is not None and self._written_bytes == 0:
            return  # a full disk gets no further empty files
        self.close()
        self._directory.mkdir(parents=True, exist_ok=True)
        own = [name for name in files_in(self._directory) if name.rank == self._rank]
        number = own[-1].number + 1 if own else 0
        while True:
            name = FileName(self._rank, number)
            try:
                self._stream = io.FileIO(name.within(self._directory), "xb")
                break
            except FileExistsError:  # another group has a rank of this number, and was quicker
                number += 1
        self._has_head = False
        self._is_torn = False
        self._written_bytes = 0

        oldest_first = [*own, name]
        for old in oldest_first[: -self._files]:
            with contextlib.suppress(FileNotFoundError):
                old.within(self._directory).unlink()

    def _append(self, lines: bytes | bytearray) -> None:
        assert self._stream is not None
        rest = memoryview(b"\n" + lines if self._is_torn else lines)
        self._is_torn = True
        while rest:
            count = self._stream.write(rest)
            self._written_bytes += count
            rest = rest[count:]
        self._is_torn = False
