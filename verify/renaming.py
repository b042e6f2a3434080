"""The same schedule with other names for the ranks."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from verify.core.schedule import Phase, Round, Schedule, Transfer


def renamed(schedule: Schedule, new_name: Mapping[int, int]) -> Schedule:
    """The schedule with rank r called ``new_name[r]`` (r itself where not listed)."""

    def names(ranks: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted(new_name.get(rank, rank) for rank in ranks))

    def moved(transfers: Round) -> Round:
        return tuple(
            Transfer(new_name.get(t.src, t.src), new_name.get(t.dst, t.dst), t.chunk, t.op)
            for t in transfers
        )

    phases = tuple(
        Phase(phase.name, names(phase.absent), tuple(map(moved, phase.rounds)))
        for phase in schedule.phases
    )
    return msgspec.structs.replace(schedule, phases=phases, late=names(schedule.late))
