"""A completion for ranks that come together, as a question to a solver, whatever the trees.

Every helper has P, the helpers' sum, of all chunks, which is as good as anything that a wait can
bring: where the question is exhausted there is no completion of so many rounds, however long the
wait. (Of a schedule see only the data of the l late ranks and of one helper; let a helper have P
where what it holds shows nothing.) Of these l + 1 parts there is one tree of additions per chunk.
So what a rank holds of a chunk is told by a set of parts, and a set is always added up from the
same two; the argument is that of :mod:`latecomer.synth.arrivals.exact`, and the encoding, too.

Two sets of clauses lose nothing and make refutations short. Of l + 1 parts none is full before the
m-th round, m = ceil(log2 (l + 1)); if only k rounds are left then, each rank completes a chunk in
each of them. And k (n + l - 1) transfers are needed; if n ranks can't have more in so many rounds,
every rank sends and receives in each round, only full sums are copied, and no sum is made twice.

Kept because 10 of the 144 instances in bench/tables/late-together.md reach their bound only by
this question, and 12 more are known to be optimal since CaDiCaL exhausts it
(``bench/together_asked.py``). A question with trees of given shapes was tried before it: it found 2
of the 10, which this one finds in seconds, too.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from operator import itemgetter

from latecomer.synth.solvers.clauses import Clauses
from latecomer.synth.solvers.model import Found
from latecomer.verify.core.schedule import Op, Round, Transfer

LARGEST = 2**15
"""What ranks may receive, in all rounds together, in a question that is put to a solver."""

Set = int
"""A set of parts, as bits: those of the late ranks, then P."""
By = dict[tuple[int, Set], list[int]]
"""Literals by chunk and set."""


def question_size(ranks: int, late: int, chunks: int, rounds: int) -> int:
    """How many ways to receive something the question has: copies and additions."""
    parts = late + 1
    ways: int = 3**parts - 2**parts
    return ways * ranks * chunks * rounds


class FreeTrees:
    """Is there a completion of so many rounds? And back.

    Args:
        ranks, late, chunks, rounds: as named; late ranks come first.
    """

    def __init__(self, ranks: int, late: int, chunks: int, rounds: int) -> None:
        self._ranks = ranks
        self._late = late
        self._chunks = chunks
        self._rounds = rounds
        self._full: Set = (1 << late + 1) - 1
        self._variable: dict[tuple[str | int, ...], int] = {}
        self.model = Clauses()
        self._build()

    def decode(self, answer: Found) -> list[Round]:
        """The rounds that an assignment stands for, late ranks first."""
        senders = defaultdict[tuple[int, int, Set], list[int]](list)
        receives: list[list[tuple[int, int, Set, Op]]] = [[] for _ in range(self._rounds)]
        for (kind, *numbers), variable in self._variable.items():
            if variable in answer.true and kind in ("send", "copy", "add"):
                t, rank, chunk, *_, moved = map(int, numbers)
                if kind == "send":
                    senders[t, chunk, moved].append(rank)
                else:
                    receives[t].append((chunk, rank, moved, "copy" if kind == "copy" else "reduce"))
        return [
            tuple(
                Transfer(senders[t, chunk, moved].pop(), rank, chunk, op)
                for chunk, rank, moved, op in sorted(of_round, key=itemgetter(0))
            )
            for t, of_round in enumerate(receives)
        ]

    # -- variables -----------------------------------------------------------------------------

    def _named(self, *name: str | int) -> int:
        """``hold``: t, rank, chunk, set; ``copy``, ``send`` too; ``add``: also the set received."""
        if name not in self._variable:
            self._variable[name] = self.model.new_variable()
        return self._variable[name]

    def _possible(self, t: int, rank: int) -> list[Set]:
        """Sets that the rank can hold before round ``t``."""
        if t == 0:
            return [1 << min(rank, self._late)]
        sets = range(1, self._full + 1) if t < self._rounds else [self._full]
        return [s for s in sets if s.bit_count() <= 2**t]

    def _held(self, t: int, rank: int, chunk: int) -> dict[Set, int]:
        """For each set, the literal that the rank holds it before round ``t``."""
        return {s: self._named("hold", t, rank, chunk, s) for s in self._possible(t, rank)}

    # -- constraints ---------------------------------------------------------------------------

    def _build(self) -> None:
        ranks = self._ranks
        chunks = self._chunks
        rounds = self._rounds
        model = self.model
        for r in range(ranks):
            for c in range(chunks):
                model.require_any([self._named("hold", 0, r, c, 1 << min(r, self._late))])
                model.require_any([self._named("hold", rounds, r, c, self._full)])
        made: By = {}
        for t in range(rounds):
            fed: By = {}
            for r in range(ranks):
                self._ports(t, r, fed, made)
            for (c, s), receives in fed.items():
                senders = [r for r in range(ranks) if s in self._possible(t, r)]
                model.require_no_more(receives, [self._named("send", t, r, c, s) for r in senders])
        if self._wasteless:
            for several in made.values():
                model.require_at_most_one(several)
        for c in range(chunks):
            for whole in range(3, self._full + 1):
                parts = [a for a in range(1, whole) if a & whole == a and a < whole - a]
                model.require_at_most_one([self._named("split", c, a, whole - a) for a in parts])
        if self._late + 1 > 2**rounds:
            model.require_any([])
        for t in range(1, rounds):
            self._order(t)

    @property
    def _wasteless(self) -> bool:
        """Whether all that ranks can receive is needed."""
        needed = self._chunks * (self._ranks + self._late - 1)
        return needed == self._ranks * self._rounds

    def _ports(self, t: int, r: int, fed: By, made: By) -> None:
        """The rank receives one thing at most in round ``t``, and sends one."""
        model = self.model
        # The m-th round, counted from 0: m = ceil(log2 (l + 1)).
        first = self._late.bit_length() - 1
        finals, copies, others = self._receives(t, r, fed, made)
        model.require_at_most_one([*finals, *others])
        sends = [
            self._named("send", t, r, c, s)
            for c in range(self._chunks)
            for s in self._possible(t, r)
        ]
        model.require_at_most_one(sends)
        never: list[int] = []
        if t >= first and self._chunks == self._rounds - first:
            model.require_any(finals)
            model.require_any(sends)
            never += others
        if self._wasteless:
            model.require_any(sends)
            model.require_any([*finals, *others])
            never += copies
        for literal in never:
            model.require_any([-literal])

    def _receives(
        self, t: int, r: int, fed: By, made: By
    ) -> tuple[list[int], list[int], list[int]]:
        """What completes a chunk; copies of what is not full; these, and sums that are not full."""
        model = self.model
        finals = []
        copies = []
        others = []
        sent = sorted({s for q in range(self._ranks) for s in self._possible(t, q)})
        for c in range(self._chunks):
            before = self._held(t, r, c)
            after = self._held(t + 1, r, c)
            model.require_at_most_one(after.values())
            # What is held after the round was held before it or is received in it.
            causes = {}
            for s, v in after.items():
                causes[s] = [-v]
                if s in before:
                    causes[s].append(before[s])
            for s, v in before.items():
                model.require_any([-self._named("send", t, r, c, s), v])
            ways = [(0, y) for y in sent] + [(x, y) for x in before for y in sent if not x & y]
            for x, y in ways:
                if x | y not in after:
                    continue
                v = self._named("add", t, r, c, x, y) if x else self._named("copy", t, r, c, y)
                model.require_any([-v, after[x | y]])
                causes[x | y].append(v)
                fed.setdefault((c, y), []).append(v)
                if x:
                    model.require_any([-v, before[x]])
                    model.require_any([-v, self._named("split", c, *sorted((x, y)))])
                elif y in before:
                    model.require_any([-v, -before[y]])
                if x | y == self._full:
                    finals.append(v)
                    continue
                others.append(v)
                if x:
                    made.setdefault((c, x | y), []).append(v)
                else:
                    copies.append(v)
            for cause in causes.values():
                model.require_any(cause)
        return finals, copies, others

    def _order(self, t: int) -> None:
        """A chunk is complete somewhere no later than the next one; and chunk 0 at one rank no
        later than at the next of those that are alike. Either can be had by renaming."""
        model = self.model
        complete = [self._named("complete", t, c) for c in range(self._chunks)]
        able = [r for r in range(self._ranks) if self._full in self._possible(t, r)]
        for c, here in enumerate(complete):
            held = [self._named("hold", t, r, c, self._full) for r in able]
            model.require_any([-here, *held])
            for literal in held:
                model.require_any([here, -literal])
        for sooner, later in pairwise(complete):
            model.require_any([sooner, -later])
        for rank, following in pairwise(able):
            if following != self._late:
                later = self._named("hold", t, following, 0, self._full)
                sooner = self._named("hold", t, rank, 0, self._full)
                model.require_any([-later, sooner])
