"""Small completions with merges on idle ports, as one question to a solver.

Where :mod:`latecomer.synth.arrivals.cube` has too few rounds to let the right ranks own enough (n
small, one chunk per helper), owners are left open. Normal form: in round c < k the late rank and
the owner of chunk c exchange it; until then, sums of that chunk may be finished; after that it is
copied. A search that ends without an answer has exhausted this form only, which proves nothing.

Kept because without it four instances with one late rank (n = 7 to 10, one chunk per helper) take
one round more, and it would not be true that all up to n = 15 are at the bound
(docs/explanation/arrivals.md).

Legend: helpers are 0 .. n-2, the late rank is n-1; t counts rounds of the completion. As in
:mod:`latecomer.synth.straggler.completion` there are no variables for pairs: of each chunk, in each
round, there are no more receives than sends. Merges are told backwards: "collecting" before round t
means owning the chunk, or sending one's partial sum of it in round t or later, to a rank that
collects.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from latecomer.synth.solvers.model import Found, Model
from latecomer.verify.core.bounds import dissemination_bound
from latecomer.verify.core.schedule import IntArray, Transfer

# Up to here Z3 finds owners and merges together in seconds.
LARGEST = 2**7
"""Ranks times chunks that a solver is asked about."""


@dataclass
class Completed:
    """What was found; the attributes are those of :class:`latecomer.synth.arrivals.cube.Cube`."""

    rounds: list[list[Transfer]]
    owner: IntArray
    due: IntArray
    need: IntArray
    sends: NDArray[np.bool_]
    receives: NDArray[np.bool_]
    merged: NDArray[np.bool_]


class NormalForm:
    """The question, and back.

    Args:
        ranks: n.
        chunks: k.
        need: for each helper how many chunks it has to own, or to send its partial sum of while
            the completion runs.
    """

    def __init__(self, ranks: int, chunks: int, need: IntArray) -> None:
        self.late = ranks - 1
        self.chunks = chunks
        self.rounds = dissemination_bound(ranks, chunks)
        self.model = Model()
        self._variable: dict[tuple[str, int, int, int], int] = {}
        # A helper sends its partial sums as long as it knows nothing of the late rank; after that
        # it has full chunks to pass on. After ceil(log2 n) rounds all may know of it.
        self._merging = min((ranks - 1).bit_length(), chunks - 1)
        for chunk in range(chunks):
            owners = [self._owns(helper, chunk) for helper in range(self.late)]
            self.model.require_any(owners)
            self.model.require_at_most_one(owners)
            self._copies(chunk)
            self._merges(chunk)
        for helper in range(min(self._merging, self.late)):  # they hear of the late rank first
            self.model.require_any([self._owns(helper, helper)])
        for t in range(self.rounds):
            self._ports(t)
        for helper, least in enumerate(need.tolist()):
            chances = [self._owns(helper, c) for c in range(chunks)]
            chances += [
                self._named("merge", t, helper, c)
                for c in range(chunks)
                for t in range(min(c, self._merging))
            ]
            if least > 0:
                self.model.at_least[least, tuple(chances)] = None

    def _named(self, kind: str, t: int, rank: int, chunk: int) -> int:
        name = kind, t, rank, chunk
        if name not in self._variable:
            self._variable[name] = self.model.new_variable()
        return self._variable[name]

    def _owns(self, helper: int, chunk: int) -> int:
        return self._named("own", 0, helper, chunk)

    def _is(self, literal: int, *causes: int) -> None:
        """``literal`` holds if and only if one of ``causes`` does."""
        self.model.require_any([-literal, *causes])
        for cause in causes:
            self.model.require_any([literal, -cause])

    def _copies(self, chunk: int) -> None:
        """Who does not own the chunk receives it once, after its round, from one who holds it."""
        for helper in range(self.late):
            held = self._owns(helper, chunk)
            receives = []
            for t in range(chunk + 1, self.rounds):
                self.model.require_any([-self._named("send", t, helper, chunk), held])
                receives.append(self._named("receive", t, helper, chunk))
                holds = self._named("hold", t + 1, helper, chunk)
                self._is(holds, held, receives[-1])
                held = holds
            self.model.require_any([self._owns(helper, chunk), *receives])
            self.model.require_at_most_one([self._owns(helper, chunk), *receives])
        for t in range(chunk + 1, self.rounds):
            senders = range(self.late + (t >= self.chunks))
            self.model.require_no_more(
                [self._named("receive", t, helper, chunk) for helper in range(self.late)],
                [self._named("send", t, rank, chunk) for rank in senders],
            )

    def _merges(self, chunk: int) -> None:
        """Backwards from the round in which the chunk is due."""
        collects = [self._owns(helper, chunk) for helper in range(self.late)]
        for t in reversed(range(min(chunk, self._merging))):
            merges = [self._named("merge", t, helper, chunk) for helper in range(self.late)]
            takes = [self._named("take", t, helper, chunk) for helper in range(self.late)]
            self.model.require_no_more(merges, takes)
            for helper, collecting in enumerate(collects):
                self.model.require_any([-merges[helper], -collecting])
                self.model.require_any([-takes[helper], collecting])
                collects[helper] = self._named("collect", t, helper, chunk)
                self._is(collects[helper], collecting, merges[helper])

    def _ports(self, t: int) -> None:
        """One send and one receive per rank; an exchange is both."""
        for rank in range(self.late + (t >= self.chunks)):
            sends = []
            receives = []
            if t < self.chunks:
                sends = [self._owns(rank, t)]
                receives = [self._owns(rank, t)]
            for chunk in range(self.chunks):
                if t > chunk:
                    sends.append(self._named("send", t, rank, chunk))
                    receives += [self._named("receive", t, rank, chunk)] * (rank != self.late)
                elif t < min(chunk, self._merging):
                    sends.append(self._named("merge", t, rank, chunk))
                    receives.append(self._named("take", t, rank, chunk))
            self.model.require_at_most_one(sends)
            self.model.require_at_most_one(receives)

    def decode(self, answer: Found) -> Completed:
        """The rounds that an assignment stands for."""

        def those(kind: str, t: int, chunk: int) -> list[int]:
            names = ((kind, t, rank, chunk) for rank in range(self.late + 1))
            return [name[2] for name in names if self._variable.get(name) in answer.true]

        n = self.late
        k = self.chunks
        late = self.late
        owner = np.array([those("own", 0, c)[0] for c in range(k)])
        rounds: list[list[Transfer]] = [[] for _ in range(self.rounds)]
        merged = np.zeros((n, k), np.bool_)
        for t, moves in enumerate(rounds):
            for c in range(k):
                if t == c:
                    moves.append(Transfer(late, int(owner[c]), c, "reduce"))
                    moves.append(Transfer(int(owner[c]), late, c, "reduce"))
                for src, dst in zip(those("send", t, c), those("receive", t, c), strict=False):
                    moves.append(Transfer(src, dst, c, "copy"))
                for src, dst in zip(those("merge", t, c), those("take", t, c), strict=False):
                    moves.append(Transfer(src, dst, c, "reduce"))
                    merged[src, c] = True
        # All ports count as busy: the merges on idle ones are in the answer already.
        busy = np.ones((self.rounds, n + 1), np.bool_)
        need = np.zeros(n, np.int64)
        return Completed(rounds, owner, np.arange(k), need, busy, busy, merged)
