"""The same schedule with other names for the ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from latecomer.verify.arrays import ArrayRounds, phase, with_table
from latecomer.verify.core.schedule import Round, Schedule, Transfer


def renamed(schedule: Schedule, new_name: Mapping[int, int]) -> Schedule:
    """The schedule with rank r called ``new_name[r]`` (r itself where not listed).

    Examples:
        >>> from latecomer import synth
        >>> from latecomer.verify.renaming import renamed
        >>> renamed(synth.generate(4), {3: 0, 0: 3}).late
        (0,)
    """

    def names(ranks: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted(new_name.get(rank, rank) for rank in ranks))

    def moved(rounds: Sequence[Round]) -> Sequence[Round]:
        if isinstance(rounds, ArrayRounds):
            every = np.array([new_name.get(rank, rank) for rank in range(schedule.ranks)])
            return rounds.renamed(every.__getitem__)
        return tuple(
            tuple(
                Transfer(new_name.get(t.src, t.src), new_name.get(t.dst, t.dst), t.chunk, t.op)
                for t in transfers
            )
            for transfers in rounds
        )

    phases = tuple(phase(p.name, names(p.absent), moved(p.rounds)) for p in schedule.phases)
    return with_table(msgspec.structs.replace(schedule, phases=phases, late=names(schedule.late)))
