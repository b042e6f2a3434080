"""Schedule files: format ``latecomer/1`` read with bounded memory and time.

A file is UTF-8 JSON; a path that ends in ``.gz`` or ``.zst`` is compressed. Reading refuses
unknown fields and wrong types and names the place. A hostile file (a gigabyte of brackets, a
compressed bomb) costs at most ``MAX_BYTES`` of text and ``MAX_TOKENS`` of JSON structure, checked
before anything is parsed. Whether indices make sense is not the reader's question: that is
property 1, and a schedule that breaks it is refuted, with the transfer named.
"""

from __future__ import annotations

import gzip
import os
import re
import zlib
from pathlib import Path
from typing import BinaryIO, Literal, cast

import msgspec
import zstandard

from latecomer.verify.core.errors import FormatError
from latecomer.verify.core.schedule import FORMAT, Phase, Ports, Scalar, Schedule

COLLECTIVE = "allreduce"
PIPELINE = "pipeline"

# A file beyond the first two is refused before it costs memory or time.
MAX_BYTES = 256 * 2**20
MAX_TOKENS = 48 * 2**20  # about ten million transfers
MAX_META_BYTES = 2**16
MAX_PHASES = 2**14
MAX_NAME = 200
MAX_RANKS = 2**14
MAX_CHUNKS = 2**20


