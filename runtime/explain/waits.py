"""Who waits for whom: the graph of waits of a job that stands still, and what it rests on.

A rank stands at its oldest operation that is open. There it waits for the members of the group that
have not entered it, and for those of whom that is not known. On NCCL a rank enqueues operations
ahead of its device: one that all have enqueued, and that is not the oldest open one of each, waits
for those who stand at another one.

Deviation from torch's own analyzer (``torch.distributed.flight_recorder``), which compares groups
one by one: there whoever waits behind another operation is blamed for the one that it has not
entered.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

from latecomer.runtime.explain.job import NEAR, Group, Job, Operation

State = Literal["absent", "open", "done", "unknown", "no dump"]
"""Of a rank in an operation: it has not entered it, is in it, is through, ..."""
NOT_THERE: tuple[State, ...] = ("absent", "unknown", "no dump")
BEFORE_ALL = -1  # the number that comes before a group's first: dumps count from 1, watches from 0


@dataclass(frozen=True)
class Wait:
    """Where a rank stands."""

    operation: Operation  # its oldest open one
    missing: frozenset[int]  # members that have not entered it, or may not have
    through: frozenset[int]  # members that have completed it


class Waits:
    """The graph of waits.

    Attributes:
        collectives: by rank, without sends and receives.
        at: what a rank did under a number of a group; several, if they are coalesced.
        of: by rank, where it stands; ranks with nothing open are missing.
        edges: by rank, whom it waits for.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.collectives: dict[int, list[Operation]] = {}
        self.at: dict[tuple[int, Group, int], list[Operation]] = defaultdict(list)
        self._last: dict[tuple[int, Group], int] = {}
        self._failed: set[tuple[int, int]] = set()  # by rank and record: ended, and not completed
        self._came: dict[tuple[Group, int], bool] = {}  # whether all members have entered it
        for rank, operations in job.operations.items():
            self.collectives[rank] = [each for each in operations if each.peer is None]
            for operation in self.collectives[rank]:
                self._note(operation)
        self._heed_statuses()
        self._heed_ends()
        self._find_failed()
        self._find_untold()

        self._open = {rank: self._oldest_open(rank) for rank in job.operations}
        self.of: dict[int, Wait] = {}
        for rank, oldest in self._open.items():
            if oldest is not None:
                self.of[rank] = self._wait(rank, oldest)
        self.edges = {rank: self._waits_for(rank, wait) for rank, wait in self.of.items()}
        for rank in job.operations.keys() - self.edges.keys():
            failed_by = self._failed_by(rank)
            if failed_by:
                self.edges[rank] = failed_by

    def state(self, rank: int, group: Group, sequence: int) -> State:
        """What a rank has done of a collective."""
        if rank not in self.job.operations:
            return "no dump"
        here = self.at.get((rank, group, sequence))
        if here:
            return "open" if any(self.is_open(each) for each in here) else "done"
        nothing_yet = BEFORE_ALL if self.job.is_whole[rank] else None
        last = self._last.get((rank, group), nothing_yet)
        if last is not None and sequence <= last:
            return "done"
        return "unknown" if last is None or rank in self.job.cut else "absent"

    def is_open(self, operation: Operation) -> bool:
        """Whether its rank is still in it, or has left it without a result."""
        return not operation.is_done or (operation.rank, operation.record) in self._failed

    def _note(self, operation: Operation) -> None:
        rank, group = operation.rank, operation.group
        self.at[rank, group, operation.sequence].append(operation)
        last = self._last.get((rank, group), operation.sequence)
        self._last[rank, group] = max(last, operation.sequence)

    def _heed_statuses(self) -> None:
        """A status tells what has left the buffer; unless it counts something else."""
        for (rank, group), last in self.job.enqueued.items():
            others = [
                self._last[member, group] for member in group.ranks if (member, group) in self._last
            ]
            if others and abs(max(others) - last) < NEAR:
                self._last.setdefault((rank, group), last)

    def _heed_ends(self) -> None:
        """Where one has completed what needs all, all have entered it, also who has not told so."""
        completed: dict[Group, int] = {}
        for rank in self.job.watched:
            for operation in self.collectives[rank]:
                if operation.is_done and operation.is_end_told and operation.needs_all:
                    last = completed.get(operation.group, operation.sequence)
                    completed[operation.group] = max(last, operation.sequence)
        for group, sequence in completed.items():
            for member in group.ranks:
                last = self._last.get((member, group), sequence)
                self._last[member, group] = max(last, sequence)

    def _find_failed(self) -> None:
        """On Gloo what has failed has ended, too: nothing that needs all ends before all came."""
        for rank in self.job.on_gloo:
            for operation in self.collectives[rank]:
                if operation.is_done and operation.needs_all and not self._have_all_come(operation):
                    self._failed.add((rank, operation.record))

    def _find_untold(self) -> None:
        """What nothing tells the end of has none before all have come.

        Where that is not known of all, a rank that has entered something since is through.
        """
        for rank, operations in self.job.operations.items():
            for operation in self.collectives[rank]:
                if operation.is_end_told:
                    continue
                is_last = operation is operations[-1]
                may_be_in_it = is_last and not self._is_known_of_all(operation)
                if may_be_in_it or not self._have_all_come(operation):
                    self._failed.add((rank, operation.record))

    def _have_all_come(self, operation: Operation) -> bool:
        group = operation.group
        place = (group, operation.sequence)
        if place not in self._came:
            states = (self.state(member, *place) for member in group.ranks)
            self._came[place] = "absent" not in states
        return self._came[place]

    def _is_known_of_all(self, operation: Operation) -> bool:
        """Whether it is known of all members that they have entered it, or have not."""
        states = (
            self.state(member, operation.group, operation.sequence)
            for member in operation.group.ranks
        )
        return not {"unknown", "no dump"} & set(states)

    def _oldest_open(self, rank: int) -> Operation | None:
        return next((each for each in self.job.operations[rank] if self.is_open(each)), None)

    def _wait(self, rank: int, operation: Operation) -> Wait:
        if operation.peer is not None:
            is_met = self._meets(operation, self._open.get(operation.peer))
            awaited = frozenset() if is_met else frozenset({operation.peer})
            return Wait(operation, awaited, frozenset())

        states = {
            member: self.state(member, operation.group, operation.sequence)
            for member in operation.group.ranks
            if member != rank
        }
        missing = frozenset(member for member, state in states.items() if state in NOT_THERE)
        through = frozenset(member for member, state in states.items() if state == "done")
        return Wait(operation, missing, through)

    def _meets(self, operation: Operation, other: Operation | None) -> bool:
        """Whether a send and a receive are each other's."""
        return (
            other is not None
            and other.peer == operation.rank
            and other.kind != operation.kind
            and other.group == operation.group
            and sum(map(int, other.signature[2:])) == sum(map(int, operation.signature[2:]))
        )

    def _waits_for(self, rank: int, wait: Wait) -> set[int]:
        operation = wait.operation
        have_all_come = bool(wait.through) and operation.needs_all
        if wait.missing or have_all_come:
            return set(wait.missing)
        waits_for: set[int] = set()
        if operation.peer is None and not wait.through:
            place = (operation.group, operation.sequence)
            for member in operation.group.ranks:
                stands_at = self._open.get(member)
                if member == rank or stands_at is None:
                    continue
                if (stands_at.group, stands_at.sequence) != place:
                    waits_for.add(member)
        if operation.group in self.job.guessed and not waits_for:
            return self.job.world - set(self.of)  # a member may not be known: who is idle?
        return waits_for

    def _failed_by(self, rank: int) -> set[int]:
        """For whom the last operation of a rank on Gloo, which has ended, may have failed."""
        if rank not in self.job.on_gloo or not self.collectives[rank]:
            return set()
        last = self.collectives[rank][-1]
        others = set(last.group.ranks) - {rank}
        by = {
            member
            for member in others
            if self.state(member, last.group, last.sequence) in ("absent", "no dump")
        }
        if last.group in self.job.guessed:
            by |= self.job.without_dump
        has_succeeded = last.needs_all and any(self._went_on(member, last) for member in others)
        return set() if has_succeeded else by

    def _went_on(self, rank: int, operation: Operation) -> bool:
        """Whether a rank has begun another collective after this one, which so was completed."""
        here = self.at.get((rank, operation.group, operation.sequence), [])
        return bool(here) and self.collectives[rank][-1].record > here[-1].record
