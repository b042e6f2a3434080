"""A run as its hashes tell it: what its ranks have written under LATECOMER_HASHES, put together.

Only whole steps count, and only those that all ranks have completed. A rank that is killed may
leave a step, or a line, that it has not ended: that is left out. Anything else that is not as the
ranks write it is an error, and so is a rank without a file: "the same" is to be said of all ranks.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from latecomer.runtime.samebits.hash_files import (
    DECODER,
    VARIABLE,
    FileName,
    Head,
    Line,
    files_in,
)
from latecomer.runtime.telemetry.rank_names import names
from latecomer.verify.errors import ArgumentError, FormatError

Noted = tuple[int | None, str]
"""A microbatch's number, where it is known, and the hash of its inputs."""


@dataclass
class Step:
    """What all ranks have noted of a step."""

    gradients: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    """By parameter, in order: by hash, the ranks that had it."""
    inputs: Counter[Noted] = field(default_factory=Counter)

    def hashes(self, parameter: str) -> frozenset[str]:
        """What the ranks had: one hash, if all went well."""
        return frozenset(self.gradients.get(parameter, ()))


@dataclass
class Model:
    """One model of a run, from one ``ddp.attach`` on."""

    ranks: tuple[int, ...]
    bits: str
    contributions: int
    steps: list[Step]

    @property
    def has_inputs(self) -> bool:
        """Whether the inputs of any step have been noted."""
        return any(step.inputs for step in self.steps)


@dataclass
class Run:
    """All that the ranks of a job have left in a directory."""

    path: Path
    models: list[Model]
    conditions: dict[str, frozenset[str]]  # by name, the values that its ranks had
    notices: list[str]


@dataclass
class _File:
    """One rank's file."""

    path: Path
    head: Head
    steps: list[list[Line]]


def read_run(directory: Path) -> Run:
    """Read the hashes of a run.

    Raises:
        ArgumentError: it is no directory of hashes, or not all ranks are there.
        FormatError: a file in it is broken.
    """
    by_model: dict[tuple[int, tuple[int, ...]], list[_File]] = defaultdict(list)
    for name in _files(directory):
        file = _read(name.within(directory), name.rank)
        by_model[name.attachment, file.head.ranks].append(file)

    notices: list[str] = []
    models = [_model(directory, files, notices) for _, files in sorted(by_model.items())]
    every = [file.head.conditions for files in by_model.values() for file in files]
    conditions = {
        name: frozenset(of_rank.get(name, "unknown") for of_rank in every) for name in every[0]
    }
    return Run(directory, models, conditions, notices)


def _files(directory: Path) -> list[FileName]:
    try:
        found = files_in(directory)
    except OSError as error:
        requirement = f"must be a directory of hashes: {error.strerror}"
        raise ArgumentError("RUN", str(directory), requirement) from None
    if not found:
        requirement = "has no file hashes-rank*.jsonl"
        remedy = f"Run the job with {VARIABLE}=DIR in the environment of all ranks"
        raise ArgumentError("RUN", str(directory), requirement, remedy)
    return found


def _read(path: Path, rank: int) -> _File:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise FormatError(str(path), f"cannot be read: {error.strerror}") from None
    lines = _decoded(path, content)
    first = next(lines, None)
    if first is None or first.head is None:
        raise FormatError(str(path), "line 1: must say whose file it is (head)")
    if first.head.rank != rank:
        raise FormatError(str(path), f"is of rank {first.head.rank} by its first line")
    return _File(path, first.head, list(_steps(path, lines)))


def _decoded(path: Path, content: bytes) -> Iterator[Line]:
    """The lines; what comes after the last end of a line was being written."""
    *whole, _ = content.split(b"\n")
    for number, text in enumerate(whole, start=1):
        try:
            yield DECODER.decode(text)
        except msgspec.MsgspecError as error:
            raise FormatError(str(path), f"line {number}: {error}") from None


def _steps(path: Path, lines: Iterator[Line]) -> Iterator[list[Line]]:
    """The lines of each step that has an end, without it."""
    number = 0
    step: list[Line] = []
    for line in lines:
        if line.end is None:
            step.append(line)
            continue
        if line.end.step != number:
            raise FormatError(str(path), f"step {line.end.step} stands where {number} must be")
        yield step
        number += 1
        step = []


def _model(directory: Path, files: list[_File], notices: list[str]) -> Model:
    head = files[0].head
    absent = sorted(set(head.ranks) - {file.head.rank for file in files})
    if absent:
        requirement = f"has no file of {names(absent)}"
        remedy = "Copy the files of all hosts into one directory"
        raise ArgumentError("RUN", str(directory), requirement, remedy)

    lengths = {file.head.rank: len(file.steps) for file in files}
    least = min(lengths.values())
    most = max(lengths.values())
    first_to_end = [rank for rank, length in lengths.items() if length == least]
    if least == 0:
        requirement = f"has no step that {names(first_to_end)} completed"
        raise ArgumentError("RUN", str(directory), requirement)
    if least < most:
        ending = f"{names(first_to_end)} completed {least} steps, others up to {most}"
        notices.append(f"{directory}: {ending}: what comes later is left out")

    steps = [Step() for _ in range(least)]
    for file in files:
        for step, lines in zip(steps, file.steps, strict=False):
            _add(step, file.head.rank, lines)
    return Model(head.ranks, head.bits, head.contributions, steps)


def _add(step: Step, rank: int, lines: list[Line]) -> None:
    """What one rank has noted of a step."""
    for line in lines:
        if line.gradient is not None:
            by_hash = step.gradients.setdefault(line.gradient.parameter, {})
            by_hash.setdefault(line.gradient.hash, []).append(rank)
        elif line.input is not None:
            step.inputs[line.input.microbatch, line.input.hash] += 1
