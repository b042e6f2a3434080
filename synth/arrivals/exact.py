"""Is there a schedule with so many rounds after the last arrival at all? A question to a solver.

All ranks start raw. Nothing is fixed beforehand: no owners, no ReduceScatter, no exchanges. The
question is about *every* schedule that the verifier would prove (full-duplex ports), so when the
search is exhausted there is none, for these arrivals and this number of chunks:

    In a proved schedule every rank ends with the value of one expression tree per chunk, in which
    each rank's data occurs once. What a rank holds on the way is either (the value of) a subtree of
    it, or never used again, and then what made it can be left out. So what a rank holds is told by
    a set of ranks, and of each set of ranks there is only one tree: a set that is added up from
    two parts is always added up from the same two.

Encoding: "rank holds the sum over set A of chunk c before round t", "receives the sum over A as a
copy / onto the sum over B that it holds", "sends the sum over A". Any sender can feed any receiver,
so there are no variables for pairs: of each chunk and set, in each round, there are no more
receives than sends. Two reductions that lose nothing: chunks are numbered in the order in which
they are first complete somewhere, and ranks that arrive together in the order in which they first
send. Both orders are properties of the schedule, not of names, so each can be had by renaming.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import pairwise

from latecomer.synth.arrivals.instance import Arrivals
from latecomer.synth.solvers.model import Found, Model
from latecomer.verify.core.schedule import Op, Round, Transfer
from latecomer.verify.errors import ArgumentError

LARGEST_QUESTION = 60_000
"""Variables for additions that a question may have; beyond it solvers are at a loss."""
MOST_RANKS = 5

Set = int
"""A set of ranks, as bits."""


def question_size(arrivals: Arrivals) -> int:
    """How many variables for additions the question has at the lower bound."""
    n = arrivals.ranks
    # Ordered pairs of disjoint sets, neither empty: of the 3^n ways to put each rank into the one,
    # the other or neither, those that leave a set empty go.
    pairs: int = 3**n - 2 ** (n + 1) + 1
    return (arrivals.last + arrivals.bound) * n * arrivals.chunks * pairs


def can_be_asked(arrivals: Arrivals) -> bool:
    """Whether ranks and chunks are few enough."""
    return arrivals.ranks <= MOST_RANKS and question_size(arrivals) <= LARGEST_QUESTION


def require_askable(arrivals: Arrivals) -> None:
    """Raise an ArgumentError that says what can be asked, where this can't."""
    if not can_be_asked(arrivals):
        raise ArgumentError(
            "--exact",
            f"{arrivals.ranks} ranks, {arrivals.chunks} chunks",
            f"is possible for up to {MOST_RANKS} ranks, few chunks and short waits "
            f"({question_size(arrivals)} additions to decide on, at most {LARGEST_QUESTION})",
            "Lower --n or --m; or leave --exact out: schedules are found for any size, "
            "with a lower bound",
        )


