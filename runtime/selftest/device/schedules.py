"""The schedules that ours run in the self-test, and what is predicted of each line of its table."""

from __future__ import annotations

from collections.abc import Iterable

import torch

import synth
from runtime.device import predict
from runtime.executor.load import load
from runtime.selftest.device.methods import What
from runtime.selftest.device.report import OURS, Row

CASE_CHUNKS = 3  # of the schedule for a late rank by which cases are checked


class Schedules:
    """What ours run: halving-doubling, direct exchange, and for a late rank by numbers of chunks.

    Attributes:
        verified: all of them, proved; a schedule is known by its number here.
    """

    def __init__(self, n: int, sizes: Iterable[int], machine: predict.Machine) -> None:
        self._machine = machine
        best = {predict.chunks(way, n, nbytes, machine) for way in OURS for nbytes in sizes}
        self._chunks = sorted(best | {CASE_CHUNKS})
        late = (synth.generate(n, chunks=k) for k in self._chunks)
        self.verified = [load(schedule) for schedule in (synth.rhd(n), synth.direct(n), *late)]

    def one_late(self, chunks: int, rank: int) -> What:
        """The schedule of so many chunks with ``rank`` late."""
        return What(2 + self._chunks.index(chunks), (rank,))

    def best(self, way: str, nbytes: int, late: int | None) -> What:
        """For the table: the best number of chunks if a rank is late, else halving-doubling."""
        if late is None:
            return What(0)
        n = self.verified[0].schedule.ranks
        return self.one_late(predict.chunks(way, n, nbytes, self._machine), late)

    def predicted(self, row: Row) -> predict.Range | None:
        """What is predicted for a row; nothing for machines without public numbers."""
        if row.shared or predict.machine_of(torch.cuda.get_device_name()) is None:
            return None
        if row.way in OURS:
            schedule = self.verified[self.best(row.way, row.nbytes, row.late).schedule].schedule
            late = row.late is not None
            return predict.ours(row.way, schedule, row.nbytes, self._machine, late=late)
        return predict.others(row.way, row.ranks, row.nbytes, self._machine)
