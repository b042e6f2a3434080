"""Reads the files of a running job, each line once, as often as it is asked to.

It shows the newest watch that has files in the directory. Whatever is not there (a rank, files that
were removed since there was no room for more, the rest of a last line) is left out, and comes when
it comes; a line that can't be read, as a full disk leaves it, is counted.
"""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from latecomer.runtime.telemetry.files import DECODER, FileName, Line, State, files_in
from latecomer.runtime.telemetry.origin import Origin
from latecomer.runtime.telemetry.records import (
    Collective,
    Members,
    Rank,
    Record,
    Round,
    Stage,
    UbtStep,
)
from latecomer.verify.errors import FormatError

KEPT_ARRIVALS = 200_000  # operations times ranks that are remembered
FEWEST_KEPT = 1_000  # operations of each rank, however many ranks there are
KEPT_STEPS = 10_000
READ_BYTES = 2**22  # of a file at a time
HEAD_BYTES = 2**16  # of a file, in which its first line is


@dataclass
class Story:
    """What one rank has told so far; of its operations the last ones."""

    origin: Origin
    records: deque[Record]
    rounds: deque[Round]
    stages: deque[Stage]
    steps: deque[UbtStep]
    state: State | None = None
    groups: dict[str, Members] = field(default_factory=dict)
    collectives: deque[Collective] = field(default_factory=deque)

    @classmethod
    def of(cls, origin: Origin) -> Story:
        """An empty one."""
        kept = kept_operations(origin.ranks)
        return cls(
            origin=origin,
            records=deque(maxlen=kept),
            rounds=deque(maxlen=kept),
            stages=deque(maxlen=2 * kept),
            steps=deque(maxlen=KEPT_STEPS),
            collectives=deque(maxlen=2 * kept),
        )

    def add(self, line: Line) -> None:
        """Enter a line of the rank's."""
        if line.operation is not None:
            self.records.append(line.operation)
        elif line.round is not None:
            self.rounds.append(line.round)
        elif line.stage is not None:
            self.stages.append(line.stage)
        elif line.step is not None:
            self.steps.append(line.step)
        elif line.state is not None:
            self.state = line.state
        elif line.group is not None:
            self.groups[line.group.name] = line.group
        elif line.collective is not None:
            self.collectives.append(line.collective)

    def as_rank(self, first: int) -> Rank:
        """The same as if the rank had sent it at the end; of operations from ``first`` on."""
        records = [record for record in self.records if record.operation >= first]
        records.sort(key=lambda record: record.operation)
        return Rank(
            rank=self.origin.rank,
            records=tuple(records),
            rounds=tuple(each for each in self.rounds if each.operation >= first),
            stages=tuple(each for each in self.stages if each.operation >= first),
            steps=tuple(self.steps),
            messages=self.state.messages if self.state else 0,
            origin=self.origin,
            groups=tuple(self.groups.values()),
            collectives=tuple(self.collectives),
        )


@dataclass
class Totals:
    """Sums over all operations that were told of by all ranks, in seconds."""

    operations: int = 0
    ways: Counter[str] = field(default_factory=Counter)
    times_last: Counter[int] = field(default_factory=Counter)
    wasted_s: dict[int, float] = field(default_factory=dict)
    """By the last rank; as in the summary."""

    waited_s: dict[int, dict[int, float]] = field(default_factory=dict)
    """By rank, from its arrival to that of the last one, by who that was."""

    def add(self, records: Mapping[int, Record]) -> None:
        """Enter an operation, by its record of each rank."""
        self.operations += 1
        first_present = records[min(records)]
        self.ways[first_present.description] += 1

        # As in the summary: nobody is called the last within what the clocks are uncertain.
        by_arrival = sorted(records.values(), key=lambda record: record.arrived_s)
        last = by_arrival[-1]
        for record in by_arrival[:-1]:
            waited_s = self.waited_s.setdefault(record.rank, {})
            waited_s[last.rank] = waited_s.get(last.rank, 0.0) + last.arrived_s - record.arrived_s
        if len(by_arrival) > 1:
            before = by_arrival[-2]
            alone_s = last.arrived_s - before.arrived_s
            wasted_s = alone_s * (len(by_arrival) - 1)
            self.wasted_s[last.rank] = self.wasted_s.get(last.rank, 0.0) + wasted_s
            if alone_s > last.uncertainty_s + before.uncertainty_s:
                self.times_last[last.rank] += 1


@dataclass
class _File:
    """One file, as far as it has been read."""

    origin: Origin | None = None
    offset: int = 0  # of what comes after the last whole line
    inode: int = 0


