"""A completion at the lower bound for every n and any number of chunks, in closed form.

The late rank broadcasts (see :mod:`latecomer.synth.straggler.broadcast`): chunk t leaves it in
round t, full. For that it must have received the helpers' sum of chunk t by then, and one idle port
per round is just enough: no rank has anything to send to the root of a broadcast, so where the root
gives, its partner's port to send is idle. In round t the late rank

    gives     chunk t, full since the round before, and
    receives  the helpers' sum of chunk t + 1, from the idle helper, which therefore owns it.

Chunk 0 is the exception: no rank could send to the late rank before round 0. It gives its own raw
chunk, and the receiver, who owns chunk 0, makes it full; the late rank receives it back later,
full, when no sums are left to receive: at once if it is the only chunk. So R = k + ceil(log2 n) - 1
rounds for every k >= 1, as many as the broadcast has and as few as there can be (see
:mod:`latecomer.verify.core.bounds`). StragglAR (arXiv 2505.23523) is at the bound for powers of
two, with k = n - 1.

The owners are few, those beside the root's partners, so the waiting phase is no balanced
ReduceScatter but the broadcast backwards, with every move turned into a reduce from receiver to
sender: the ways of a chunk form a tree with the late rank at the root, and sums flow up the tree.
The late rank is absent, so the last hop goes from the helper that would give it the sum directly to
the owner, whose port is as idle backwards as it was forwards. About as many rounds as a
ReduceScatter: R, and at most ceil(log2 n) - 1 more for the chunk that the root gives repeatedly. A
single chunk has one owner, and a binomial tree takes its ceil(log2 (n - 1)) rounds, the fewest that
n - 1 ranks can be summed up in.

All of it can be asked for one rank: its own program takes O(k log n) steps, and the programs of all
ranks together are the schedule.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from latecomer.synth.straggler.broadcast import Broadcast
from latecomer.synth.straggler.instance import Instance
from latecomer.verify.arrays import ArrayRounds, Columns


class ClosedForm:
    """Both phases for one instance: duplex ports; matching too if n is a power of two.

    Args:
        instance: ranks and chunks.
        rank: only the transfers of this rank; empty rounds stay then, so that rounds are counted
            alike on all ranks.
    """

    def __init__(self, instance: Instance, rank: int | None = None) -> None:
        self._late = instance.helpers
        self._k = instance.chunks
        self._rank = rank
        self._broadcast = Broadcast(instance.ranks, instance.chunks, rank)

    def completion(self) -> ArrayRounds:
        """The rounds from the late rank's arrival on."""
        rounds = []
        for t in range(self._broadcast.rounds):
            src, dst, chunk = self._broadcast.moves(t)
            moves = [(src, dst, chunk, np.full(len(src), t == 0))]
            if t + 1 < self._k:
                moves.append(_one(self._broadcast.beside(t), self._late, t + 1, reduce=True))
            if t == self._way_back[0]:
                moves.append(_one(self._way_back[1], self._late, 0, reduce=t == 0))
            rounds.append(self._mine(moves))
        return ArrayRounds(rounds)

    def waiting(self) -> ArrayRounds:
        """The rounds in which the helpers reduce every chunk to its owner.

        What is chunk b of the broadcast is chunk b + 1 here, since the owner of chunk b + 1 is
        beside the receiver of chunk b; the broadcast's last chunk is chunk 0.
        """
        if self._k == 1 or self._late == 1:
            return self._tree()
        last = self._k - 1
        receiver = self._broadcast.receiver
        beside = self._broadcast.beside
        rounds: list[Columns] = []
        for t in reversed(range(self._broadcast.rounds)):
            src, dst, chunk = self._broadcast.moves(t)
            up = src != self._late
            moves = [(dst[up], src[up], (chunk[up] + 1) % self._k, np.full(up.sum(), True))]
            top = receiver(t)
            gives = self._broadcast.gives(t)
            # The late rank is absent, so what would go to it goes to the owner. A copy: what has
            # come up to the top of a chunk's tree is the sum of all helpers, the owner among them.
            direct = gives and t < last and top != beside(t)
            if direct:
                moves.append(_one(top, beside(t), t + 1, reduce=False))
            # Chunk 0 is the exception: it is owned by the helper that the late rank gives it to.
            back = t == 0 and receiver(last) != receiver(0)
            if back:
                moves.append(_one(receiver(last), receiver(0), 0, reduce=False))
            if t > 0 or direct or back:  # else no rank has anything to do
                rounds.append(self._mine(moves))
            # The last chunk leaves the root several times, so its sum comes up in as many parts.
            if gives and t > last:
                rounds.append(self._mine([_one(top, receiver(last), 0, reduce=True)]))
        return ArrayRounds(rounds)

    def _tree(self) -> ArrayRounds:
        """A binomial tree of the helpers to helper 0, who owns the only chunk."""
        rounds = []
        for j in range((self._late - 1).bit_length()):
            senders = range(1 << j, self._late, 2 << j)
            ends = senders if self._rank is None else (self._rank, self._rank + (1 << j))
            src = np.array([rank for rank in ends if rank in senders], np.int64)
            moves = (src, src - (1 << j), np.zeros_like(src), np.ones(len(src), np.bool_))
            rounds.append(self._mine([moves]))
        return ArrayRounds(rounds)

    def _mine(self, moves: list[Columns]) -> Columns:
        src, dst, chunk, reduce = (np.concatenate(column) for column in zip(*moves, strict=True))
        if self._rank is None:
            return src, dst, chunk, reduce
        mine = (src == self._rank) | (dst == self._rank)
        return src[mine], dst[mine], chunk[mine], reduce[mine]

    @cached_property
    def _way_back(self) -> tuple[int, int]:
        """When, and from whom, the late rank receives chunk 0."""
        broadcast = self._broadcast
        if self._k == 1:
            return 0, broadcast.receiver(0)  # two ranks exchange the only chunk
        last = range(self._k - 1, broadcast.rounds)
        t = next(t for t in last if broadcast.could_return(t, 0))
        return t, broadcast.beside(t)


def _one(src: int, dst: int, chunk: int, *, reduce: bool) -> Columns:
    """A single transfer."""
    return np.array([src]), np.array([dst]), np.array([chunk]), np.array([reduce])
