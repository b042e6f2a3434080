"""What NCCL's Inspector writes: how long each completed collective took on each rank.

A line of JSON for each (``plugins/profiler/inspector`` in NCCL, format v4.0 and later). All ranks
leave a collective at about the same time, so the one on which it took the shortest time came last;
that needs no clocks. Not all of them are written on all ranks: those that are, are compared.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from latecomer.runtime.explain.dumps import read_bytes
from latecomer.runtime.explain.slow import Came, Together
from latecomer.verify.errors import FormatError

FIRST_KEYS = (b'"header"', b'"coll_perf"')
UNCERTAINTY_S = 50e-6
"""How far apart the ends of one collective may be, and what times are rounded to."""


class Header(msgspec.Struct, frozen=True):
    """Whose a line is."""

    id: str  # of the communicator
    rank: int  # in it
    n_ranks: int


class Metadata(msgspec.Struct, frozen=True):
    """When and where it was written."""

    dump_timestamp_us: int
    hostname: str = ""
    pid: int = 0


class Performance(msgspec.Struct, frozen=True):
    """Of a collective."""

    coll: str
    coll_sn: int
    coll_exec_time_us: float


class Completed(msgspec.Struct, frozen=True):
    """A line."""

    header: Header
    metadata: Metadata
    coll_perf: Performance


LINE = msgspec.json.Decoder(Completed)


def is_inspected(start: bytes) -> bool:
    """Whether a file that begins so is one of these."""
    head = start.split(b"\n", 1)[0]
    return head.lstrip().startswith(b"{") and all(key in head for key in FIRST_KEYS)


def read_inspected(path: Path) -> list[Completed]:
    """The collectives in a file; FormatError if there is none."""
    found = list(_lines(read_bytes(path)))
    if not found:
        raise FormatError(str(path), "has no completed collective of NCCL's Inspector")
    return found


def _lines(data: bytes) -> Iterator[Completed]:
    for text in data.splitlines():
        # one that is cut off is none, nor are those of sends and receives
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            yield LINE.decode(text)


def together(lines: Iterable[Completed]) -> list[Together]:
    """The collectives of which all ranks of a communicator have told.

    Ranks are those of the largest communicator; a process is in one of them, and known by its host
    and number.
    """
    by_communicator: dict[str, list[Completed]] = defaultdict(list)
    for line in lines:
        by_communicator[line.header.id].append(line)
    by_size = sorted(by_communicator.values(), key=lambda each: -each[0].header.n_ranks)
    ranks: dict[tuple[str, int], int] = {}
    for of_one in by_size:
        for line in of_one:
            process = (line.metadata.hostname, line.metadata.pid)
            ranks.setdefault(process, line.header.rank)

    operations = []
    for name, of_one in by_communicator.items():
        by_number: dict[tuple[int, str], dict[int, Completed]] = defaultdict(dict)
        for line in of_one:
            rank = ranks[line.metadata.hostname, line.metadata.pid]
            by_number[line.coll_perf.coll_sn, line.coll_perf.coll][rank] = line
        for (_, kind), by_rank in by_number.items():
            if len(by_rank) == of_one[0].header.n_ranks > 1:
                operations.append(_together(name, kind, by_rank))
    return operations


def _together(name: str, kind: str, by_rank: dict[int, Completed]) -> Together:
    ended_s = min(line.metadata.dump_timestamp_us for line in by_rank.values()) / 1e6
    came = {}
    for rank, line in by_rank.items():
        came[rank] = Came(ended_s - line.coll_perf.coll_exec_time_us / 1e6, UNCERTAINTY_S)
    return Together(group=name, kind=kind, came=came)
