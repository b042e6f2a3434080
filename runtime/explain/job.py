"""A job: what all its ranks have recorded, by group and in the order in which each did it.

A group is known by its name and its ranks, since two jobs of pipelines or tensors have many groups
of one name. NCCL's recorder says who is in it. Gloo's does not: there the members are those ranks
that recorded the group, and all of the job for the default group (``guessed`` has the rest).
"""

from __future__ import annotations

import ast
import math
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from latecomer.runtime.explain.dumps import Dump, Entry, read_dump
from latecomer.verify.errors import ArgumentError, FormatError

RANK_IN_NAME = re.compile(r"(\d+)(?:\.json|\.pkl|\.pickle)?$")
TO_ALL = re.compile(r"all_?reduce|all_?gather|reduce_?scatter|barrier|all_?to_?all", re.IGNORECASE)
ANY_SIZES = re.compile(r"all_to_all|_v$|coalesced")
"""Operations whose sizes may differ from rank to rank."""
PEER = re.compile(r"(send|recv) \d+(?:->|<-)(\d+)")
DEFAULT = "default_pg"  # how torch describes the group of all ranks
NEAR = 1000  # operations: a count further away than that is of something else


@dataclass(frozen=True, eq=False)
class Group:
    """A process group: its name in torch, and its ranks in the job; of a job, there is one each."""

    name: str
    ranks: tuple[int, ...]


class Operation(msgspec.Struct, frozen=True):
    """One that a rank has entered."""

    rank: int
    record: int  # the number that its rank gave it: they are in order
    group: Group
    sequence: int  # in the group; sends and receives are counted apart
    kind: str
    peer: int | None  # of a send or a receive: the other rank
    signature: tuple[str | int, ...]  # the same on all ranks, if they did the same
    is_done: bool
    created_ns: int

    @property
    def needs_all(self) -> bool:
        """Whether it can end on no rank before all have entered it."""
        return self.peer is None and TO_ALL.search(self.kind) is not None


@dataclass
class Job:
    """What was recorded.

    Attributes:
        world: all ranks that the job is known to have.
        operations: by rank, in the order in which it entered them.
        is_whole: by rank, whether nothing has left its buffer.
        descriptions: by group, what the program calls it.
        guessed: groups whose members no dump tells.
        enqueued: by rank and group, the last collective that its status tells.
        on_gloo: ranks that record neither sends nor receives, and an end after errors, too.
    """

    world: set[int] = field(default_factory=set)
    operations: dict[int, list[Operation]] = field(default_factory=dict)
    is_whole: dict[int, bool] = field(default_factory=dict)
    descriptions: dict[Group, str] = field(default_factory=dict)
    guessed: set[Group] = field(default_factory=set)
    enqueued: dict[tuple[int, Group], int] = field(default_factory=dict)
    on_gloo: set[int] = field(default_factory=set)

    @property
    def without_dump(self) -> set[int]:
        """Ranks of which there is none."""
        return self.world - set(self.operations)


def read_job(paths: Iterable[Path], world_size: int | None = None) -> Job:
    """The job of these dumps, one for each rank whose number ends its file's name.

    Raises:
        FormatError: a file is no dump, or two are of one rank.
        ArgumentError: there is none, or ``world_size`` is smaller than a rank's number.
    """
    records: dict[int, _Record] = {}
    for path in paths:
        found = RANK_IN_NAME.search(path.name)
        if found is None:
            raise FormatError(str(path), "has no rank's number at the end of its name")
        rank = int(found[1])
        if rank in records:
            raise FormatError(str(path), f"is a second dump of rank {rank}")
        records[rank] = _Record(read_dump(path))
    if not records:
        raise ArgumentError("FILE", "none", "must be the dumps of a job's ranks")
    if world_size is not None and world_size <= max(records):
        raise ArgumentError("--world-size", world_size, f"there is a dump of rank {max(records)}")
    return _job(records, world_size)


def job_of(dumps: Mapping[int, Dump], world_size: int | None = None) -> Job:
    """The job that these dumps, by rank, are of."""
    return _job({rank: _Record(dump) for rank, dump in dumps.items()}, world_size)


def _job(records: Mapping[int, _Record], world_size: int | None) -> Job:
    members = _members(records, world_size)
    job = Job(world=members.world, guessed=members.guessed)
    for rank, record in records.items():
        groups = members.by_name[rank]
        for name, description in record.groups:
            job.descriptions[groups[name]] = description
        if record.is_on_gloo:
            job.on_gloo.add(rank)
        operations = [_operation(rank, groups[noted.group], noted) for noted in record.noted]
        job.operations[rank] = operations
        job.is_whole[rank] = bool(operations) and operations[0].record == 0
        if rank not in job.on_gloo:
            for name, last in record.enqueued.items():
                if name in groups:
                    job.enqueued[rank, groups[name]] = last
    return job


class _Noted(NamedTuple):
    """What is kept of an entry: a thousand ranks have two million."""

    record: int
    group: str
    sequence: int
    kind: str
    peer: int | None  # in the group
    signature: tuple[str | int, ...]
    is_done: bool
    created_ns: int


