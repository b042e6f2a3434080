"""Who arrives when: what every method of this package starts from, and its lower bound.

Legend: n ranks, k chunks; rank r takes no part in the rounds before ``arrival[r]``, rounds counted
from 0, a round long enough for one chunk of S / k bytes. A = the last arrival. The *completion* is
what comes after it: rounds A, A + 1, ... Its length R is what is minimized.

Lower bounds on R, for full-duplex one-port rounds (of any right schedule). Their greatest is
``arrivals_bound`` in proofs/coq/Arrivals.v, where it is proved; a test compares the two:

    dissemination
                The rank that arrives last sends each of its k chunks in a round of its own, so one
                of them leaves in the k-th round or later, and who knows of it can only double per
                round: R >= k + ceil(log2 n) - 1 (see :mod:`latecomer.verify.core.bounds`). A rank
                that arrives at a < A has A - a rounds more.
    bandwidth   Let L be the q ranks that arrive at round a or later. At round a no other rank knows
                their data; call what all others know of a chunk its one remaining source. Let r be
                one of the first ranks to know of all q + 1 sources of a chunk. Among the transfers
                that brought this about some q *join* the sources: sender or receiver of each is in
                L. Every other rank comes to know of all sources as r does or later, by a transfer
                of its own, which *completes* it and is none of those q. So a chunk takes
                n + q - 1 such transfers from round a on. Of all chunks together, round t has

                    at most 2 l(t)         before A: completing is impossible, and each of the l(t)
                                           ranks of L that are present sends and receives once
                    at most I(t) + l(t)    else: such a transfer is sent by one of I(t) ranks that
                                           know of any data of L, or is received by one in L;
                                           I(t + 1) <= 2 I(t), and those of L that arrive

                and never more than there are ranks present (none if only one is). R is at least
                what it takes until these add up to k (n + q - 1).

    With a = 0 and one rank as "all others" this is the well-known 2 (n - 1) transfers per chunk.
    For one late rank, D = A rounds late, that gives n R >= 2 k (n - 1) - D (n - 1): the straight
    line from the best schedule for ranks on time to the one that hides the whole ReduceScatter.
    The bandwidth bound is never below that of :mod:`latecomer.verify.core.bounds`, which does not
    look at who comes when.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise

from latecomer.verify.core.bounds import dissemination_bound
from latecomer.verify.core.schedule import Phase, Round, Schedule


@dataclass(frozen=True)
class Arrivals:
    """n ranks that arrive at given rounds, and a buffer of k chunks.

    Attributes:
        chunks: k.
        arrival: for each rank the first round in which it can take part; the least is 0.
        late: the ranks that were named as late (one may still arrive at round 0).
    """

    chunks: int
    arrival: tuple[int, ...]
    late: tuple[int, ...]

    @property
    def ranks(self) -> int:
        """n, the number of ranks."""
        return len(self.arrival)

    @property
    def last(self) -> int:
        """A, the round of the last arrival; from it on everybody is present."""
        return max(self.arrival)

    @cached_property
    def times(self) -> tuple[int, ...]:
        """The rounds in which a rank arrives, 0 first."""
        return tuple(sorted({0, *self.arrival}))

    def present(self, t: int) -> int:
        """How many ranks can take part in round ``t``."""
        return sum(a <= t for a in self.arrival)

    @property
    def bound(self) -> int:
        """No schedule of so many chunks has fewer rounds after the last arrival."""
        return max(self.dissemination_bound, *(self.bandwidth_bound(a) for a in self.times))

    @property
    def dissemination_bound(self) -> int:
        """The bound from the k chunks that the last rank to arrive has to send."""
        return dissemination_bound(self.ranks, self.chunks)

    def bandwidth_bound(self, a: int) -> int:
        """The bound from the transfers that have to happen in round ``a``, an arrival, or later."""
        n = self.ranks
        # Of ranks that are all on time one stands for "all others": see the top.
        some_rank = self.arrival.index(0)
        late = [b for r, b in enumerate(self.arrival) if b >= a and (a > 0 or r != some_rank)]
        missing = self.chunks * (n + len(late) - 1)
        informed = 0
        t = a
        while missing > 0:
            present = self.present(t)
            here = sum(b <= t for b in late)
            informed = min(present, 2 * informed) + sum(b == t for b in late)
            useful = 2 * here if t < self.last else informed + here
            missing -= min(useful, present if present > 1 else 0)
            t += 1
        return max(0, t - self.last)

    def with_chunks(self, chunks: int, rounds: Fraction | None = None) -> Arrivals:
        """The same arrivals with another number of chunks; parts of a round are not used.

        Args:
            chunks: the new k.
            rounds: how many of its rounds take as long as one does now (default: in proportion to
                the number of chunks, as where latency costs nothing).
        """
        factor = Fraction(chunks, self.chunks) if rounds is None else rounds
        return Arrivals(chunks, tuple(int(a * factor) for a in self.arrival), self.late)

    def without_idle_waits(self) -> Arrivals:
        """The same with waits cut to 2 (k + n) rounds each: more would only be idle.

        In 2 (k + n) rounds of one interval the h ranks that are present can do a ring's AllReduce,
        of 2 (h - 1) ceil(k / h) rounds: then each has all that can be had. The bounds don't change,
        and a schedule for the shorter waits is one for the longer.
        """
        longest = 2 * (self.chunks + self.ranks)
        new = {0: 0}
        for start, end in pairwise(self.times):
            new[end] = new[start] + min(longest, end - start)
        return Arrivals(self.chunks, tuple(new[a] for a in self.arrival), self.late)

    def waits(self, rounds: list[Round]) -> tuple[Phase, ...]:
        """The first A of ``rounds`` (idle where missing) as phases, cut at the arrivals."""
        rounds = [*rounds, *[()] * (self.last - len(rounds))]
        phases = []
        for start, end in pairwise(self.times):
            absent = tuple(r for r, a in enumerate(self.arrival) if a > start)
            coming = ", ".join(str(r) for r in absent if self.arrival[r] == end)
            phases.append(Phase(f"before {coming}", absent, tuple(rounds[start:end])))
        return tuple(phases)

    def schedule(self, rounds: list[Round]) -> Schedule:
        """Rounds 0, 1, ... as a schedule with full-duplex ports."""
        completion = Phase("completion", (), tuple(rounds[self.last :]))
        return Schedule(
            ranks=self.ranks,
            chunks=self.chunks,
            late=self.late,
            phases=(*self.waits(rounds), completion),
        )
