"""A Flight Recorder's dump of one rank, read without running anything in it.

Sources: ``torch/csrc/distributed/c10d/FlightRecorder*.hpp`` (versions 2.3 to 2.10 of the format),
which ProcessGroupNCCL and ProcessGroupGloo write as a pickle of plain values or as JSON. A pickle
that asks for any global is refused: plain values need none. In JSON counters are strings, and a key
whose list is empty is absent.
"""

from __future__ import annotations

import ast
import io
import pickle
import re
from pathlib import Path
from typing import Any

import msgspec

from latecomer.verify.errors import FormatError

MOST_BYTES = 2**29  # of a file: 2,000 entries with stacks have some 10 MB
LIBRARY = re.compile(r"(?:site|dist)-packages/|/torch/|^<|\?\?")
"""Files that are not the program's own."""
PICKLE = b"\x80"  # how a pickle of protocol 2 or later begins
FIRST_KEYS = (b'"pg_config"', b'"comm_lib_version"', b'"entries"')  # one of them, as JSON


class RecordedGroup(msgspec.Struct):
    """What a rank's dump says of a process group; Gloo's recorder has no ranks."""

    ranks: str | list[int] = ""


class RecordedStatus(msgspec.Struct):
    """The last operation of a group that a rank has enqueued."""

    last_enqueued_collective: int = -1


class Entry(msgspec.Struct):
    """One operation as its rank recorded it, as far as anybody here asks."""

    record_id: int
    process_group: tuple[str, str]  # name, description
    profiling_name: str  # "nccl:all_reduce", "nccl:send 0->1", "gloo:barrier"
    collective_seq_id: int = 0
    pg_id: int | str = ""
    p2p_seq_id: int = 0
    time_created_ns: int = 0
    input_sizes: list[list[int]] = []
    input_dtypes: list[str] = []
    output_sizes: list[list[int]] = []
    output_dtypes: list[str] = []
    state: str = ""  # scheduled, started, completed
    retired: bool = False  # by the watchdog: it has ended, well or not
    is_p2p: bool = False
    where: str = ""  # of its stack, the innermost line that is not of a library


class Dump(msgspec.Struct):
    """What the recorder of one rank has."""

    version: str
    entries: list[Entry] = []  # oldest first
    pg_config: dict[str, RecordedGroup] = {}
    pg_status: dict[str, RecordedStatus] = {}


class _PlainValues(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, and dumps hold plain values")


def is_dump(beginning: bytes) -> bool:
    """Whether a file may be a dump, by its first bytes."""
    return beginning.startswith(PICKLE) or any(key in beginning for key in FIRST_KEYS)


def read_dump(path: Path) -> Dump:
    """The dump in a file. FormatError, in one line, if it is none, and nothing of it is run."""
    raw = _plain(path)
    if not isinstance(raw, dict) or "pg_config" not in raw or "version" not in raw:
        raise FormatError(str(path), "is no dump of a Flight Recorder")
    # keys of groups are numbers or texts, as is every counter: it depends on format and version
    for name in ("pg_config", "pg_status"):
        groups = raw.get(name) or {}
        if not isinstance(groups, dict):
            raise FormatError(str(path), f"is no dump of a Flight Recorder: {name} is no mapping")
        raw[name] = {str(key): value for key, value in groups.items()}
    entries = raw.get("entries")
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict):  # else that is said below
            entry["where"] = _where(entry.get("frames"))
    try:
        dump = msgspec.convert(raw, Dump, strict=False)
    except msgspec.ValidationError as error:
        raise FormatError(str(path), f"is no dump of a Flight Recorder: {error}") from None
    dump.entries.sort(key=lambda entry: entry.record_id)
    return dump


def read_bytes(path: Path, most: int | None = None) -> bytes:
    """What is in a file; FormatError if it cannot be read, or has more bytes than one may."""
    most = MOST_BYTES if most is None else most
    try:
        if path.stat().st_size > most:
            raise FormatError(str(path), f"is larger than {most // 2**20} MiB")
        return path.read_bytes()
    except OSError as error:
        raise FormatError(str(path), f"cannot be read: {error.strerror}") from None


def ranks_of(told: Any) -> tuple[int, ...]:
    """A group's ranks, from a list or the text of one; none where that is shortened, or is neither.

    Recorders and profilers write them so.
    """
    if isinstance(told, str):
        try:
            told = ast.literal_eval(told or "[]")
        except (SyntaxError, ValueError):
            return ()
    if not isinstance(told, list | tuple) or not all(isinstance(rank, int) for rank in told):
        return ()
    return tuple(sorted(told))


def _where(frames: Any) -> str:
    """Of a stack, innermost first, the line of the program: ``train.py:12 step``."""
    for frame in frames if isinstance(frames, list) else ():
        if isinstance(frame, dict) and not LIBRARY.search(str(frame.get("filename"))):
            name = str(frame.get("filename")).rpartition("/")[2]
            return f"{name}:{frame.get('line')} {frame.get('name')}"
    return ""


def _plain(path: Path) -> Any:
    """The values in a file."""
    data = read_bytes(path)
    try:
        if data.startswith(PICKLE):
            return _PlainValues(io.BytesIO(data)).load()
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        raise FormatError(str(path), "is neither JSON nor a pickle") from None
    except Exception as error:  # a pickle that is cut off, or hostile, fails in any way
        kind = type(error).__name__
        raise FormatError(str(path), f"is a pickle that cannot be read ({kind}: {error})") from None
