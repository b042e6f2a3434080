"""The closed form for one late rank, of which a rank makes no more than its own part.

Whoever is late takes the place of the last rank, and each rank after it the place before its own.
So a rank has at most three places, whoever is late: its own, the one before, and the late one's.
What is done there is made once, for any number of ranks in O(chunks log ranks); another late rank
changes nothing but the peers' names. It is right by a theorem (see straggler.md); where it is
small, ``verify`` proves the whole of it here besides, before any part is used.
"""

from __future__ import annotations

import threading
from dataclasses import replace

from runtime.executor.load import Runnable, load
from runtime.executor.program import RankProgram, rank_program
from verify.core.schedule import Phase, Schedule

PROVED = 2**9
"""Ranks times chunks up to which the whole is proved: some hundredths of a second."""


class ClosedForm(Runnable):
    """What ``rank`` does among ``ranks`` for one number of chunks; any thread."""

    def __init__(self, ranks: int, rank: int, chunks: int) -> None:
        late = (ranks - 1,)
        phases = Phase("reduce_scatter", late, ()), Phase("completion", (), ())
        bare = Schedule(ranks=ranks, chunks=chunks, late=late, phases=phases)
        super().__init__(bare, f"one late, k = {chunks}")
        self._rank, self._places = rank, dict[int, RankProgram]()
        self._lock = threading.Lock()

    def make(self) -> None:
        """Make what this rank does in its places, unless it is there already."""
        from synth.straggler.generate import generate
        from synth.straggler.own import own_part

        n, k = self.schedule.ranks, self.schedule.chunks
        with self._lock:
            if self._places:
                return
            if n * k <= PROVED:
                load(generate(n, chunks=k, owners="free"))
            self._places = {
                place: rank_program(own_part(n, place, k), place, alone=True)
                for place in {n - 1, self._rank, self._rank - 1} - {-1}
            }

    def program(self, rank: int, late: tuple[int, ...]) -> RankProgram:
        """Its part with this late rank; ``rank`` is its own."""
        assert rank == self._rank
        self.make()
        (absent,), last = late, self.schedule.ranks - 1
        real = [*(place + (place >= absent) for place in range(last)), absent]
        made = self._places[last if rank == absent else rank - (rank > absent)]
        return replace(made, ends=tuple(replace(end, peer=real[end.peer]) for end in made.ends))