class Follower:
    """Follows the newest watch in a directory.

    Args:
        directory: that of ``latecomer.watch(directory=...)``.
        patience: looks for which operations wait until the files of all ranks are there.
    """

    def __init__(self, directory: str | os.PathLike[str], patience: int = 0) -> None:
        self.directory = Path(directory)
        self.watch = ""  # the one that is shown
        self.unreadable = 0  # lines
        self.stories: dict[int, Story] = {}
        self.totals = Totals()
        self._patience = patience
        self._files: dict[FileName, _File] = {}
        self._open: dict[int, dict[int, Record]] = {}  # by operation: those not all ranks have

    def read(self) -> None:
        """Read what is new.

        Raises:
            FormatError: there is no such directory, or nothing of ``latecomer.watch`` in it.
        """
        try:
            names = files_in(self.directory)
        except OSError as error:
            raise FormatError(
                os.fspath(self.directory), error.strerror or "can't be read"
            ) from None
        for gone in set(self._files) - set(names):
            del self._files[gone]

        for name in names:
            self._read_origin(name)
        watches = {file.origin.watch for file in self._files.values() if file.origin}
        if not watches:
            problem = "has no files of a watch: give it to latecomer.watch(directory=...)"
            raise FormatError(os.fspath(self.directory), problem)
        self._show(max(watches))

        for name in names:
            file = self._files[name]
            if file.origin is not None and file.origin.watch == self.watch:
                self._read_file(name, file, file.origin)
        self._match()

    def last_ranks(self, operations: int) -> list[Rank]:
        """What the ranks have told of the last so many operations."""
        newest = [
            max(record.operation for record in story.records)
            for story in self.stories.values()
            if story.records
        ]
        first = max(newest, default=0) + 1 - operations
        return [self.stories[rank].as_rank(first) for rank in sorted(self.stories)]

    @property
    def world_size(self) -> int:
        """Ranks of the group, of which some may have no files here."""
        return max(story.origin.ranks for story in self.stories.values())

    def _read_origin(self, name: FileName) -> None:
        """Whose a file is, once its first line is there."""
        file = self._files.setdefault(name, _File())
        if file.origin is not None:
            return
        unreadable = self.unreadable
        for line in self._new_lines(name, file, HEAD_BYTES):
            if line.origin is not None:
                file.origin = line.origin
                break

        # All of it is read again, and counted then, if it is of the newest watch.
        file.offset = 0
        self.unreadable = unreadable

    def _show(self, watch: str) -> None:
        if watch == self.watch:
            return
        self.watch = watch
        self.unreadable = 0
        self.stories = {}
        self.totals = Totals()
        self._open = {}

    def _read_file(self, name: FileName, file: _File, origin: Origin) -> None:
        if origin.rank not in self.stories:
            self.stories[origin.rank] = Story.of(origin)
        story = self.stories[origin.rank]

        while lines := self._new_lines(name, file, READ_BYTES):
            for line in lines:
                story.add(line)
                if line.operation is not None:
                    records = self._open.setdefault(line.operation.operation, {})
                    records[origin.rank] = line.operation

    def _new_lines(self, name: FileName, file: _File, most_bytes: int) -> list[Line]:
        """Whole lines that come next; those that can't be read are counted."""
        try:
            with name.within(self.directory).open("rb") as stream:
                status = os.fstat(stream.fileno())
                is_another = status.st_ino != file.inode or status.st_size < file.offset
                if file.offset > 0 and is_another:
                    # Somebody has emptied the directory, and a job has begun in it again.
                    self._files[name] = _File()
                    return []
                file.inode = status.st_ino
                stream.seek(file.offset)
                data = stream.read(most_bytes)
        except FileNotFoundError:  # the oldest goes when there is no room for more
            return []
        whole, end, _ = data.rpartition(b"\n")
        file.offset += len(whole) + len(end)

        lines = []
        for text in whole.split(b"\n"):
            if not text:
                continue
            try:
                lines.append(DECODER.decode(text))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                self.unreadable += 1
                lines.append(Line())  # so that a piece with such lines alone is no end
        return lines

    def _match(self) -> None:
        """Enter the operations that all ranks have told of."""
        if len(self.stories) < self.world_size and self._patience > 0:
            self._patience -= 1
            return
        present = set(self.stories)
        for number in sorted(self._open):
            if present <= set(self._open[number]):
                self.totals.add(self._open.pop(number))

        too_many = len(self._open) - kept_operations(self.world_size)
        for number in sorted(self._open)[: max(0, too_many)]:
            del self._open[number]


def kept_operations(ranks: int) -> int:
    """Of how many operations each rank's records are remembered."""
    return max(FEWEST_KEPT, KEPT_ARRIVALS // ranks)
