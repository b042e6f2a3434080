"""A completion at the lower bound in which it can be chosen who owns how many chunks.

The closed form of :mod:`latecomer.synth.straggler` takes the dimensions of a cube in turn (Johnsson
and Ho, 1989), so the late rank has few partners, again and again. Deviation: in round t the
partners are the corners v and v + d_t of Z_2^D, for *any* directions d_0, d_1, ... of which every D
in a row are linearly independent. The root, at corner 0, gives corner d_t chunk t. A chunk that
left the root in round c is, i rounds later, in the corners d_c + span(d_(c+1) .. d_(c+i-1)), which
all give it on.

    Nothing collides. With b_i = d_(t-i), who receives in round t a chunk of age i < D is in
    b_0 + b_i + span(b_1 .. b_(i-1)): the vectors b_0 + x whose highest b_i is i. Age D gets
    b_D + b_0 + span(b_1 .. b_(D-1)). Neither b_D nor b_0 is in that span of half of all vectors, so
    their sum is, and this is the span itself: the corners that are left, and the root.

So a chunk reaches all corners within D rounds after the first, as in the closed form, and half of
all vectors can be the next direction. Two ranks in a corner, at the cost of one round, as in
:mod:`latecomer.synth.straggler.broadcast`: there the rank that gets a chunk from outside passes on
what its partner lacks. Which corners have two, and who of two that could both do so gives, is
chosen too.

With one rank in each corner the late rank and its partner exchange chunk t in round t. Otherwise
the port to send that is idle beside its partner gives it the sum of chunk t + 1 meanwhile, and
chunk 0 comes back in the end.
"""

from __future__ import annotations

import numpy as np

from latecomer.synth.arrivals.assignment import assignment
from latecomer.verify.core.schedule import IntArray, Transfer

NONE = -1
"""Instead of a helper, or of a chunk."""


