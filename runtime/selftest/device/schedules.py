"""The schedules that ours run in the self-test, and what is predicted of each line of its table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from latecomer import synth
from latecomer.runtime.device import predict
from latecomer.runtime.executor.load import load
from latecomer.runtime.selftest.device.methods import ScheduleChoice
from latecomer.runtime.selftest.device.report import OURS, TimedRow
from latecomer.synth.cost import Link
from latecomer.synth.twolevel.machine import Machine
from latecomer.synth.twolevel.ring import hierarchical_ring
from latecomer.synth.twolevel.staged import staged

CASE_CHUNKS = 3  # of the schedule for a late rank by which cases are checked


class TestedSchedules:
    """What ours run: halving-doubling, direct exchange, and for a late rank by numbers of chunks.

    For several machines there are two in stages, too: the hierarchical ring, and one for a late
    rank.

    Attributes:
        verified: all of them, proved; a schedule is known by its index here.
    """

    __test__ = False  # no test, for pytest

    halving_doubling = ScheduleChoice(0)
    direct = ScheduleChoice(1)

    def __init__(
        self, ranks: int, sizes: Iterable[int], machine: predict.GpuMachine, machines: int
    ) -> None:
        """``sizes``: bytes of the tensors of the table, for which ``machine`` says the best."""
        self._ranks = ranks
        self._machines = machines
        self._machine = machine
        chunk_counts = {CASE_CHUNKS}
        for nbytes in sizes:
            for way in OURS:
                chunk_counts.add(predict.chunks(way, ranks, nbytes, machine))
        self._chunk_counts = sorted(chunk_counts)
        schedules = [synth.rhd(ranks), synth.direct(ranks)]
        self._first_late = len(schedules)
        schedules += [synth.generate(ranks, chunks=count) for count in self._chunk_counts]
        self._first_in_stages = len(schedules)
        if machines > 1:
            link = Link(alpha_s=0.0, bandwidth=1.0)  # what is made does not depend on it
            of_ranks = Machine(machines, ranks // machines, 1, inner=link, outer=link)
            between = synth.generate(machines)
            schedules += [hierarchical_ring(of_ranks), staged(of_ranks, ranks - 1, between)]
        self.verified = [load(schedule) for schedule in schedules]

    def one_late(self, chunks: int, rank: int) -> ScheduleChoice:
        """The schedule of so many chunks with ``rank`` late."""
        return ScheduleChoice(self._first_late + self._chunk_counts.index(chunks), (rank,))

    def in_stages(self, late: int | None) -> ScheduleChoice:
        """That for a late rank, or for none."""
        if late is None:
            return ScheduleChoice(self._first_in_stages)
        return ScheduleChoice(self._first_in_stages + 1, (late,))

    def cases(self, way: str) -> Iterator[tuple[str, ScheduleChoice, int]]:
        """What is checked of a way of ours: name, schedule, and the rank that is held up."""
        last = self._ranks - 1
        if way == "stages":
            yield "hierarchical ring", self.in_stages(None), last
        else:
            yield "halving-doubling", self.halving_doubling, last
            yield "direct", self.direct, last
        for rank in range(self._ranks):
            choice = self.one_late(CASE_CHUNKS, rank)
            yield "one late", self.in_stages(rank) if way == "stages" else choice, rank

    def best(self, way: str, nbytes: int, late: int | None) -> ScheduleChoice:
        """For the table: the best number of chunks if a rank is late, else halving-doubling."""
        if way == "stages":
            return self.in_stages(late)
        if late is None:
            return self.halving_doubling
        return self.one_late(predict.chunks(way, self._ranks, nbytes, self._machine), late)

    def chunks(self, choice: ScheduleChoice) -> int:
        """Into how many chunks the chosen schedule divides a tensor."""
        return self.verified[choice.schedule].schedule.chunks

    def predicted(self, row: TimedRow) -> predict.Range | None:
        """What is predicted for a row; nothing for machines without public numbers, or several."""
        if row.shared or self._machines > 1:
            return None
        if predict.machine_of(torch.cuda.get_device_name()) is None:
            return None
        if row.way not in OURS:
            return predict.others(row.way, row.ranks, row.nbytes, self._machine)
        schedule = self.verified[self.best(row.way, row.nbytes, row.late).schedule].schedule
        return predict.ours(row.way, schedule, row.nbytes, self._machine, late=row.late is not None)
