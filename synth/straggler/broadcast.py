"""Pipelined broadcast of k chunks from one rank to n in k + ceil(log2 n) - 1 rounds, for every n.

Two ideas, each simple to check:

**A hypercube where n is a power of two.** Source: rotated binomial trees (Johnsson and Ho, "Optimum
broadcasting and personalized communication in hypercubes", 1989), the root at corner 0. In round t
all corners that differ in bit j = t mod d are partners, d being the dimension. The root gives its
partner chunk t. With i the distance from j downwards (cyclically) to the farthest set bit of v, a
corner v whose partner is not the root

    gives chunk t - i, which its partner does not have yet    if bit j of v is 0
    gives chunk t - d, the oldest on its way                  if bit j of v is 1

so each corner receives one new chunk per round and every chunk once. When the chunks run out the
root goes on with the last one, so what would be a later chunk is the last one again; it reaches
everybody by round k + d - 2.

**Two ranks in a corner, at the cost of one round.** A corner with two members receives at most one
chunk per round from outside, and passes on at most one. Of what came from outside, each member has
at most one chunk that the other lacks: its *pending* one. If the corner has to give a chunk that is
pending, that member gives it, else either can; the other member receives from outside, and in the
same round passes its own pending chunk to the first, whose port to receive is free. So it still has
at most one pending chunk, the new one. One more round at the end exchanges what is pending.

Between 2**d < n < 2**(d + 1) ranks there are enough corners for one or two ranks each, with the
root alone: k + d - 1 rounds, and one more, are k + ceil(log2 n) - 1. The lower bound.

**Some corners alone.** What a corner gives, and to whom, follows from the round and its number
alone; who of its members gives and receives, from what comes and goes there. So the moves of one
rank in all rounds need its own corner, its d partners, and the d partners of the root: O(log n)
corners for k + L rounds, whatever n is. All corners that are asked for go through the rounds
together, as arrays. A chunk of -1 stands for none.
"""

from __future__ import annotations

import numpy as np

from latecomer.verify.core.schedule import IntArray

Moves = tuple[IntArray, IntArray, IntArray]
"""Senders, receivers, chunks. Ranks are named as in :mod:`latecomer.synth.straggler.instance`."""
NONE = -1
"""Instead of a chunk."""


