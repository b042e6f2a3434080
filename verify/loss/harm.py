"""The harm of one lost transfer, without running anything.

**Semantics of loss.** A lost transfer never happens at its receiver, who takes no notice and goes
on: a lost ``reduce`` adds nothing, a lost ``copy`` leaves the value that is there. The sender and
all other transfers are as ever, so that later transfers carry on what the loss has left. Nothing
comes late or twice: the transport drops what comes after its round is over, and duplicates.

**Theorem 1** (one loss; C, K, K2, R as in :mod:`latecomer.verify.loss.flow`). After the loss of a
reduce exactly the entries R x C are missing, and nothing is counted twice. After the loss of a copy
exactly R x (C \\ K) is missing, and exactly R x ((K \\ C) + K2) is counted more than once.

Proof. Counts at the end are numbers of live ways. The loss of a reduce removes the ways through
it, which are the only ones of the entries R x C, and adds none. The loss of a copy removes the
same, and lets live on what it would have overwritten: K, which goes where the copy would have gone,
to the ranks R. The contributions in both K and C so make up for what was removed, once or, in K2,
more than once; those of K that are not in C reach R by another way already, as every contribution
does. QED
"""

from __future__ import annotations

from collections import deque

import msgspec

from latecomer.verify.loss.flow import Chunk, DataFlow, added, run, start


class Harm(msgspec.Struct, frozen=True, gc=False):
    """What a set of lost transfers does to one chunk, as blocks (ranks, contributions) of masks.

    ``differ``: not all ranks end with the same sum.
    """

    missing: tuple[tuple[int, int], ...]
    twice: tuple[tuple[int, int], ...]
    differ: bool

    @property
    def entries(self) -> int:
        """How many entries are missing."""
        return sum(ranks.bit_count() * those.bit_count() for ranks, those in self.missing)


NONE = Harm((), (), False)
"""Of a loss that changes nothing."""


def harm_of_one(chunk: Chunk, flow: DataFlow) -> Harm:
    """The harm of losing this transfer alone (theorem 1)."""
    missing = flow.carried & ~flow.kept
    twice = flow.kept & ~flow.carried | flow.kept_twice
    if not flow.reach or not missing | twice:
        return NONE
    return Harm(
        ((flow.reach, missing),) if missing else (),
        ((flow.reach, twice),) if twice else (),
        flow.reach != chunk.everybody,
    )


def harm_of(chunk: Chunk, lost: frozenset[int]) -> Harm:
    """The harm of losing the transfers with these indices together: the chunk is run without."""
    values = start(chunk)
    deque(run(chunk, values, added, lost), maxlen=0)
    twice = _blocks([more for _, more in values])
    differ = len(set(values)) > 1
    if twice and not differ:  # the same more than once, but as often?
        width = 1 + sum(move.reduce for moves in chunk.rounds for move in moves)
        counts = [1 << width * rank for rank in range(chunk.ranks)]  # a reduce doubles at most
        deque(run(chunk, counts, int.__add__, lost), maxlen=0)
        differ = len(set(counts)) > 1
    return Harm(_blocks([chunk.everybody & ~some for some, _ in values]), twice, differ)


def _blocks(masks: list[int]) -> tuple[tuple[int, int], ...]:
    """Ranks with the same (non-empty) mask together."""
    ranks: dict[int, int] = {}
    for rank, mask in enumerate(masks):
        if mask:
            ranks[mask] = ranks.get(mask, 0) | 1 << rank
    return tuple((those, mask) for mask, those in ranks.items())
