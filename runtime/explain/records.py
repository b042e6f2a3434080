"""What is kept of a dump: each operation in a few words; a thousand ranks have two million."""

from __future__ import annotations

import math
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from latecomer.runtime.explain.dumps import Dump, Entry, ranks_of, read_dump

ANY_SIZES = re.compile(r"all_to_all|_v$|coalesced")
"""Operations whose sizes may differ from rank to rank."""
PEER = re.compile(r"(send|recv) \d+(?:->|<-)(\d+)")

Signature = tuple[str | int, ...]
"""Kind, type and sizes: the same on all ranks, if they did the same."""


class Noted(NamedTuple):
    """An operation that a rank has entered."""

    record: int  # the number that its rank gave it: they are in order
    group: str
    sequence: int  # in the group; sends and receives are counted apart
    kind: str
    peer: int | None  # of a send or a receive: the other rank, in the group
    signature: Signature
    is_done: bool
    created_ns: int
    where: str  # the line of the program, where its stack was recorded
    is_end_told: bool = True  # else it is only taken to be done: nothing tells of such ends


@dataclass
class Record:
    """What is kept of one rank's dump, or of its watch.

    Attributes:
        configured: by group's name, its ranks, where the dump tells them.
        groups: name and description of each that is recorded; its size, where an entry shows it.
        noted: the operations, but for those that torch's hook repeats.
        is_on_gloo: whether Gloo's recorder wrote it, which tells of no send, and of an end after
            an error, too.
        is_watched: whether a watch of Gloo's groups wrote it, which tells of all that.
        is_cut: whether it ends before those of others, and not as a watch that is over: what its
            rank did in its last moment may be missing.
        remark: how it ends, for people.
        enqueued: by group's name, the last collective that the status tells; not of groups whose
            status counts sends, too.
    """

    configured: dict[str, tuple[int, ...]] = field(default_factory=dict)
    groups: dict[tuple[str, str], int] = field(default_factory=dict)
    noted: list[Noted] = field(default_factory=list)
    is_on_gloo: bool = False
    is_watched: bool = False
    is_cut: bool = False
    remark: str = ""
    enqueued: dict[str, int] = field(default_factory=dict)


def record_of(dump: Dump) -> Record:
    """What is kept of a dump."""
    record = Record()
    for name, group in dump.pg_config.items():
        if name and (ranks := ranks_of(group.ranks)):
            record.configured[name] = ranks
    signatures: dict[Signature, Signature] = {}  # one each
    with_sends: set[str] = set()
    for entry in dump.entries:
        library, _, what = entry.profiling_name.partition(":")
        name = entry.process_group[0]
        size = _group_size(entry) if entry.profiling_name == "gloo:all_gather" else 0
        record.groups[entry.process_group] = size or record.groups.get(entry.process_group, 0)
        record.is_on_gloo |= library == "gloo"
        if entry.is_p2p:
            with_sends.add(name)
        if library == "c10d":  # a hook of torch's: issued, not done, and recorded otherwise
            continue
        peer = PEER.match(what)
        kind = sys.intern(what.split(" ")[0])
        signature = _signature(kind, entry)
        record.noted.append(
            Noted(
                record=entry.record_id,
                group=sys.intern(name),
                sequence=entry.p2p_seq_id if entry.is_p2p else entry.collective_seq_id,
                kind=kind,
                peer=int(peer[2]) if peer else None,
                signature=signatures.setdefault(signature, signature),
                is_done=entry.state == "completed" or (library == "gloo" and entry.retired),
                created_ns=entry.time_created_ns,
                where=sys.intern(entry.where),
            )
        )
    enqueued = _enqueued(dump)
    record.enqueued = {name: enqueued[name] for name in enqueued.keys() - with_sends}
    return record


def read_record(path: Path) -> Record:
    """What is kept of the dump in a file; FormatError if it is none."""
    return record_of(read_dump(path))


def _group_size(entry: Entry) -> int:
    """How many ranks an all-gather is of: its output has one dimension more than its input."""
    if not entry.input_sizes or not entry.output_sizes:
        return 0
    one, all_of_them = entry.input_sizes[0], entry.output_sizes[0]
    return all_of_them[0] if len(all_of_them) == len(one) + 1 else 0


def _signature(kind: str, entry: Entry) -> Signature:
    if kind in ("gather", "scatter"):  # of which only the root has all tensors
        return (kind,)
    signature: Signature = (kind, "/".join(entry.input_dtypes))
    if ANY_SIZES.search(kind):
        return signature
    numbers = (
        sum(math.prod(shape) for shape in shapes)
        for shapes in (entry.input_sizes, entry.output_sizes)
    )
    return (*signature, *numbers)


def _enqueued(dump: Dump) -> dict[str, int]:
    """By group's name, the last collective that the rank has enqueued.

    A status has the number of its group, a configuration the name; both were given in order.
    """
    names = sorted(filter(str.isdigit, dump.pg_config), key=int)
    numbers = sorted(filter(str.isdigit, dump.pg_status), key=int)
    by_number: dict[str, str] = {}
    if len(names) == len(numbers):
        by_number = dict(zip(numbers, names, strict=True))
    for entry in dump.entries:
        by_number[str(entry.pg_id)] = entry.process_group[0]
    return {
        name: dump.pg_status[number].last_enqueued_collective
        for number, name in by_number.items()
        if number in dump.pg_status
    }
