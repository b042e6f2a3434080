"""The door to the executor: proved schedules, the same on all ranks."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec

from latecomer.runtime.executor.program import rank_program
from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.runtime.work import RankProgram
from latecomer.verify.core.check import check
from latecomer.verify.core.format import read
from latecomer.verify.core.programs import Programs, deadlock_free, programs
from latecomer.verify.core.schedule import Schedule
from latecomer.verify.core.verdict import Report, Verdict
from latecomer.verify.errors import ArgumentError, ScheduleRefused
from latecomer.verify.output import encode
from latecomer.verify.renaming import renamed
from latecomer.verify.report.render import render

Late = int | Sequence[int] | None  # several: in the order of their arrival; None: as the file


def named(late: Late) -> tuple[int, ...]:
    """The ranks that ``late`` names."""
    if late is None:
        return ()
    return (late,) if isinstance(late, int) else tuple(late)


@dataclass(eq=False)
class Runnable:
    """What an executor runs: ranks, chunks, phases and the late ranks of ``schedule``."""

    schedule: Schedule
    name: str

    @property
    def digest(self) -> str:
        """A fingerprint of what the schedule does; ``meta`` does not enter."""
        bare = msgspec.structs.replace(self.schedule, meta={})
        digest = hashlib.sha256(encode(bare))
        if self.ranks_per_machine > 1:  # decides how late ranks are renamed, alike on all ranks
            digest.update(f"{self.ranks_per_machine} ranks per machine".encode())
        return digest.hexdigest()

    @property
    def ranks_per_machine(self) -> int:
        """How many ranks of a machine the schedule counts with; 1 where it knows no machines."""
        nodes = self.schedule.meta.get("nodes")
        if not isinstance(nodes, int) or nodes < 1 or self.schedule.ranks % nodes:
            return 1
        return self.schedule.ranks // nodes

    @cached_property
    def late(self) -> tuple[int, ...]:
        """The ranks the file takes to be late, in the order in which they arrive."""

        def arrival(rank: int) -> int:
            return [rank in phase.absent for phase in self.schedule.phases].index(False)

        return tuple(sorted(self.schedule.late, key=lambda rank: (arrival(rank), rank)))

    def late_ranks(self, late: Late) -> tuple[int, ...]:
        """``late`` as ranks in the order of their arrival; ArgumentError if it does not fit."""
        if late is None:
            return self.late
        late_ranks = named(late)
        n = self.schedule.ranks
        expected = len(self.late)

        in_range = all(0 <= rank < n for rank in late_ranks)
        if not in_range or len(set(late_ranks)) < len(late_ranks):
            raise ArgumentError("late", late, f"must be ranks in 0..{n - 1}, each once")
        if late_ranks and not expected:
            remedy = "Use a schedule made with: synth generate"
            raise ArgumentError("late", late, f"{self.name} has no late rank", remedy)
        if len(late_ranks) != expected:
            requirement = f"{self.name} is for {expected} late rank(s), not {len(late_ranks)}"
            remedy = (
                f"Name {expected}, in the order in which they arrive, or leave it out: {self.late}"
            )
            raise ArgumentError("late", late, requirement, remedy)
        return late_ranks

    def make(self) -> None:
        """Make, or see to it that there is, what :meth:`program` is quick with."""

    def program(self, rank: int, late: tuple[int, ...]) -> RankProgram:
        """What ``rank`` does with ``late`` as late ranks; raises what proving it may raise."""
        raise NotImplementedError


@dataclass(eq=False)
class Verified(Runnable):
    """A schedule with the report that proves it; made by ``load`` and nothing else."""

    report: Report

    def program(self, rank: int, late: tuple[int, ...]) -> RankProgram:
        """As for all; ScheduleRefused as :meth:`for_late`."""
        late_ranks = self.late_ranks(late)
        if late_ranks == self.late:
            return rank_program(self.schedule, rank)  # load has proved that its programs end
        schedule, programs_of_ranks = self._renamed(late_ranks)
        return rank_program(schedule, rank, programs_of_ranks)

    def for_late(self, late: Late) -> Schedule:
        """The schedule with the ranks ``late`` in the places of the file's late ranks.

        Ranks that have to make room take the places that become free; all others keep theirs. In
        a schedule for machines whole machines change places instead, and ranks within them, so
        that what was sent inside a machine still is. The ranks' programs under these names must
        be proved to end, else this is ScheduleRefused.
        """
        late_ranks = self.late_ranks(late)
        if late_ranks == self.late:
            return self.schedule
        schedule, _ = self._renamed(late_ranks)
        return schedule

    def _renamed(self, late: tuple[int, ...]) -> tuple[Schedule, Programs]:
        """As :meth:`for_late`, with the programs of all ranks that were proved to end."""
        if self.ranks_per_machine > 1 and len(late) == 1:
            new_names = self._rotated_machines(late[0])
        else:
            moved = sorted(set(late) - set(self.late))
            freed = sorted(set(self.late) - set(late))
            new_names = dict(zip((*self.late, *moved), (*late, *freed), strict=True))
        schedule = renamed(self.schedule, new_names)

        programs_of_ranks = programs(schedule)
        counterexample = deadlock_free(programs_of_ranks).counterexample
        if counterexample is not None:
            shown = "\n  ".join([counterexample.found, *counterexample.actions])
            raise ScheduleRefused(f"{self.name} with {late} as late ranks is not proved: {shown}")
        return schedule, programs_of_ranks

    def _rotated_machines(self, late: int) -> dict[int, int]:
        """New names of all ranks that make ``late`` the late one, and keep machines together."""
        per_machine = self.ranks_per_machine
        machines = self.schedule.ranks // per_machine
        from_machine, from_local_rank = divmod(self.late[0], per_machine)
        to_machine, to_local_rank = divmod(late, per_machine)

        names = {}
        for rank in range(self.schedule.ranks):
            machine, local_rank = divmod(rank, per_machine)
            new_machine = (machine + to_machine - from_machine) % machines
            new_local_rank = (local_rank + to_local_rank - from_local_rank) % per_machine
            names[rank] = new_machine * per_machine + new_local_rank
        return names


def load(source: str | os.PathLike[str] | Schedule | Verified) -> Verified:
    """Read (where it is a path) and prove a schedule.

    Raises:
        FormatError: the file is malformed.
        ScheduleRefused: a property is refuted or undecided; the message holds the report.

    Examples:
        >>> from latecomer import load, synth
        >>> verified = load(synth.generate(4))  # a Verified
        >>> verified.late, verified.for_late(1).late
        ((3,), (1,))
    """
    if isinstance(source, Verified):
        return source
    schedule = source if isinstance(source, Schedule) else read(source)
    name = "schedule" if isinstance(source, Schedule) else os.fspath(source)
    report = check(schedule)
    if report.verdict is not Verdict.PROVED:
        text = "a schedule that is not proved is never run\n"
        raise ScheduleRefused(text + render(name, schedule, report))
    return Verified(schedule, name, report)


def require_size(verified: Runnable, size: int) -> None:
    """Raise ScheduleRefused for a schedule for another number of ranks."""
    if size == 1:
        text = f"{verified.name} is a schedule for {verified.schedule.ranks} ranks"
        raise ScheduleRefused(
            f"{text}, and one rank needs no schedule; mode='auto' runs on any number of ranks"
        )
    if verified.schedule.ranks != size:
        raise ScheduleRefused(
            f"{verified.name} is a schedule for {verified.schedule.ranks} ranks, the group has "
            f"{size}; make one with: synth generate --n {size}"
        )


def agree(group: StoreExchange, schedules: Sequence[Runnable], late: tuple[int, ...]) -> None:
    """Compare schedules, and the late ranks to begin with, through the store (collective)."""
    digests = ",".join(verified.digest for verified in schedules)
    differing = group.differing("schedule", f"{digests} {late}")
    if not differing:
        return

    ranks = ", ".join(map(str, differing))
    their_digests, their_late = next(iter(differing.values())).split(" ", 1)
    if their_digests == digests:
        text = f"rank {group.rank} takes the ranks {late} to be late, rank(s) {ranks} {their_late}"
        raise ScheduleRefused(text)
    names = ", ".join(f"{verified.name} ({verified.digest[:12]})" for verified in schedules)
    raise ScheduleRefused(f"rank {group.rank} has {names}, but rank(s) {ranks} another schedule")
