"""What several lost transfers do together: bounds, and the worst, exact or left open on time-out.

Chunks do not interact, so a set of losses is a set for each chunk, and what is missing adds up.

**Theorem 2** (many losses; a right schedule, legend in :mod:`latecomer.verify.loss.flow`).

    a. Only entries in the blocks R x C of the lost transfers can be missing.
    b. Of one chunk at most n (n - 1) entries can be missing.
    c. If every copy brings at least what it overwrites (K within C, K2 empty), then nothing is ever
       counted twice, whatever is lost.
    d. If each transfer is lost with probability p, independently or not, then on average at most
       p times the mean way of an entry is missing, as a share of all entries. (The way of an entry
       is the number of transfers that it comes by.)

Proof. (a) Losses stop nothing but the lost transfers, and what copies no longer overwrite only adds
to a value; so the way of an entry is as good as without loss unless a lost transfer is on it.
(b) A rank starts with a contribution, a reduce leaves what is there, and a copy brings something,
by the same argument for its sender: no rank ends empty. (c) By induction over the transfers, each
value is part of what it is without loss: sums of parts are parts of the sum, and where a copy is
lost, there stays a part of K, and so of C. Without loss nothing is twice. (d) By (a) the missing
entries are at most the sum of the lost blocks, on average p times the sum of all blocks, in which
every entry is counted once for each transfer on its way. QED

The search for the most missing entries goes through sets in the order of block sizes, and leaves
out those that (a) and (b) show to be no worse than what was found.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import combinations

import msgspec

from latecomer.verify.loss.flow import Chunk, DataFlow
from latecomer.verify.loss.harm import Harm, harm_of, harm_of_one

Lost = frozenset[int]
"""Transfers by their index in ``schedule.table``."""


class TimeOut(Exception):
    """The time is over; internal, callers say *unknown*."""


class Clock:
    """A limit on the time of a whole search."""

    def __init__(self, limit_s: float) -> None:
        self._end_s = time.monotonic() + limit_s

    def check(self) -> None:
        """Raise :class:`TimeOut` when the time is over."""
        if time.monotonic() > self._end_s:
            raise TimeOut


class Worst(msgspec.Struct, frozen=True):
    """The most missing entries found, the losses that leave them missing, and a proved bound."""

    entries: int
    lost: Lost
    bound: int


def outline(chunk: Chunk, flows: Sequence[DataFlow], most: int) -> list[Worst]:
    """For at most 0, 1, .. ``most`` losses in this chunk: the worst single one, and the bound."""
    nothing = Worst(0, frozenset(), 0)
    if not flows:
        return [nothing] * (most + 1)
    blocks = sorted((flow.block for flow in flows), reverse=True)
    entries, lost = max((harm_of_one(chunk, flow).entries, -flow.move.index) for flow in flows)
    cap = chunk.ranks * (chunk.ranks - 1)
    bounds = [entries, *(min(cap, sum(blocks[:number])) for number in range(2, most + 1))]
    return [nothing, *(Worst(entries, frozenset([-lost]), bound) for bound in bounds[:most])]


def worst_of_chunk(chunk: Chunk, flows: Sequence[DataFlow], most: int, clock: Clock) -> list[Worst]:
    """The same searched through; when the time is over, the bounds stand in for the rest."""
    outlined = outline(chunk, flows, most)
    # Of no loss and of one the outline is exact.
    worst = outlined[:2]
    ordered = sorted(flows, key=lambda flow: -flow.block)
    for number in range(2, most + 1):
        search = _Search(chunk, ordered, number, worst[-1], clock)
        try:
            search.extend((), 0, [0] * chunk.ranks, 0)
            bound = search.entries
        except TimeOut:
            bound = outlined[number].bound
        worst.append(Worst(search.entries, search.lost, bound))
    return worst


class _Search:
    """Depth-first, the largest blocks first, through the sets of at most ``number`` losses."""

    def __init__(
        self, chunk: Chunk, flows: Sequence[DataFlow], number: int, known: Worst, clock: Clock
    ) -> None:
        self._chunk = chunk
        self._flows = flows
        self._number = number
        self._clock = clock
        self._cap = chunk.ranks * (chunk.ranks - 1)
        self.entries = known.entries
        self.lost = known.lost

    def extend(
        self, chosen: tuple[DataFlow, ...], begin: int, covered: list[int], size: int
    ) -> None:
        """Try all sets that add transfers from ``begin`` on; ``covered`` is the union of blocks.

        ``covered`` has a mask of contributions for each rank; ``size`` is how many entries it has.
        """
        left = self._number - len(chosen)
        for i in range(begin, len(self._flows)):
            # Theorem 2 (a) and (b): no more can be missing than the blocks have, nor than a chunk
            # has.
            gain = sum(flow.block for flow in self._flows[i : i + left])
            if min(self._cap, size + gain) <= self.entries:
                return  # and the blocks that follow are no larger
            self._clock.check()
            flow = self._flows[i]
            now = [
                mask | flow.carried if flow.reach >> rank & 1 else mask
                for rank, mask in enumerate(covered)
            ]
            sets = (*chosen, flow)
            total = sum(mask.bit_count() for mask in now)
            if total > self.entries:
                self._try(frozenset(flow.move.index for flow in sets))
            if left > 1:
                self.extend(sets, i + 1, now, total)

    def _try(self, lost: Lost) -> None:
        entries = harm_of(self._chunk, lost).entries
        if entries > self.entries:
            self.entries = entries
            self.lost = lost


class Total:
    """The worst for at most ``most`` losses over all chunks that were added."""

    def __init__(self, most: int) -> None:
        self._entries = [0] * (most + 1)
        self._bounds = [0] * (most + 1)
        self._lost: list[Lost] = [frozenset()] * (most + 1)

    def add(self, of_chunk: Sequence[Worst]) -> None:
        """Add a chunk, by its worst for at most 0, 1, .. losses."""
        entries = self._entries
        bounds = self._bounds
        lost = self._lost
        for total in range(len(entries) - 1, 0, -1):  # downwards: the chunk is counted once
            for here in range(1, total + 1):
                worst = of_chunk[here]
                rest = total - here
                if entries[rest] + worst.entries > entries[total]:
                    entries[total] = entries[rest] + worst.entries
                    lost[total] = lost[rest] | worst.lost
                bounds[total] = max(bounds[total], bounds[rest] + worst.bound)

    def worst(self) -> Worst:
        """What was found, with its bound."""
        return Worst(self._entries[-1], self._lost[-1], self._bounds[-1])


def covers(flows: Sequence[DataFlow]) -> bool:
    """Whether every copy brings at least what it overwrites (theorem 2 c)."""
    return not any(flow.kept & ~flow.carried or flow.kept_twice for flow in flows)


def fewest_losses(
    chunk: Chunk, most: int, is_bad: Callable[[Harm], bool], clock: Clock
) -> Lost | None:
    """A smallest set of at most ``most`` losses in this chunk with bad harm; None: there is none.

    Raises:
        TimeOut: nothing was found in time.
    """
    indices = [move.index for moves in chunk.rounds for move in moves]
    for number in range(1, most + 1):
        for lost in combinations(indices, number):
            clock.check()
            if is_bad(harm_of(chunk, frozenset(lost))):
                return frozenset(lost)
    return None
