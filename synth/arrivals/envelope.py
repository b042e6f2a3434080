"""What one would do without this package: schedules that any other has to beat, as schedules.

    ring, rhd, doubling  nothing before the last arrival, then a standard AllReduce of all ranks
    wait-then-complete   all ranks but the last to arrive do their ReduceScatter as soon as they are
                         there, all of it; then the last one's completion (StragglAR, arXiv
                         2505.23523, as in :mod:`latecomer.synth.straggler`). Whatever the last
                         arrival does not hide of the ReduceScatter is done with the last rank
                         standing by.

Each has its own number of chunks, so the rounds it waits are converted.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import msgspec

from latecomer.synth.arrivals.instance import Arrivals
from latecomer.synth.straggler.generate import StragglerAnswer
from latecomer.synth.straggler.instance import Instance
from latecomer.verify.core.schedule import Round, Schedule

Convert = Callable[[int], Fraction]
"""For a number of chunks, how many of its rounds take as long as one round of the instance."""


def started_late(standard: Schedule, arrivals: Arrivals, convert: Convert) -> Schedule:
    """A schedule for ranks on time, started at the last arrival."""
    k = standard.chunks
    waits = arrivals.with_chunks(k, convert(k)).waits([])
    return msgspec.structs.replace(standard, late=arrivals.late, phases=(*waits, *standard.phases))


class WaitThenComplete:
    """The ReduceScatter of all ranks but the last, as soon as they are there; then its completion.

    Attributes:
        last_rank: the one that arrives last (of several, the one with the greatest number).
        arrivals: the instance with this method's number of chunks.
        bound: rounds after the last arrival that it takes at the least.
    """

    def __init__(self, arrivals: Arrivals, chunks: int, convert: Convert) -> None:
        n = arrivals.ranks
        self.last_rank = max(range(n), key=lambda rank: (arrivals.arrival[rank], rank))
        self.arrivals = arrivals.with_chunks(chunks, convert(chunks))
        self._start = max(a for r, a in enumerate(self.arrivals.arrival) if r != self.last_rank)
        # to sum k chunks, n - 2 transfers each, n - 1 in a round at most; and a sum is a tree
        merging = max(-(-chunks * (n - 2) // (n - 1)), (n - 2).bit_length())
        ready = self._start + merging
        standing_by = max(0, ready - self.arrivals.last)
        self.bound = standing_by + Instance(n, chunks).bound

    def schedule(self, straggler: StragglerAnswer) -> Schedule:
        """Put together from a schedule in which ``last_rank`` is the one late rank."""
        *waiting, completion = straggler.schedule.phases
        merges = [transfers for phase in waiting for transfers in phase.rounds]
        rounds: list[Round] = [*[()] * self._start, *merges]
        rounds += [()] * (self.arrivals.last - len(rounds))
        return self.arrivals.schedule([*rounds, *completion.rounds])