class _Record:
    """What is kept of a dump.

    Attributes:
        configured: by group's name, its ranks, where the dump tells them.
        groups: name and description of each that is recorded; its size, where an entry shows it.
        noted: the operations, but for those that torch's hook repeats.
        enqueued: by group's name, the last collective that the status tells; not of groups whose
            status counts sends, too.
    """

    def __init__(self, dump: Dump) -> None:
        self.configured = {
            name: ranks
            for name, group in dump.pg_config.items()
            if name and (ranks := _ranks(group.ranks))
        }
        self.groups: dict[tuple[str, str], int] = {}
        self.noted: list[_Noted] = []
        self.is_on_gloo = False
        signatures: dict[tuple[str | int, ...], tuple[str | int, ...]] = {}  # one each
        with_sends: set[str] = set()
        for entry in dump.entries:
            library, _, _ = entry.profiling_name.partition(":")
            name = entry.process_group[0]
            size = _group_size(entry) if entry.profiling_name == "gloo:all_gather" else 0
            self.groups[entry.process_group] = size or self.groups.get(entry.process_group, 0)
            self.is_on_gloo |= library == "gloo"
            if entry.is_p2p:
                with_sends.add(name)
            if library != "c10d":  # a hook of torch's: issued, not done, and recorded otherwise
                noted = _note(entry)
                signature = signatures.setdefault(noted.signature, noted.signature)
                self.noted.append(noted._replace(signature=signature))
        enqueued = _enqueued(dump)
        self.enqueued = {name: enqueued[name] for name in enqueued.keys() - with_sends}


@dataclass
class _Members:
    """Who is in which group: by rank, groups by name."""

    world: set[int] = field(default_factory=set)
    by_name: dict[int, dict[str, Group]] = field(default_factory=dict)
    guessed: set[Group] = field(default_factory=set)
    _made: dict[tuple[str, tuple[int, ...]], Group] = field(default_factory=dict)

    def group(self, name: str, ranks: tuple[int, ...]) -> Group:
        """The one of this name and these ranks."""
        return self._made.setdefault((name, ranks), Group(name, ranks))


def _members(records: Mapping[int, _Record], world_size: int | None) -> _Members:
    members = _Members(by_name={rank: {} for rank in records})
    told = members.by_name
    recorded: dict[tuple[str, str], set[int]] = defaultdict(set)
    sizes: dict[str, int] = {}  # of groups without members, as an all-gather shows
    for rank, record in records.items():
        for name, of_group in record.configured.items():
            told[rank][name] = members.group(name, of_group)
        for (name, description), size in record.groups.items():
            recorded[name, description].add(rank)
            if size:
                sizes[name] = size

    known = [rank for groups in told.values() for group in groups.values() for rank in group.ranks]
    largest = max([*known, *records], default=0)
    members.world = set(range(world_size or max(largest + 1, sizes.get("0", 0))))
    absent = members.world - set(records)
    for (name, description), ranks in recorded.items():
        untold = {rank for rank in ranks if name not in told[rank]}
        if not untold:
            continue
        everyone = members.world if description == DEFAULT else ranks
        if description != DEFAULT and sizes.get(name, 0) - len(ranks) == len(absent):
            everyone = ranks | absent
        group = members.group(name, tuple(sorted(everyone)))
        for rank in untold:
            told[rank][name] = group
        if description != DEFAULT and len(everyone) != sizes.get(name):
            members.guessed.add(group)
    return members


def _ranks(text: str | list[int]) -> tuple[int, ...]:
    """As NCCL's recorder writes them: a list, or the text of one."""
    ranks: object = text
    if isinstance(text, str):
        try:
            ranks = ast.literal_eval(text or "[]")
        except (SyntaxError, ValueError):
            return ()
    if not isinstance(ranks, list | tuple):
        return ()
    return tuple(sorted(rank for rank in ranks if isinstance(rank, int)))


def _group_size(entry: Entry) -> int:
    """How many ranks an all-gather is of: its output has one dimension more than its input."""
    if not entry.input_sizes or not entry.output_sizes:
        return 0
    one, all_of_them = entry.input_sizes[0], entry.output_sizes[0]
    return all_of_them[0] if len(all_of_them) == len(one) + 1 else 0


def _note(entry: Entry) -> _Noted:
    library, _, what = entry.profiling_name.partition(":")
    found = PEER.match(what)
    kind = sys.intern(what.split(" ")[0])
    return _Noted(
        record=entry.record_id,
        group=sys.intern(entry.process_group[0]),
        sequence=entry.p2p_seq_id if entry.is_p2p else entry.collective_seq_id,
        kind=kind,
        peer=int(found[2]) if found else None,
        signature=_signature(kind, entry),
        is_done=entry.state == "completed" or (library == "gloo" and entry.retired),
        created_ns=entry.time_created_ns,
    )


def _operation(rank: int, group: Group, noted: _Noted) -> Operation:
    peer = noted.peer
    if peer is not None and peer < len(group.ranks):  # else not all members are known
        peer = group.ranks[peer]
    return Operation(
        rank=rank,
        record=noted.record,
        group=group,
        sequence=noted.sequence,
        kind=noted.kind,
        peer=peer,
        signature=noted.signature,
        is_done=noted.is_done,
        created_ns=noted.created_ns,
    )


def _signature(kind: str, entry: Entry) -> tuple[str | int, ...]:
    if kind in ("gather", "scatter"):  # of which only the root has all tensors
        return (kind,)
    signature: tuple[str | int, ...] = (kind, "/".join(entry.input_dtypes))
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