class Question:
    """ "Is there a schedule with so many rounds after the last arrival?" and back."""

    def __init__(self, arrivals: Arrivals, rounds: int) -> None:
        self.arrivals = arrivals
        self.last = arrivals.last + rounds
        self.everybody: Set = (1 << arrivals.ranks) - 1
        self.model = Model()
        self._variable: dict[tuple[str | int, ...], int] = {}
        self._build()

    def decode(self, answer: Found) -> list[Round]:
        """The rounds that an assignment stands for."""
        return [tuple(self._transfers(t, answer.true)) for t in range(self.last)]

    # -- variables -----------------------------------------------------------------------------

    def _named(self, *name: str | int) -> int:
        if name not in self._variable:
            self._variable[name] = self.model.new_variable()
        return self._variable[name]

    def _held(self, t: int, rank: int, chunk: int) -> dict[Set, int]:
        """For each set, the literal that ``rank`` holds its sum before round ``t``."""
        return {s: self._named("hold", t, rank, chunk, s) for s in self._possible(t, rank)}

    @cache  # noqa: B019 - lives as long as the question, which is short
    def _possible(self, t: int, rank: int) -> tuple[Set, ...]:
        """Sets whose sum ``rank`` can hold before round ``t``."""
        arrival = self.arrivals.arrival
        if t <= arrival[rank]:
            return (1 << rank,)
        arrived = sum(1 << r for r, a in enumerate(arrival) if a < t)
        return tuple(s for s in range(1, self.everybody + 1) if s & arrived == s)

    def _present(self, t: int) -> list[int]:
        return [r for r, a in enumerate(self.arrivals.arrival) if a <= t]

    def _receives(self, t: int, rank: int, chunk: int) -> Iterator[tuple[Set, Set, int]]:
        """(set held, set received, literal); a copy where the first is 0."""
        after = set(self._possible(t + 1, rank))
        for received in self._receivable(t):
            if received in after:
                yield 0, received, self._named("copy", t, rank, chunk, received)
            for held in self._possible(t, rank):
                if not held & received and held | received in after:
                    yield held, received, self._named("add", t, rank, chunk, held, received)

    def _receivable(self, t: int) -> tuple[Set, ...]:
        return tuple(sorted({s for r in self._present(t) for s in self._possible(t, r)}))

    # -- constraints ---------------------------------------------------------------------------

    def _build(self) -> None:
        n = self.arrivals.ranks
        k = self.arrivals.chunks
        model = self.model
        for rank in range(n):
            for chunk in range(k):
                model.require_any([self._named("hold", 0, rank, chunk, 1 << rank)])
                # The empty clause: nobody can hold the full sum so early.
                if self.last == 0 or self.everybody not in self._possible(self.last, rank):
                    model.require_any([])
                    return
                model.require_any([self._named("hold", self.last, rank, chunk, self.everybody)])
        for t in range(self.last):
            for rank in range(n):
                self._step(t, rank)
            for chunk in range(k):
                self._feed(t, chunk)
        self._one_tree()
        self._order_chunks()
        self._order_ranks()

    def _step(self, t: int, rank: int) -> None:
        """What ``rank`` holds after round ``t``, and its two ports in it."""
        model = self.model
        port = []
        for chunk in range(self.arrivals.chunks):
            before = self._held(t, rank, chunk)
            after = self._held(t + 1, rank, chunk)
            model.require_at_most_one(after.values())
            causes = {s: [before[s]] if s in before else [] for s in after}
            if rank in self._present(t):
                for held, received, literal in self._receives(t, rank, chunk):
                    causes[held | received].append(literal)
                    model.require_any([-literal, after[held | received]])
                    if held:
                        model.require_any([-literal, before[held]])
                        model.require_any([-literal, self._split(chunk, held, received)])
                    elif received in before:  # no rank copies to itself
                        model.require_any([-literal, -before[received]])
                    port.append(literal)
            for s, literals in causes.items():
                model.require_any([-after[s], *literals])
        model.require_at_most_one(port)
        model.require_at_most_one(self._sends(t, rank))

    def _sends(self, t: int, rank: int) -> list[int]:
        if rank not in self._present(t):
            return []
        sends = []
        for chunk in range(self.arrivals.chunks):
            for s, held in self._held(t, rank, chunk).items():
                send = self._named("send", t, rank, chunk, s)
                self.model.require_any([-send, held])
                sends.append(send)
        return sends

    def _feed(self, t: int, chunk: int) -> None:
        """Of each set no more receives than sends."""
        fed: dict[Set, list[int]] = {}
        for rank in self._present(t):
            for _, received, literal in self._receives(t, rank, chunk):
                fed.setdefault(received, []).append(literal)
        for s, receives in fed.items():
            senders = [r for r in self._present(t) if s in self._possible(t, r)]
            sends = [self._named("send", t, r, chunk, s) for r in senders]
            self.model.require_no_more(receives, sends)

    def _split(self, chunk: int, one: Set, other: Set) -> int:
        return self._named("split", chunk, min(one, other), max(one, other))

    def _one_tree(self) -> None:
        splits: dict[tuple[int, Set], list[int]] = {}
        for name, variable in self._variable.items():
            match name:
                case ("split", int(chunk), int(one), int(other)):
                    splits.setdefault((chunk, one | other), []).append(variable)
        for literals in splits.values():
            self.model.require_at_most_one(literals)

    def _order_chunks(self) -> None:
        """A chunk is complete somewhere no later than the next chunk."""
        for t in range(1, self.last):
            complete = []
            for chunk in range(self.arrivals.chunks):
                holders = [
                    self._held(t, r, chunk)[self.everybody]
                    for r in range(self.arrivals.ranks)
                    if self.everybody in self._possible(t, r)
                ]
                complete.append(self._any_of("complete", t, chunk, holders))
            for sooner, later in pairwise(complete):
                self.model.require_any([-later, sooner])

    def _order_ranks(self) -> None:
        """Of ranks that arrive together, one sends no later than the next."""
        n = self.arrivals.ranks
        arrival = self.arrivals.arrival
        sent: list[list[int]] = [[] for _ in range(n)]
        for t in range(self.last):
            for rank in range(n):
                sent[rank] = [self._any_of("sent", t, rank, sent[rank] + self._sends(t, rank))]
            for rank in range(n):
                alike = (r for r in range(rank + 1, n) if arrival[r] == arrival[rank])
                following = next(alike, None)
                if following is not None:
                    self.model.require_any([-sent[following][0], sent[rank][0]])

    def _any_of(self, kind: str, t: int, item: int, literals: list[int]) -> int:
        """A literal that holds if and only if one of ``literals`` does."""
        result = self._named(kind, t, item)
        self.model.require_any([-result, *literals])
        for literal in literals:
            self.model.require_any([-literal, result])
        return result

    # -- and back ------------------------------------------------------------------------------

    def _transfers(self, t: int, true: frozenset[int]) -> Iterator[Transfer]:
        for chunk in range(self.arrivals.chunks):
            receivers: dict[Set, list[tuple[int, Op]]] = {}
            for rank in self._present(t):
                for held, received, literal in self._receives(t, rank, chunk):
                    if literal in true:
                        op: Op = "reduce" if held else "copy"
                        receivers.setdefault(received, []).append((rank, op))
            for s, ends in receivers.items():
                senders = [
                    r
                    for r in self._present(t)
                    if s in self._possible(t, r) and self._named("send", t, r, chunk, s) in true
                ]
                for src, (dst, op) in zip(senders, ends, strict=False):
                    yield Transfer(src, dst, chunk, op)
