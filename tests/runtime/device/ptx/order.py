"""Causality order: what of others' accesses comes before what a thread does next.

PTX ISA 8.9.5: base causality order is made of program order (8.9.1) and of what *synchronizes*
(8.9.4); here that is

    barriers    all accesses of a block's threads before one come before all after it
    flags       what a thread has done, and knows of, before a release comes before all that a
                thread does after an acquire that reads what the release has stored, if both are
                morally strong (8.7): strong, and each in the other's scope
    launches    all accesses of a kernel come before all of the next one on its stream

A block counts *intervals* between barriers, and *moments* within them. What a thread knows of
another block is a number of intervals, all of which come before; and of single threads of it, who
have released since, up to which moment. That is exact, for any number of threads.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

MANY = 1023
"""In a stamp: more than one thread of the block."""


def stamp(block: int, interval: int, thread: int, moment: int) -> int:
    """An access as one number of 64 bits, which arrays of memory hold for each cell."""
    return block << 52 | interval << 32 | thread << 22 | moment


def block_of(stamps):
    """The block, of stamps or an array of them."""
    return stamps >> 52


def interval_of(stamps):
    """Which of the block's intervals."""
    return stamps >> 32 & 0xFFFFF


def thread_of(stamps):
    """The thread, or MANY."""
    return stamps >> 22 & 0x3FF


def moment_of(stamps):
    """When, as the block counts."""
    return stamps & 0x3FFFFF


@dataclass
class Knowledge:
    """What comes before: of each block all intervals below a number, of some threads a moment."""

    below: np.ndarray  # int64, by block
    beyond: dict[tuple[int, int], int] = field(default_factory=dict)

    @classmethod
    def none(cls, blocks: int) -> Knowledge:
        """Only what was there before all kernels, whose stamp is 0."""
        return cls(np.ones(blocks, np.int64))

    def copy(self) -> Knowledge:
        """Another one, the same."""
        return Knowledge(self.below.copy(), dict(self.beyond))

    def join(self, other: Knowledge) -> None:
        """Know what ``other`` knows, too."""
        np.maximum(self.below, other.below, out=self.below)
        for thread, moment in other.beyond.items():
            if moment > self.beyond.get(thread, -1):
                self.beyond[thread] = moment

    def has(self, access: int) -> bool:
        """Whether the access with this stamp comes before."""
        block = block_of(access)
        if interval_of(access) < self.below[block]:
            return True
        return self.beyond.get((block, thread_of(access)), -1) >= moment_of(access)


class BlockOrder:
    """A block's place in causality order, over all its launches.

    ``number``: among all blocks of all ranks. Threads that have acquired since the last barrier
    are ahead of the others.

    Who only looks at words, between barriers, stays in the same interval, so that nothing tells how
    often it has looked; ``looks`` are the (address, thread) of strong loads since the last barrier
    (see ``Memory.settle``).
    """

    def __init__(self, number: int, rank: int, blocks: int) -> None:
        self.number = number
        self.rank = rank
        self.interval = 2  # looks may count to the one before, which nobody may know
        self.moment = 0
        self.common = Knowledge.none(blocks)
        self.ahead: dict[int, Knowledge] = {}
        self.has_acted = False
        self.looks: set[tuple[int, int]] = set()

    def copy(self) -> BlockOrder:
        """Another one, the same."""
        other = BlockOrder(self.number, self.rank, 0)
        other.interval = self.interval
        other.moment = self.moment
        other.common = self.common.copy()
        other.ahead = {thread: known.copy() for thread, known in self.ahead.items()}
        other.has_acted = self.has_acted
        other.looks = set(self.looks)
        return other

    def key(self) -> tuple:
        """All of it, to tell states apart."""
        ahead = [(t, *_frozen(known)) for t, known in sorted(self.ahead.items())]
        acted = self.has_acted, tuple(sorted(self.looks))
        return self.interval, self.moment, acted, _frozen(self.common), tuple(ahead)

    def acts(self) -> int:
        """An access that others may have to come before or after; its moment."""
        self.has_acted = True
        self.moment += 1
        return self.moment

    def known_to(self, thread: int) -> Knowledge:
        """What comes before a thread's next access, but for its own and its block's."""
        return self.ahead.get(thread, self.common)

    def precedes(self, access: int, thread: int) -> bool:
        """Whether an access comes before the next one of a thread of this block."""
        if block_of(access) == self.number and (
            thread_of(access) == thread or interval_of(access) < self.interval
        ):
            return True
        return self.known_to(thread).has(access)

    def acquire(self, thread: int, shown: Knowledge) -> None:
        """What a release shows comes before all that this thread does from now on."""
        known = self.known_to(thread).copy()
        known.join(shown)
        if known.below.tolist() != self.known_to(thread).below.tolist() or known.beyond != (
            self.known_to(thread).beyond
        ):
            self.ahead[thread] = known

    def release(self, thread: int, moment: int) -> Knowledge:
        """What comes before a thread's release, itself included."""
        known = self.known_to(thread).copy()
        known.below[self.number] = self.interval
        known.beyond[self.number, thread] = moment
        return known

    def barrier(self) -> None:
        """All threads have come, and go on."""
        for known in self.ahead.values():
            self.common.join(known)
        self.ahead.clear()
        self.looks.clear()
        if self.has_acted:
            self.interval += 1
            self.has_acted = False
        self._forget_what_is_below()

    def _forget_what_is_below(self) -> None:
        """A single thread's moment says nothing more once all of its interval is known."""
        self.common.beyond = {
            thread: moment
            for thread, moment in self.common.beyond.items()
            if thread[0] != self.number
        }

    def begin_launch(self, before: list[BlockOrder]) -> None:
        """After all that these blocks, of the same rank, have done in the launch that ended."""
        for other in before:
            self.common.join(other.common)
            self.common.below[other.number] = other.interval
        self.interval += 1  # as at first

    def end_launch(self) -> None:
        """All threads have ended: none of the next launch is the same one."""
        self.has_acted = True
        self.barrier()


def _frozen(known: Knowledge) -> tuple:
    return known.below.tobytes(), tuple(sorted(known.beyond.items()))