class Broadcast:
    """The moves of all ranks, or of one, in any round.

    Args:
        ranks: n, 2 or more; helpers are 0 .. n-2, the root is n-1.
        chunks: k, 1 or more.
        rank: only the moves of this one.

    Attributes:
        rounds: k + ceil(log2 n) - 1; in them every helper receives every chunk once, and each rank
            sends at most once and receives at most once in a round.
    """

    def __init__(self, ranks: int, chunks: int, rank: int | None = None) -> None:
        self.root = ranks - 1
        self.rank = rank
        self.dimensions = ranks.bit_length() - 1
        self._last = chunks - 1
        self._outside = chunks + self.dimensions - 1
        self.rounds = self._outside + (ranks != 2**self.dimensions)
        corners: IntArray = np.arange(2**self.dimensions)
        if rank is not None:
            own = self._corner_of(rank)
            ways = 1 << np.arange(self.dimensions)
            corners = np.unique([0, own, *ways, *(own ^ ways)])
        self._corners = corners
        self._go_through()

    def moves(self, t: int) -> Moves:
        """The moves of round ``t``."""
        bit = 1 << t % self.dimensions
        here = self._corners
        if self.rank is not None:
            own = self._corner_of(self.rank)
            here = np.array([own, own ^ bit])
        at = self._columns(here)
        there = self._columns(here ^ bit)
        receiver = self._receivers[t, at]
        giver = self._givers[t, at]
        src = np.concatenate([receiver, giver, self._givers[t, there]])
        dst = np.concatenate([giver, receiver, receiver])
        chunk = np.concatenate([self._passed[t, at], self._back[t, at], self._fresh[t, at]])
        real = chunk != NONE
        if self.rank is not None:
            real &= (src == self.rank) | (dst == self.rank)
        return src[real], dst[real], chunk[real]

    def receiver(self, t: int) -> int:
        """Who receives from the root in round ``t``, or would."""
        return int(self._receivers[t, self._beside(t)])

    def beside(self, t: int) -> int:
        """A helper that sends nothing in round ``t``, while the root gives: in the root's partner
        corner one that does not receive from the root, if it has two members.
        """
        return int(self._givers[t, self._beside(t)])

    def gives(self, t: int) -> bool:
        """Whether the root gives in round ``t``."""
        return bool(self._fresh[t, self._beside(t)] != NONE)

    def could_return(self, t: int, chunk: int) -> bool:
        """Whether ``beside(t)`` sends nothing in round ``t`` and holds ``chunk`` by then."""
        column = self._beside(t)
        helper = self.beside(t)
        received = (self._receivers[:t, column] == helper) & (self._fresh[:t, column] == chunk)
        received |= (self._receivers[:t, column] == helper) & (self._back[:t, column] == chunk)
        received |= (self._givers[:t, column] == helper) & (self._passed[:t, column] == chunk)
        return bool(self._back[t, column] == NONE and received.any())

    def _go_through(self) -> None:
        """All rounds of all corners, [round, corner]: the chunk that comes from outside, who would
        receive it and who would give one, and what the one passes to the other and back.
        """
        corners = self._corners
        shape = (self.rounds, len(self._corners))
        ways = 1 << np.arange(self.dimensions)
        around = np.unique([corners, *(corners ^ way for way in ways)])
        comes = self._coming(around)
        self._fresh = comes[:, np.searchsorted(around, corners)]
        partners = corners ^ self._bit(np.arange(self.rounds)[:, None])
        goes = np.take_along_axis(comes, np.searchsorted(around, partners), axis=1)
        self._receivers = np.empty(shape, np.int64)
        self._givers = np.empty(shape, np.int64)
        self._passed = np.empty(shape, np.int64)
        self._back = np.empty(shape, np.int64)
        second = corners + 2**self.dimensions - 2
        two = (corners > 0) & (second < self.root)
        receiver = np.where(corners > 0, corners - 1, self.root)
        giver = np.where(two, second, receiver)
        pending = np.full(len(corners), NONE)  # of both
        other = np.full(len(corners), NONE)
        for t, go in enumerate(goes):
            # Of two members one receives from outside and the other gives. ``pending`` is what the
            # first has and the second lacks, ``other`` the other way round.
            swap = two & (go != NONE) & (pending == go)  # who has just received it gives it on
            receiver, giver = np.where(swap, giver, receiver), np.where(swap, receiver, giver)
            pending, other = np.where(swap, other, pending), np.where(swap, pending, other)
            # Where nothing comes from outside and nothing is given, as in the last round, both
            # members have a port free to pass on what is pending.
            quiet = (self._fresh[t] == NONE) & (go == NONE)
            self._receivers[t] = receiver
            self._givers[t] = giver
            self._passed[t] = pending
            self._back[t] = np.where(quiet, other, NONE)
            pending = np.where(two, self._fresh[t], NONE)
            other = np.where(quiet, NONE, other)

    def _coming(self, corners: IntArray) -> IntArray:
        """For each round the chunk that comes to a corner from outside, if it is not there yet."""
        t = np.arange(self._outside)[:, None]
        chunk = self._given(corners ^ self._bit(t), t)
        last = chunk == self._last
        chunk[(chunk < 0) | (last & (np.cumsum(last, axis=0) > 1))] = NONE
        ending = np.full((self.rounds - self._outside, len(corners)), NONE)
        return np.concatenate([chunk, ending])

    def _given(self, corners: IntArray, t: IntArray) -> IntArray:
        """The chunk that each corner gives its partner in round ``t``; negative: none."""
        d = self.dimensions
        bit = self._bit(t)
        behind = np.where(corners & bit, d, _farthest(corners, t % d, d))
        behind[corners == 0] = 0  # the root
        chunk: IntArray = np.minimum(t - behind, self._last)
        chunk[corners == bit] = NONE  # its partner: the root has everything
        return chunk

    def _bit(self, t: IntArray) -> IntArray:
        return 1 << t % self.dimensions

    def _beside(self, t: int) -> int:
        """The column of the root's partner corner in round ``t``."""
        return int(np.searchsorted(self._corners, 1 << t % self.dimensions))

    def _columns(self, corners: IntArray) -> IntArray:
        return np.searchsorted(self._corners, corners)

    def _corner_of(self, rank: int) -> int:
        if rank == self.root:
            return 0
        return rank + 1 if rank < 2**self.dimensions - 1 else rank - 2**self.dimensions + 2


def _farthest(corners: IntArray, j: IntArray, d: int) -> IntArray:
    """The largest i in 1 .. d-1 with bit (j - i) mod d of the corner set; bit j is not."""
    rotated = (corners >> j | corners << (d - j)) & ((1 << d) - 1)  # bit j comes to place 0
    lowest = np.maximum(1, rotated & -rotated)
    farthest: IntArray = d - np.log2(lowest).astype(np.int64)
    return farthest
