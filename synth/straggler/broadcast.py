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
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

Move = tuple[int, int, int]
"""Sender, receiver, chunk. Ranks are named as in :mod:`synth.straggler.instance`."""


@dataclass
class _Corner:
    """The helpers of a corner, first those that received from outside last."""

    members: list[int]
    pending: dict[int, int] = field(default_factory=dict)

    def through(self, come: int | None, go: int | None) -> tuple[int, int, list[Move]]:
        """One round: who receives the chunk ``come``, who gives ``go``, and the moves inside."""
        if len(self.members) == 1:
            return self.members[0], self.members[0], []
        if go is not None and self.pending.get(self.members[0]) == go:
            self.members.reverse()  # who has just received it gives it on
        receiver, giver = self.members
        inside = self._passed(receiver, giver)
        if come is None and go is None:
            inside += self._passed(giver, receiver)
        if come is not None:
            self.pending[receiver] = come
        return receiver, giver, inside

    def _passed(self, sender: int, receiver: int) -> list[Move]:
        return [(sender, receiver, self.pending.pop(sender))] if sender in self.pending else []


class Broadcast:
    """The moves of all rounds, and which helpers could send to the root besides.

    Args:
        ranks: n, 2 or more; helpers are 0 .. n-2, the root is n-1.
        chunks: k, 1 or more.

    Attributes:
        rounds: for each of the k + ceil(log2 n) - 1 rounds its moves; every helper receives every
            chunk once, and each rank sends at most once and receives at most once in a round.
        beside: for each round, while the root gives, a helper that sends nothing: in the root's
            partner corner one that does not receive from the root, if it has two members.
    """

    def __init__(self, ranks: int, chunks: int) -> None:
        self.root = ranks - 1
        self.dimensions = ranks.bit_length() - 1
        self._last = chunks - 1
        self._corners = [_Corner(members) for members in self._members(ranks)]
        self._have_last = {0}
        self.rounds: list[tuple[Move, ...]] = []
        self.beside: list[int] = []
        outside = chunks + self.dimensions - 1
        for t in range(outside):
            self._round(t)
        if ranks != 2**self.dimensions:
            self._round(outside, closed=True)

    def _members(self, ranks: int) -> Iterator[list[int]]:
        corners = 2**self.dimensions
        yield [self.root]
        for corner in range(1, corners):
            yield [rank for rank in (corner - 1, corner + corners - 2) if rank < ranks - 1]

    def _round(self, t: int, *, closed: bool = False) -> None:
        """One round; in a ``closed`` one nothing goes from corner to corner."""
        bit = 1 << t % self.dimensions
        given = [-1 if closed else self._given(corner, t) for corner in range(len(self._corners))]
        come = [given[corner ^ bit] for corner in range(len(self._corners))]
        fresh = [
            0 <= chunk < self._last or (chunk == self._last and corner not in self._have_last)
            for corner, chunk in enumerate(come)
        ]
        moves: list[Move] = []
        receivers, givers = [self.root], [self.root]
        for corner in range(1, len(self._corners)):
            receiver, giver, inside = self._corners[corner].through(
                come[corner] if fresh[corner] else None,
                given[corner] if fresh[corner ^ bit] else None,
            )
            receivers.append(receiver)
            givers.append(giver)
            moves += inside
        for corner in range(1, len(self._corners)):
            if fresh[corner]:
                moves.append((givers[corner ^ bit], receivers[corner], come[corner]))
                if come[corner] == self._last:
                    self._have_last.add(corner)
        self.rounds.append(tuple(moves))
        self.beside.append(givers[bit])

    def _given(self, corner: int, t: int) -> int:
        """The chunk that ``corner`` gives its partner in round ``t``; negative: none."""
        d, j = self.dimensions, t % self.dimensions
        if corner == 0:
            return min(t, self._last)
        if corner == 1 << j:
            return -1  # the root has everything
        behind = d if corner >> j & 1 else _farthest(corner, j, d)
        return min(t - behind, self._last)


def _farthest(corner: int, j: int, d: int) -> int:
    """The largest i in 1 .. d-1 with bit (j - i) mod d of ``corner`` set; bit j is not."""
    rotated = (corner >> j | corner << (d - j)) & ((1 << d) - 1)  # bit j comes to place 0
    return d - (rotated & -rotated).bit_length() + 1
