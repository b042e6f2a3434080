"""Pipeline schedule files: ``"kind": "pipeline"`` of format ``latecomer/1``.

The bounds on size and the way files are read and written are those of
:mod:`latecomer.verify.core.format`. The reader refuses unknown fields, wrong types, actions that it
can't read and instances that make no sense, and names the place. Whether the actions make a right
schedule is not its question.
"""

from __future__ import annotations

import os
from decimal import Decimal, InvalidOperation
from typing import Literal

import msgspec

from latecomer.verify.core.format import (
    MAX_META_BYTES,
    PIPELINE,
    bounded_text,
    no_schedule,
    read_bounded,
    require_distinct,
)
from latecomer.verify.core.schedule import FORMAT, Scalar
from latecomer.verify.errors import FormatError
from latecomer.verify.output import store
from latecomer.verify.pipeline.costs import fault
from latecomer.verify.pipeline.schedule import Instance, PipelineSchedule, Program, parse_action

# A file beyond these is refused before it costs memory or time.
MAX_STAGES = 2**12
MAX_MICROBATCHES = 2**16
MAX_ACTIONS = 2**20


class _Situation(msgspec.Struct):
    """The numbers of the file as they are typed."""

    situation: msgspec.Raw


class _File(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The JSON object as it stands in the file."""

    format: Literal["latecomer/1"]
    kind: Literal["pipeline"]
    stages: int
    microbatches: int
    instance: Instance = msgspec.field(name="situation")
    programs: tuple[tuple[str, ...], ...]
    meta: msgspec.Raw = msgspec.Raw(b"{}")


_situation = msgspec.json.Decoder(_Situation)
_file = msgspec.json.Decoder(_File)  # with the module: see latecomer.verify.core.format


def read(path: str | os.PathLike[str]) -> PipelineSchedule:
    r"""Read a pipeline schedule file (JSON; for PyTorch's CSV see ``read_csv``).

    Raises:
        FormatError: the file can't be opened, is too large, truncated, not UTF-8, not JSON, or
            a field is unknown, missing, of a wrong type or out of its range.

    Examples:
        >>> from latecomer.verify.pipeline import decode_csv, read, write
        >>> schedule = decode_csv(b"0F0,0B0\n1F0,1B0\n")
        >>> write(schedule, "pipeline.json")
        >>> read("pipeline.json") == schedule
        True
    """
    name = os.fspath(path)
    return decode(read_bounded(name), name)


def decode(data: bytes, name: str = "<bytes>") -> PipelineSchedule:
    """Parse the (uncompressed) text of a file; ``name`` is used in error messages.

    Raises:
        FormatError: as ``read``.

    Examples:
        >>> from latecomer.verify.pipeline import decode
        >>> decode(b'{"format": "latecomer/1", "kind": "allreduce"}', "mine.json")
        Traceback (most recent call last):
        latecomer.verify.core.errors.FormatError: mine.json: is a schedule of kind allreduce, where
        one of kind pipeline is needed
    """
    bounded_text(data, name)
    try:
        file = _file.decode(data)
        if len(file.meta) > MAX_META_BYTES:
            raise FormatError(name, f"meta is larger than {MAX_META_BYTES} bytes")
        meta = msgspec.json.decode(file.meta, type=dict[str, Scalar])
    except msgspec.ValidationError as error:
        raise FormatError(name, no_schedule(data, PIPELINE) or str(error)) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise FormatError(name, f"not a complete JSON object: {error}") from None
    programs = parse_programs(file.programs, name)
    require_distinct(data, name)
    require_sizes(name, file.stages, file.microbatches, programs)
    _require_kept(data, name)
    problem = fault(file.instance, file.stages, len(programs))
    if problem is not None:
        raise FormatError(name, f"situation.{problem}")
    return PipelineSchedule(
        stages=file.stages,
        microbatches=file.microbatches,
        instance=file.instance,
        programs=programs,
        meta=meta,
    )


def _require_kept(data: bytes, name: str) -> None:
    """A FormatError where a number of the situation has more digits than a float keeps.

    Another instance would be judged than the one in the file, be it by a tick.
    """
    rounded: list[str] = []

    def kept(text: str) -> float:
        number = float(text)
        try:
            if Decimal(text) != Decimal(repr(number)):
                rounded.append(text)
        except InvalidOperation:  # an exponent of very many digits
            rounded.append(text)
        return number

    msgspec.json.Decoder(float_hook=kept).decode(_situation.decode(data).situation)
    if rounded:
        raise FormatError(name, f"situation: {rounded[0][:40]} has more digits than are kept")


def parse_programs(rows: tuple[tuple[str, ...], ...], name: str) -> tuple[Program, ...]:
    """The actions that the texts denote, or a FormatError that names rank and place."""
    total = sum(map(len, rows))
    if total > MAX_ACTIONS:
        raise FormatError(name, f"{total} actions, at most {MAX_ACTIONS} are read")
    programs = []
    for rank, row in enumerate(rows):
        program = []
        for position, text in enumerate(row):
            try:
                program.append(parse_action(text))
            except ValueError as error:
                raise FormatError(name, f"programs[{rank}][{position}]: {error}") from None
        programs.append(tuple(program))
    return tuple(programs)


def require_sizes(name: str, stages: int, microbatches: int, programs: tuple[Program, ...]) -> None:
    """A FormatError where a size is out of its range."""
    for field, value, high in [
        ("stages", stages, MAX_STAGES),
        ("microbatches", microbatches, MAX_MICROBATCHES),
        ("the number of programs", len(programs), stages),
    ]:
        if not 1 <= value <= high:
            raise FormatError(name, f"{field} is {value}, must be in 1..{high}")
    # Each stage has an F and a backward for each microbatch at the least.
    if 2 * stages * microbatches > MAX_ACTIONS:
        raise FormatError(
            name, f"{stages} stages of {microbatches} microbatches are more than can be read"
        )


def encode(schedule: PipelineSchedule) -> bytes:
    r"""The schedule as the (uncompressed) text of a file, one program per line.

    Examples:
        >>> from latecomer.verify.pipeline import decode, decode_csv, encode
        >>> schedule = decode_csv(b"0F0,0B0\n1F0,1B0\n")
        >>> decode(encode(schedule)) == schedule
        True
    """
    json = msgspec.json.encode
    instance = msgspec.to_builtins(schedule.instance)
    parts = [
        f'{{"format":"{FORMAT}","kind":"{PIPELINE}","stages":{schedule.stages},'
        f'"microbatches":{schedule.microbatches},\n "situation": {{',
        ",\n  ".join(f'"{field}":{json(value).decode()}' for field, value in instance.items()),
        '},\n "programs": [\n  ',
        ",\n  ".join(
            json([str(action) for action in program]).decode() for program in schedule.programs
        ),
        f'],\n "meta": {json(schedule.meta).decode()}}}\n',
    ]
    return "".join(parts).encode()


def write(schedule: PipelineSchedule, path: str | os.PathLike[str]) -> None:
    r"""Write a schedule file atomically, compressed where the name says so (.gz, .zst).

    Raises:
        ArgumentError: the path can't be written.

    Examples:
        >>> from latecomer.verify.pipeline import decode_csv, write
        >>> write(decode_csv(b"0F0,0B0\n1F0,1B0\n"), "pipeline.json.gz")
    """
    store(encode(schedule), path)