class _File(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The JSON object as it stands in the file."""

    format: Literal["latecomer/1"]
    kind: Literal["allreduce"]
    ranks: int
    chunks: int
    late: tuple[int, ...] = ()
    ports: Ports = "duplex"
    phases: tuple[Phase, ...]
    meta: msgspec.Raw = msgspec.Raw(b"{}")


class _Head(msgspec.Struct, rename={"trace_events": "traceEvents"}):
    """What tells other JSON files, and those of other versions, apart."""

    format: str = ""
    trace_events: msgspec.Raw = msgspec.Raw()


class _Kind(msgspec.Struct):
    """The one field that all families of schedules share; the others are skipped."""

    kind: str = ""


# made with the module: msgspec crashes where two threads are the first to decode a type
_file = msgspec.json.Decoder(_File)
_kind = msgspec.json.Decoder(_Kind)
_head = msgspec.json.Decoder(_Head)


def read(path: str | os.PathLike[str]) -> Schedule:
    """Read a schedule file.

    Raises:
        FormatError: the file can't be opened, is too large, truncated, not UTF-8, not JSON, or
            a field is unknown, missing, of a wrong type or out of its range.
    """
    name = os.fspath(path)
    return decode(read_bounded(name), name)


def decode(data: bytes, name: str = "<bytes>") -> Schedule:
    """Parse the (uncompressed) text of a schedule file; ``name`` is used in error messages."""
    bounded_text(data, name)
    try:
        file = _file.decode(data)
        if len(file.meta) > MAX_META_BYTES:
            raise FormatError(name, f"meta is larger than {MAX_META_BYTES} bytes")
    except msgspec.ValidationError as error:
        raise FormatError(name, no_schedule(data, COLLECTIVE) or str(error)) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise FormatError(name, f"not a complete JSON object: {error}") from None

    try:
        meta = msgspec.json.decode(file.meta, type=dict[str, Scalar])
    except (msgspec.DecodeError, RecursionError) as error:
        raise FormatError(name, f"in meta: {error}") from None

    require_distinct(data, name)
    _require_ranges(file, name)
    return Schedule(
        ranks=file.ranks,
        chunks=file.chunks,
        late=file.late,
        ports=file.ports,
        phases=file.phases,
        kind=file.kind,
        meta=meta,
    )


def _require_ranges(file: _File, name: str) -> None:
    """Refuse sizes out of their range, and lists of ranks that name one twice or none that is."""
    _require(name, "ranks", file.ranks, 2, MAX_RANKS)
    _require(name, "chunks", file.chunks, 1, MAX_CHUNKS)
    if not isinstance(file.ports, str):
        _require(name, "ports.incast", file.ports.incast, 1, MAX_RANKS)

    _require(name, "the number of phases", len(file.phases), 0, MAX_PHASES)
    for i, phase in enumerate(file.phases):
        if len(phase.name) > MAX_NAME or not phase.name.isprintable():
            raise FormatError(
                name, f"phases[{i}].name must be printable, with at most {MAX_NAME} characters"
            )

    _require_ranks(name, "late", file.late, file.ranks)
    for i, phase in enumerate(file.phases):
        _require_ranks(name, f"phases[{i}].absent", phase.absent, file.ranks)


def bounded_text(data: bytes, name: str) -> None:
    """Refuse, before it is parsed, a text that is too large or not UTF-8."""
    if len(data) > MAX_BYTES:
        raise FormatError(name, f"larger than {MAX_BYTES} bytes, which no schedule needs")
    if data.count(b",") + data.count(b"[") + data.count(b"{") > MAX_TOKENS:
        raise FormatError(name, f"more than {MAX_TOKENS} JSON tokens, which no schedule needs")
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(name, f"not UTF-8: {error.reason} at byte {error.start}") from None


_TOKEN = re.compile(
    rb'(?:[^"{}]++|"(?:copy|reduce)"\])++|("(?:[^"\\]|\\.)*+")(\s*:)?|[{}]', re.DOTALL
)
"""A stretch without fields (the ends of transfers belong to it), a string, or a brace."""


def require_distinct(data: bytes, name: str) -> None:
    """Refuse a text that gives a field twice, of which parsers take the first or the last.

    ``data`` has been parsed: it is JSON. Takes a fraction of the time that parsing takes.
    """
    objects: list[set[str]] = []
    for token in _TOKEN.finditer(data):
        if token[0] == b"{":
            objects.append(set())
        elif token[0] == b"}":
            objects.pop()
        elif token[2]:
            field = msgspec.json.decode(token[1], type=str)
            if field in objects[-1]:
                raise FormatError(name, f"the field {field!r} is given twice")
            objects[-1].add(field)


def kind_of(data: bytes) -> str:
    """The ``kind`` that a file says it has; empty where it says none that can be read."""
    try:
        return _kind.decode(data).kind
    except (msgspec.DecodeError, RecursionError):
        return ""


def no_schedule(data: bytes, expected: str) -> str:
    """What a file is instead of a schedule of kind ``expected``; empty where that is unclear."""
    try:
        head = _head.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return ""
    if head.trace_events:
        return "is a trace, and no schedule. Look at it with: latecomer watch"
    if head.format.startswith("latecomer/") and head.format != FORMAT:
        return f"is of format {head.format}; this version of latecomer reads {FORMAT}"
    kind = kind_of(data)
    if kind in {COLLECTIVE, PIPELINE} - {expected}:
        return f"is a schedule of kind {kind}, where one of kind {expected} is needed"
    return ""


def _require_ranks(name: str, field: str, ranks: tuple[int, ...], world_size: int) -> None:
    for position, rank in enumerate(ranks):
        _require(name, f"{field}[{position}]", rank, 0, world_size - 1)
    if len(set(ranks)) < len(ranks):
        raise FormatError(name, f"{field} names a rank twice")


def _require(name: str, field: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise FormatError(name, f"{field} is {value}, must be in {low}..{high}")


def read_bounded(name: str) -> bytes:
    """The uncompressed bytes of the file, at most ``MAX_BYTES + 1`` of them.

    Raises:
        FormatError: it can't be opened, or the compressed data is damaged.
    """
    suffix = Path(name).suffix
    try:
        with open(name, "rb") as raw:
            if suffix == ".gz":
                with gzip.open(raw) as unzipped:
                    return _read_up_to(cast(BinaryIO, unzipped), MAX_BYTES + 1)
            if suffix == ".zst":
                # A frame says how large a window it needs; zstd itself takes at most this. Without
                # the frames that follow the first one the rest of a file would be left out in
                # silence.
                decompressor = zstandard.ZstdDecompressor(max_window_size=2**27)
                with decompressor.stream_reader(raw, read_across_frames=True) as stream:
                    return _read_up_to(cast(BinaryIO, stream), MAX_BYTES + 1)
            return _read_up_to(raw, MAX_BYTES + 1)
    except OSError as error:
        raise FormatError(name, error.strerror or str(error)) from None
    except (EOFError, zlib.error, zstandard.ZstdError) as error:
        raise FormatError(name, f"the compressed data is damaged: {error}") from None


def _read_up_to(stream: BinaryIO, limit: int) -> bytes:
    # In parts: a read of the whole limit would take that much memory for the smallest file.
    parts: list[bytes] = []
    while limit > 0 and (part := stream.read(min(limit, 2**24))):
        parts.append(part)
        limit -= len(part)
    return b"".join(parts)
