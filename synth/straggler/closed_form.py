"""A completion at the lower bound for every n and any number of chunks, in closed form.

The late rank broadcasts (see :mod:`synth.straggler.broadcast`): chunk t leaves it in round t, full.
For that it must have received the helpers' sum of chunk t by then, and one idle port per round is
just enough: no rank has anything to send to the root of a broadcast, so where the root gives, its
partner's port to send is idle. In round t the late rank

    gives     chunk t, full since the round before, and
    receives  the helpers' sum of chunk t + 1, from the idle helper, which therefore owns it.

Chunk 0 is the exception: no rank could send to the late rank before round 0. It gives its own raw
chunk, and the receiver, who owns chunk 0, makes it full; the late rank receives it back later,
full, when no sums are left to receive. So R = k + ceil(log2 n) - 1 rounds, as many as the
broadcast has and as few as there can be (see :mod:`verify.core.bounds`). StragglAR (arXiv
2505.23523) is at the bound for powers of two.

The owners are few, those beside the root's partners, so the waiting phase is no balanced
ReduceScatter but the broadcast backwards, with every move turned into a reduce from receiver to
sender: the ways of a chunk form a tree with the late rank at the root, and sums flow up the tree.
The late rank is absent, so the last hop goes from the helper that would give it the sum directly to
the owner, whose port is as idle backwards as it was forwards. About as many rounds as a
ReduceScatter: R, and at most ceil(log2 n) - 1 more for the chunk that the root gives repeatedly.
"""

from __future__ import annotations

from synth.straggler.broadcast import Broadcast
from synth.straggler.instance import Instance
from verify.core.schedule import Op, Round, Transfer


class ClosedForm:
    """Both phases for one instance: duplex ports; matching too if n is a power of two."""

    def __init__(self, instance: Instance) -> None:
        self._late, self._k = instance.helpers, instance.chunks
        broadcast = Broadcast(instance.ranks, instance.chunks)
        self._rounds, self._beside = broadcast.rounds, broadcast.beside
        given = (move for moves in self._rounds for move in moves if move[0] == self._late)
        self._receivers = [dst for _, dst, _ in given][: self._k]
        """To whom the late rank gives each chunk first."""

    def completion(self) -> tuple[Round, ...]:
        """The rounds from the late rank's arrival on."""
        back_in, back_from = self._way_back()
        rounds = []
        for t, moves in enumerate(self._rounds):
            op: Op = "reduce" if t == 0 else "copy"
            transfers = [Transfer(src, dst, chunk, op) for src, dst, chunk in moves]
            if t + 1 < self._k:
                transfers.append(Transfer(self._beside[t], self._late, t + 1, "reduce"))
            if t == back_in:
                transfers.append(Transfer(back_from, self._late, 0, op))
            rounds.append(tuple(transfers))
        return tuple(rounds)

    def _way_back(self) -> tuple[int, int]:
        """When, and from whom, the late rank receives chunk 0."""
        if self._k == 1:
            return 0, self._beside[0]  # two ranks exchange their only chunk
        arrived = {dst: t for t, ms in enumerate(self._rounds) for _, dst, c in ms if c == 0}
        return next(
            (t, helper)
            for t in range(self._k - 1, len(self._rounds))
            for helper in (self._beside[t], *arrived)
            if arrived[helper] < t and all(src != helper for src, _, _ in self._rounds[t])
        )

    def waiting(self) -> tuple[Round, ...]:
        """The rounds in which the helpers reduce every chunk to its owner.

        What is chunk b of the broadcast is chunk b + 1 here, since the owner of chunk b + 1 is
        beside the receiver of chunk b; the broadcast's last chunk is chunk 0.
        """
        late, last = self._late, self._k - 1
        rounds: list[Round] = []
        for t in reversed(range(len(self._rounds))):
            moves = self._rounds[t]
            up = [
                Transfer(dst, src, (b + 1) % self._k, "reduce")
                for src, dst, b in moves
                if src != late
            ]
            tops = [dst for src, dst, _ in moves if src == late]
            if t < last and tops != [self._beside[t]]:
                up.append(Transfer(tops[0], self._beside[t], t + 1, "copy"))
            if t == 0 and self._receivers[last] != self._receivers[0]:
                up.append(Transfer(self._receivers[last], self._receivers[0], 0, "copy"))
            rounds.append(tuple(up))
            if t > last:
                rounds += [(Transfer(top, self._receivers[last], 0, "reduce"),) for top in tops]
        return tuple(moves for moves in rounds if moves)
