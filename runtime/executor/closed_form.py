"""The closed form for one late rank, of which a rank makes no more than its own part.

Whoever is late takes the position of the last rank, and each rank after it the position before its
own. So a rank has at most three positions, whoever is late: its own, the one before, and the last.
What is done there is made once, for any number of ranks in O(chunks log ranks); another late rank
changes nothing but the peers' names.

What runs must be what was proved. So the whole schedule is made besides, ``verify`` proves it, and
the parts must be its parts, transfer by transfer; else nothing runs. That takes time and memory in
proportion to ranks times chunks, so it has a limit (``PROVED``). Beyond it nothing is compared at
run time: that the whole is right is a theorem for all numbers of ranks and chunks, and that the
parts are its parts is tested (docs/explanation/trust.md).
"""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np

from latecomer.runtime.executor.load import Runnable, Verified, load
from latecomer.runtime.executor.program import rank_program
from latecomer.runtime.host import host
from latecomer.runtime.work import RankProgram
from latecomer.verify.core.schedule import IntArray, Phase, Schedule
from latecomer.verify.errors import ScheduleRefused

PROVED = 2**18
"""Ranks times chunks up to which the whole is made and proved: 1,024 ranks with 256 chunks.

There it takes 0.7 s of an idle core and 110 MB, once, in the background; with 64 ranks 70 ms. So it
is done for all that a job of up to 1,024 ranks runs.
"""

KEPT_PROGRAMS = 64  # of a few groups, in all numbers of chunks


class ClosedFormPart(Runnable):
    """What ``rank`` does among ``ranks`` for one number of chunks; any thread."""

    def __init__(self, ranks: int, rank: int, chunks: int) -> None:
        late = (ranks - 1,)
        phases = Phase("reduce_scatter", late, ()), Phase("completion", (), ())
        bare = Schedule(ranks=ranks, chunks=chunks, late=late, phases=phases)
        super().__init__(bare, f"one late, k = {chunks}")
        self._rank = rank
        self._programs: dict[int, RankProgram] = {}  # by position
        self._lock = host.Lock()

    def make(self) -> None:
        """Make what this rank does in its positions, unless it is there already.

        ScheduleRefused if the whole is not proved, or a part is not what the whole has there.
        """
        with self._lock:
            if not self._programs:
                self._programs = proved_programs(
                    ranks=self.schedule.ranks, rank=self._rank, chunks=self.schedule.chunks
                )

    def program(self, rank: int, late: tuple[int, ...]) -> RankProgram:
        """Its part with this late rank; ``rank`` is its own."""
        assert rank == self._rank
        self.make()
        (late_rank,) = late
        in_time = [helper for helper in range(self.schedule.ranks) if helper != late_rank]
        rank_at = [*in_time, late_rank]  # by position
        position = rank_at.index(rank)

        program = self._programs[position]
        ends = tuple(replace(end, peer=rank_at[end.peer]) for end in program.ends)
        return replace(program, ends=ends)


@functools.lru_cache(KEPT_PROGRAMS)
def proved_programs(ranks: int, rank: int, chunks: int) -> dict[int, RankProgram]:
    """What a rank does in its positions, by position, the last rank late; to be read only.

    Kept, since an elastic job connects anew now and then. ScheduleRefused if the whole is not
    proved, or a part is not what the whole has there.
    """
    from latecomer.synth.straggler.own import own_part

    positions = {ranks - 1, rank, rank - 1} - {-1}
    parts = {position: own_part(ranks, position, chunks) for position in positions}

    if ranks * chunks <= PROVED:
        proved = proved_whole(ranks, chunks).schedule
        for position, part in parts.items():
            require_part(part, position, proved)

    return {position: rank_program(part, position, alone=True) for position, part in parts.items()}


def proved_whole(ranks: int, chunks: int) -> Verified:
    """The closed form of all ranks, the last of them late; ScheduleRefused if it is not proved."""
    from latecomer.synth.straggler.own import whole

    return load(whole(ranks, chunks))


def require_part(part: Schedule, rank: int, proved: Schedule) -> None:
    """ScheduleRefused if ``part`` is not what ``rank`` does in a schedule that is proved."""
    rows = _rows_of_rank(part, rank)
    expected = _rows_of_rank(proved, rank)
    is_alike = _shape(part) == _shape(proved) and np.array_equal(rows, expected)
    has_others = len(rows) != len(part.table.src)  # transfers in which the rank has no part

    if not is_alike or has_others:
        raise ScheduleRefused(
            f"what rank {rank} of {proved.ranks} would do for {proved.chunks} chunks is not its "
            "part of the schedule that is proved; a schedule that is not proved is never run"
        )


def _rows_of_rank(schedule: Schedule, rank: int) -> IntArray:
    """A row for each transfer of ``rank``: round, sender, receiver, chunk, whether it is added.

    Sorted: in a round without hazards, as a proved one is, the order of transfers does not matter.
    """
    table = schedule.table
    columns = [table.round, table.src, table.dst, table.chunk, table.reduce.astype(np.int64)]
    rows: IntArray = np.stack(columns, axis=1)[(table.src == rank) | (table.dst == rank)]
    in_order: IntArray = rows[np.lexsort(rows.T[::-1])]
    return in_order


def _shape(schedule: Schedule) -> list[tuple[str, tuple[int, ...], int]]:
    """The phases: to which of them a round belongs follows from their lengths."""
    return [(phase.name, phase.absent, len(phase.rounds)) for phase in schedule.phases]
