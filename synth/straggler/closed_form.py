"""A completion at the lower bound for every n and any number of chunks, in closed form.

The late rank broadcasts (see :mod:`synth.straggler.broadcast`): chunk t leaves it in round t, full.
For that it must have received the helpers' sum of chunk t by then, and one idle port per round is
just enough: no rank has anything to send to the root of a broadcast, so where the root gives, its
partner's port to send is idle. In round t the late rank

    gives     chunk t, full since the round before, and
    receives  the helpers' sum of chunk t + 1, from the idle helper, which therefore owns it.

Chunk 0 is the exception: no rank could send to the late rank before round 0. It gives its own raw
chunk, and the receiver, who owns chunk 0, makes it full; the late rank receives it back later,
full, when no sums are left to receive: at once if it is the only chunk. So R = k + ceil(log2 n) - 1
rounds for every k >= 1, as many as the broadcast has and as few as there can be (see
:mod:`verify.core.bounds`). StragglAR (arXiv 2505.23523) is at the bound for powers of two, with
k = n - 1.

The owners are few, those beside the root's partners, so the waiting phase is no balanced
ReduceScatter but the broadcast backwards, with every move turned into a reduce from receiver to
sender: the ways of a chunk form a tree with the late rank at the root, and sums flow up the tree.
The late rank is absent, so the last hop goes from the helper that would give it the sum directly to
the owner, whose port is as idle backwards as it was forwards. About as many rounds as a
ReduceScatter: R, and at most ceil(log2 n) - 1 more for the chunk that the root gives repeatedly.

All of it can be asked for one rank: its own program takes O(k log n) steps, and the programs of all
ranks together are the schedule.
"""

from __future__ import annotations

from functools import cached_property

from synth.straggler.broadcast import Broadcast, Move
from synth.straggler.instance import Instance
from verify.core.schedule import Op, Round, Transfer


class ClosedForm:
    """Both phases for one instance: duplex ports; matching too if n is a power of two.

    Args:
        instance: ranks and chunks.
        rank: only the transfers of this rank; empty rounds stay then, so that rounds are counted
            alike on all ranks.
    """

    def __init__(self, instance: Instance, rank: int | None = None) -> None:
        self._late, self._k, self._rank = instance.helpers, instance.chunks, rank
        self._broadcast = Broadcast(instance.ranks, instance.chunks)

    def completion(self) -> tuple[Round, ...]:
        """The rounds from the late rank's arrival on."""
        rounds = []
        for t in range(self._broadcast.rounds):
            op: Op = "reduce" if t == 0 else "copy"
            transfers = [Transfer(src, dst, chunk, op) for src, dst, chunk in self._moves(t)]
            if t + 1 < self._k:
                transfers.append(Transfer(self._broadcast.beside(t), self._late, t + 1, "reduce"))
            if t == self._way_back[0]:
                transfers.append(Transfer(self._way_back[1], self._late, 0, op))
            rounds.append(self._mine(transfers))
        return tuple(rounds)

    def waiting(self) -> tuple[Round, ...]:
        """The rounds in which the helpers reduce every chunk to its owner.

        What is chunk b of the broadcast is chunk b + 1 here, since the owner of chunk b + 1 is
        beside the receiver of chunk b; the broadcast's last chunk is chunk 0.
        """
        last, receiver, beside = self._k - 1, self._broadcast.receiver, self._broadcast.beside
        rounds: list[Round] = []
        for t in reversed(range(self._broadcast.rounds)):
            up = [
                Transfer(dst, src, (b + 1) % self._k, "reduce")
                for src, dst, b in self._moves(t)
                if src != self._late
            ]
            top = self._given(t)
            direct = top is not None and t < last and top != beside(t)
            if top is not None and direct:
                up.append(Transfer(top, beside(t), t + 1, "copy"))
            back = t == 0 and receiver(last) != receiver(0)
            if back:
                up.append(Transfer(receiver(last), receiver(0), 0, "copy"))
            if t > 0 or direct or back:  # else no rank has anything to do
                rounds.append(self._mine(up))
            if top is not None and t > last:
                rounds.append(self._mine([Transfer(top, receiver(last), 0, "reduce")]))
        return tuple(rounds) if self._late > 1 else ()

    def _moves(self, t: int) -> list[Move]:
        return list(self._broadcast.moves(t, self._rank))

    def _mine(self, transfers: list[Transfer]) -> Round:
        mine = self._rank
        return tuple(t for t in transfers if mine is None or mine in (t.src, t.dst))

    def _given(self, t: int) -> int | None:
        """To whom the late rank gives in round ``t``, if it does."""
        gives = self._broadcast.moves(t, self._late)
        return next((dst for src, dst, _ in gives if src == self._late), None)

    @cached_property
    def _way_back(self) -> tuple[int, int]:
        """When, and from whom, the late rank receives chunk 0."""
        broadcast = self._broadcast
        if self._k == 1:
            return 0, broadcast.receiver(0)  # two ranks exchange the only chunk
        return next(
            (t, helper)
            for t in range(self._k - 1, broadcast.rounds)
            for helper in [broadcast.beside(t)]
            if self._has_chunk_0(helper, t)
            and all(src != helper for src, _, _ in broadcast.moves(t, helper))
        )

    def _has_chunk_0(self, helper: int, t: int) -> bool:
        return any(
            (dst, chunk) == (helper, 0)
            for before in range(t)
            for _, dst, chunk in self._broadcast.moves(before, helper)
        )