class Cube:
    """The completion of n ranks and k chunks; helpers are 0 .. n-2, the late rank is n-1.

    Args:
        ranks: n, 3 or more.
        chunks: k.
        need: for each helper how many chunks it should own or have an idle port to send for; who
            needs most is chosen first, so that what is left comes near to 0 or below.
        dice: decides the rest.

    Attributes:
        rounds: k + ceil(log2 n) - 1 rounds of transfers.
        owner: for each chunk the helper that has the helpers' sum of it,
        due: before this round.
        need: what is left of ``need``.
        sends: [round, rank], its port to send is busy.
        receives: [round, rank], its port to receive is busy.
        merged: [helper, chunk], its partial sum is sent in these rounds: none is.
    """

    def __init__(self, ranks: int, chunks: int, need: IntArray, dice: np.random.Generator) -> None:
        self.root = ranks - 1
        self.chunks = chunks
        self.need = need.copy()
        self._dice = dice
        self._dimensions = ranks.bit_length() - 1
        self._hops = (ranks - 1).bit_length()
        self._exchanging = ranks == 2**self._dimensions or chunks == 1
        length = chunks + self._hops - 1
        self.rounds: list[list[Transfer]] = [[] for _ in range(length)]
        self.owner = np.full(chunks, NONE)
        self.due = np.arange(chunks)
        if not self._exchanging:
            self.due = np.maximum(0, self.due - 1)
        self.sends = np.zeros((length, ranks), np.bool_)
        self.receives = np.zeros((length, ranks), np.bool_)
        self.merged = np.zeros((ranks - 1, chunks), np.bool_)
        self._directions: list[int] = []
        self._holders: list[set[int]] = []  # of what left the root in round c, the corners
        self._finished: set[int] = set()  # corners that have the last chunk
        self._pending = np.full(ranks, NONE)  # what the other rank in its corner lacks
        self._first_is_missing = not self._exchanging
        self._members = self._settle()
        self._waiting: dict[int, int] = {}  # what the rank alone in a corner gets at the end
        self._skipping = bool(dice.integers(2)) and self._hops > self._dimensions
        self._noise = dice.choice([0.9, 1.5, 2.5])
        for t in range(length):
            self._advance(t)

    def _settle(self) -> list[list[int]]:
        """The ranks in each corner: helpers in any order, one or two of them."""
        corners = 2**self._dimensions
        helpers = self._dice.permutation(self.root).tolist()
        members = [[self.root], *([helper] for helper in helpers[: corners - 1])]
        others = 1 + self._dice.permutation(corners - 1)
        for corner, helper in zip(others.tolist(), helpers[corners - 1 :], strict=False):
            members[corner].append(helper)
        return members

    def _advance(self, t: int) -> None:
        if t < self.chunks + self._dimensions - 1:
            self._directions.append(self._direction(t))
            gives = self._between_corners(t)
            self._carry_out(t, gives)
        else:
            self._at_the_end(t)
        if t >= self.chunks - 1 and self._first_is_missing:
            self._way_back(t)
        if t < self.chunks - 1:
            self.need -= ~self.sends[t, : self.root]

    def _direction(self, t: int) -> int:
        """Any that is independent of the last ones; the one whose owner needs it most."""
        # The unit vectors, which are independent.
        if t < self._dimensions:
            return 1 << t
        span = {0}
        for direction in self._directions[t - self._dimensions + 1 :]:
            span |= {direction ^ vector for vector in span}
        # Half of all vectors: those outside the span of the last D - 1 directions.
        free = [v for v in range(1, len(self._members)) if v not in span]
        urgency = [max(int(self.need[h]) for h in self._members[v]) for v in free]
        return free[int(np.argmax(urgency + self._noise * self._dice.random(len(free))))]

    def _between_corners(self, t: int) -> dict[int, tuple[int, int]]:
        """For each corner that gives, (the corner it gives to, the chunk)."""
        direction = self._directions[t]
        last = self.chunks - 1
        gives = {}
        for c in range(max(0, t - self._dimensions), t):
            chunk = min(c, last)
            for corner in sorted(self._holders[c]):
                to = corner ^ direction
                if self._can_wait(to, chunk, t):
                    self._waiting[to] = chunk
                elif to and not (chunk == last and to in self._finished):
                    gives[corner] = to, chunk
            self._holders[c] |= {corner ^ direction for corner in self._holders[c]}
        self._holders.append({direction})
        if t <= last or direction not in self._finished:
            gives[0] = direction, min(t, last)
        for to, chunk in gives.values():
            if chunk == last:
                self._finished.add(to)
        return gives

    def _can_wait(self, corner: int, chunk: int, t: int) -> bool:
        """Whether a rank alone in its corner, where the chunk ends its way, gets it at the end."""
        alone = [c for c, here in enumerate(self._members) if len(here) == 1]
        has_none = chunk == 0 and self._first_is_missing  # the root, of those that could give it
        ends = t == chunk + self._dimensions and chunk < self.chunks - 1
        lack_it = sum(lacks == chunk for lacks in self._waiting.values())
        return (
            self._skipping
            and ends
            and corner in alone[1:]
            and corner not in self._waiting
            and 2 * (lack_it + 1) <= len(alone) - has_none  # as many have it at the end as lack it
        )

    def _at_the_end(self, t: int) -> None:
        """The last round: what is pending is passed on, and who waits is given its chunk."""
        for one, other in (pair for pair in self._members if len(pair) == 2):
            self._pass_on(t, one, other)
            self._pass_on(t, other, one)
        alone = [here[0] for here in self._members if len(here) == 1]
        lacks = np.array(
            [self._waiting.get(c, NONE) for c, h in enumerate(self._members) if len(h) == 1]
        )
        useful = (lacks[:, None] != lacks) & (lacks != NONE)
        if self._first_is_missing:
            useful[0] &= lacks != 0  # the root, which may get that sum in this very round
        for src, dst in enumerate(assignment(useful.astype(np.int64))):
            if useful[src, dst]:
                self._add(t, alone[src], alone[dst], int(lacks[dst]), full=True)
        assert self.receives[t, alone].sum() == len(self._waiting)

    def _carry_out(self, t: int, gives: dict[int, tuple[int, int]]) -> None:
        giver = {corner: self._giver(corner, chunk) for corner, (_, chunk) in gives.items()}
        came = []
        for corner, (to, chunk) in gives.items():
            here = self._members[to]
            busy = giver.get(to, NONE)
            receiver = here[0] if len(here) == 1 else self._receiver(here, to in gives, busy)
            other = here[len(here) - 1 - here.index(receiver)]
            # Where either member could give, it is the one that does not receive from outside.
            if to in gives and busy == NONE:
                giver[to] = other
            came.append((corner, receiver, other, chunk))
        for corner, receiver, other, chunk in came:
            if other != receiver:
                self._pass_on(t, receiver, other)
            if corner == 0 and t < self.chunks:
                self._with_root(t, receiver, other)
            else:
                src = giver[corner] if giver[corner] != NONE else self._members[corner][0]
                self._add(t, src, receiver, chunk, full=True)
        # Only now: what was pending at the start of the round is passed on in it.
        for _, receiver, other, chunk in came:
            if other != receiver:
                self._pending[receiver] = chunk

    def _giver(self, corner: int, chunk: int) -> int:
        """Who gives the chunk, where it is not for both to do."""
        here = self._members[corner]
        if len(here) == 1:
            return here[0]
        return next((rank for rank in here if self._pending[rank] == chunk), NONE)

    def _receiver(self, here: list[int], giving: bool, giver: int) -> int:
        """Who of two receives: not the giver; the one whose partner needs the idle port more."""
        one, other = here
        if giver != NONE:
            return other if giver == one else one
        if giving:
            return one if self._pending[one] == NONE else other
        return one if self.need[other] > self.need[one] else other

    def _with_root(self, t: int, receiver: int, other: int) -> None:
        """The root gives chunk t, and gets a sum."""
        self._add(t, self.root, receiver, t, full=t > 0 and not self._exchanging)
        if t == 0 or self._exchanging:
            self._own(receiver, t)
        if self._exchanging:
            self._add(t, receiver, self.root, t, full=False)
        elif t + 1 < self.chunks:
            self._own(other, t + 1)
            self._add(t, other, self.root, t + 1, full=False)

    def _own(self, helper: int, chunk: int) -> None:
        self.owner[chunk] = helper
        self.need[helper] -= 1

    def _pass_on(self, t: int, rank: int, other: int) -> None:
        if self._pending[rank] != NONE:
            self._add(t, rank, other, int(self._pending[rank]), full=True)
            self._pending[rank] = NONE

    def _way_back(self, t: int) -> None:
        """The root receives chunk 0 from any rank that has it and nothing else to send."""
        holders = {moved.dst for moves in self.rounds[:t] for moved in moves if not moved.chunk}
        free = [rank for rank in sorted(holders) if not self.sends[t, rank]]
        if free:
            self._add(t, free[0], self.root, 0, full=True)
            self._first_is_missing = False

    def _add(self, t: int, src: int, dst: int, chunk: int, *, full: bool) -> None:
        assert not self.sends[t, src]
        assert not self.receives[t, dst]
        self.sends[t, src] = self.receives[t, dst] = True
        self.rounds[t].append(Transfer(src, dst, chunk, "copy" if full else "reduce"))
