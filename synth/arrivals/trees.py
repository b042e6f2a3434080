"""Who adds up what for whom: for each chunk a tree of merges, so that all ranks have equal work.

Every rank but one sends its partial sum of a chunk once, to its *parent*, when all its own children
have sent theirs; the rank without a parent is the *root*, the first to hold the full sum. So each
chunk takes n - 1 merges, all of them one-way (the last may be an exchange), then n - 1 copies less
the exchange: not one transfer more than needed. What is left to choose is balance: a rank receives
one thing per round, so each rank's children, over all chunks, should fill the rounds it has.

Source of the question: StragglAR (arXiv 2505.23523), where each helper collects one chunk and the
wait must hide all of that. Deviation: the work is dealt out in stages, one per interval between
arrivals. In each, chunk after chunk is given to the present ranks with the most free rounds, which
collect the partial sums that are live (not yet sent on); a rank that runs out of rounds hands what
it has to the next (as in McNaughton's wrap-around rule for machines of unequal speed). In the last
stage the rounds needed for copies are set aside first.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from latecomer.synth.arrivals.instance import Arrivals

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Trees:
    """A tree of merges for each chunk.

    Attributes:
        parent: [rank, chunk], the rank that it sends its partial sum to; -1 at the root.
    """

    parent: IntArray

    @property
    def roots(self) -> IntArray:
        """For each chunk the first rank to hold the full sum."""
        roots: IntArray = np.argmax(self.parent < 0, axis=0)
        return roots

    def children(self) -> IntArray:
        """[rank, chunk]: how many partial sums the rank waits for."""
        n, k = self.parent.shape
        number = np.zeros((n, k), np.int64)
        rank, chunk = np.nonzero(self.parent >= 0)
        np.add.at(number, (self.parent[rank, chunk], chunk), 1)
        return number


def balanced(arrivals: Arrivals, *, staged: bool, seed: int) -> Trees:
    """Trees in which every rank has about as much to receive as it has rounds.

    Args:
        arrivals: who is there when.
        staged: deal in stages; or all at once, each rank having as many rounds as it is there.
        seed: decides whose turn it is among equals.
    """
    dealer = _Dealer(arrivals, seed)
    last = arrivals.last
    if staged:
        for start, end in pairwise(arrivals.times):
            dealer.deal_while_waiting(start, end - start)
    rounds = max(arrivals.chunks, *(arrivals.bandwidth_bound(a) for a in arrivals.times))
    dealer.deal_rest([rounds + (0 if staged else last - a) for a in arrivals.arrival])
    return Trees(dealer.parent)


class _Dealer:
    """Gives merges to ranks.

    Attributes:
        parent: as in :class:`Trees`; -1 where nothing is decided yet.
        live: for each chunk the ranks whose partial sum has no parent yet.
    """

    def __init__(self, arrivals: Arrivals, seed: int) -> None:
        self.arrivals = arrivals
        n = arrivals.ranks
        k = arrivals.chunks
        self.parent: IntArray = np.full((n, k), -1, np.int64)
        self.live = [set(range(n)) for _ in range(k)]
        turns = np.arange(n)
        if seed:
            np.random.default_rng(seed).shuffle(turns)
        self.turn: list[int] = turns.tolist()

    def deal_while_waiting(self, start: int, rounds: int) -> None:
        """Let the ranks present in round ``start`` merge for ``rounds`` rounds, chunk by chunk."""
        free = {r: rounds for r, a in enumerate(self.arrivals.arrival) if a <= start}
        for chunk, live in enumerate(self.live):
            here = live.intersection(free)
            while len(here) > 1:
                receiver = max(here, key=lambda r: self._preference(r, chunk, free))
                taken = min(len(here) - 1, free[receiver])
                if taken == 0:
                    break
                here -= self._merge(chunk, receiver, here, taken, free)

    def deal_rest(self, rounds: list[int]) -> None:
        """Give out all merges that are left to ranks that have so many rounds, copies included."""
        k = self.arrivals.chunks
        # Each rank receives a copy of every chunk, but of those it is the root of.
        free = {r: available - k for r, available in enumerate(rounds)}
        for chunk, live in enumerate(self.live):
            while len(live) > 1:
                receiver = max(live, key=lambda r: self._preference(r, chunk, free))
                merges = len(live) - 1
                is_root = free[receiver] + 1 >= merges  # a root needs no copy: one round more
                # No rank has a round left for it: all get one more.
                if free[receiver] <= 0 and not is_root:
                    free = {r: available + 1 for r, available in free.items()}
                    continue
                taken = merges if is_root else free[receiver]
                self._merge(chunk, receiver, live, taken, free)
                free[receiver] += is_root

    def _merge(
        self, chunk: int, receiver: int, live: set[int], taken: int, free: dict[int, int]
    ) -> set[int]:
        """``receiver`` collects ``taken`` partial sums, of the busiest ranks; returns those."""
        others = sorted(live - {receiver}, key=lambda r: self._preference(r, chunk, free))
        children = set(others[:taken])
        self.parent[list(children), chunk] = receiver
        self.live[chunk] -= children
        free[receiver] -= taken
        return children

    def _preference(self, rank: int, chunk: int, free: dict[int, int]) -> tuple[int, int, int]:
        """Who should collect ``chunk``: has free rounds, was there early, has its turn."""
        turn = (self.turn[rank] - chunk) % self.arrivals.ranks
        return free[rank], -self.arrivals.arrival[rank], -turn
