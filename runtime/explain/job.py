"""A job: what all its ranks have recorded, by group and in the order in which each did it.

A group is known by its name and its ranks, since two jobs of pipelines or tensors have many groups
of one name. NCCL's recorder says who is in it. Gloo's does not: there the members are those ranks
that recorded the group, and all of the job for the default group (``guessed`` has the rest).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from latecomer.runtime.explain.records import Noted, Record, Signature
from latecomer.verify.errors import ArgumentError

TO_ALL = re.compile(r"all_?reduce|all_?gather|reduce_?scatter|barrier|all_?to_?all", re.IGNORECASE)
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
    signature: Signature  # the same on all ranks, if they did the same
    is_done: bool
    created_ns: int
    where: str  # the line of the program, where that was recorded
    is_end_told: bool = True  # else it is only taken to be done

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
        watched: ranks on Gloo that record all of that, and an end only if all went well.
        cut: ranks whose last moment may be missing.
        remarks: by rank, how what it recorded ends, for people.
    """

    world: set[int] = field(default_factory=set)
    operations: dict[int, list[Operation]] = field(default_factory=dict)
    is_whole: dict[int, bool] = field(default_factory=dict)
    descriptions: dict[Group, str] = field(default_factory=dict)
    guessed: set[Group] = field(default_factory=set)
    enqueued: dict[tuple[int, Group], int] = field(default_factory=dict)
    on_gloo: set[int] = field(default_factory=set)
    watched: set[int] = field(default_factory=set)
    cut: set[int] = field(default_factory=set)
    remarks: dict[int, str] = field(default_factory=dict)

    def called(self, group: Group) -> str:
        """A group for people: its name, and what the program calls it."""
        description = self.descriptions.get(group, "")
        return f"group {group.name}" + (f" ({description})" if description else "")

    @property
    def without_dump(self) -> set[int]:
        """Ranks of which there is none."""
        return self.world - set(self.operations)


def job_of(records: Mapping[int, Record], world_size: int | None = None) -> Job:
    """The job of these records, by rank; ArgumentError if ``world_size`` is too small for them."""
    if world_size is not None and world_size <= max(records):
        raise ArgumentError("--world-size", world_size, f"there is a dump of rank {max(records)}")
    members = _members(records, world_size)
    job = Job(world=members.world, guessed=members.guessed)
    for rank, record in records.items():
        groups = members.by_name[rank]
        for name, description in record.groups:
            job.descriptions[groups[name]] = description
        if record.is_on_gloo:
            job.on_gloo.add(rank)
        if record.is_watched:
            job.watched.add(rank)
        if record.is_cut:
            job.cut.add(rank)
        if record.remark:
            job.remarks[rank] = record.remark
        operations = [_operation(rank, groups[noted.group], noted) for noted in record.noted]
        job.operations[rank] = operations
        job.is_whole[rank] = bool(operations) and operations[0].record == 0
        if rank not in job.on_gloo:
            for name, last in record.enqueued.items():
                if name in groups:
                    job.enqueued[rank, groups[name]] = last
    return job


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


def _members(records: Mapping[int, Record], world_size: int | None) -> _Members:
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


def _operation(rank: int, group: Group, noted: Noted) -> Operation:
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
        where=noted.where,
        is_end_told=noted.is_end_told,
    )
