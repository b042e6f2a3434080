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

**One corner at a time.** What a corner gives, and to whom, follows from the round and its number
alone; who of its members gives and receives, from what comes and goes there. So the moves of one
rank in all rounds need its own corner and its d partners, O(k log n) steps, whatever n is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

Move = tuple[int, int, int]
"""Sender, receiver, chunk. Ranks are named as in :mod:`synth.straggler.instance`."""


@dataclass
class Corner:
    """What happens in one corner, round by round.

    Attributes:
        members: its ranks, first those that received from outside last.
        fresh: the chunk that comes from outside, or None.
        receivers, givers: the members that would receive from outside and give.
        inside: moves from member to member.
    """

    members: list[int]
    fresh: list[int | None]
    receivers: list[int] = field(default_factory=list)
    givers: list[int] = field(default_factory=list)
    inside: list[list[Move]] = field(default_factory=list)
    _pending: dict[int, int] = field(default_factory=dict)

    def step(self, come: int | None, go: int | None) -> None:
        """One round, in which a chunk comes and another goes, or None."""
        moves: list[Move] = []
        if len(self.members) > 1:
            if go is not None and self._pending.get(self.members[0]) == go:
                self.members.reverse()  # who has just received it gives it on
            receiver, giver = self.members
            moves += self._passed(receiver, giver)
            if come is None and go is None:
                moves += self._passed(giver, receiver)
            if come is not None:
                self._pending[receiver] = come
        self.receivers.append(self.members[0])
        self.givers.append(self.members[-1])
        self.inside.append(moves)

    def _passed(self, sender: int, receiver: int) -> list[Move]:
        return [(sender, receiver, self._pending.pop(sender))] if sender in self._pending else []


class Broadcast:
    """The moves of any rank, or of all, in any round.

    Args:
        ranks: n, 2 or more; helpers are 0 .. n-2, the root is n-1.
        chunks: k, 1 or more.

    Attributes:
        rounds: k + ceil(log2 n) - 1; in them every helper receives every chunk once, and each rank
            sends at most once and receives at most once in a round.
    """

    def __init__(self, ranks: int, chunks: int) -> None:
        self.root = ranks - 1
        self.dimensions = ranks.bit_length() - 1
        self._last = chunks - 1
        self._outside = chunks + self.dimensions - 1
        self.rounds = self._outside + (ranks != 2**self.dimensions)
        self._corners: dict[int, Corner] = {}
        self._fresh: dict[int, list[int | None]] = {}

    def moves(self, t: int, rank: int | None = None) -> Iterator[Move]:
        """The moves of round ``t``; of ``rank`` alone if it is given."""
        bit = self._bit(t)
        numbers: Iterable[int] = range(1, 2**self.dimensions)
        if rank is not None:
            own = self._corner_of(rank)
            numbers = {own, own ^ bit} - {0}
        for number in numbers:
            corner = self.corner(number)
            found = list(corner.inside[t])
            chunk = corner.fresh[t]
            if chunk is not None:
                found.append((self.corner(number ^ bit).givers[t], corner.receivers[t], chunk))
            yield from (m for m in found if rank is None or rank in m[:2])

    def receiver(self, t: int) -> int:
        """Who receives from the root in round ``t``, or would."""
        return self.corner(self._bit(t)).receivers[t]

    def beside(self, t: int) -> int:
        """A helper that sends nothing in round ``t``, while the root gives: in the root's partner
        corner one that does not receive from the root, if it has two members.
        """
        return self.corner(self._bit(t)).givers[t]

    def corner(self, number: int) -> Corner:
        """The corner of that number, through all rounds."""
        if number not in self._corners:
            corner = Corner(self._members(number), self._coming(number))
            for t, come in enumerate(corner.fresh):
                partner = number ^ self._bit(t)
                go = self._given(number, t) if self._coming(partner)[t] is not None else None
                corner.step(come, go)
            self._corners[number] = corner
        return self._corners[number]

    def _bit(self, t: int) -> int:
        return 1 << t % self.dimensions

    def _members(self, corner: int) -> list[int]:
        if corner == 0:
            return [self.root]
        second = corner + 2**self.dimensions - 2
        return [corner - 1, *([second] if second < self.root else [])]

    def _corner_of(self, rank: int) -> int:
        if rank == self.root:
            return 0
        return rank + 1 if rank < 2**self.dimensions - 1 else rank - 2**self.dimensions + 2

    def _coming(self, corner: int) -> list[int | None]:
        """For each round the chunk that comes to a corner from outside, if it is not there yet."""
        if corner not in self._fresh:
            missing, fresh = corner != 0, list[int | None]()
            for t in range(self.rounds):
                chunk = self._given(corner ^ self._bit(t), t) if t < self._outside else -1
                new = 0 <= chunk < self._last or (chunk == self._last and missing)
                missing = missing and chunk != self._last
                fresh.append(chunk if new else None)
            self._fresh[corner] = fresh
        return self._fresh[corner]

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
