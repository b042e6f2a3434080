"""The formula of ``proofs/coq/Formula.v``, written without Coq: is there a right schedule in so few
rounds? Needs nothing installed.

:func:`clauses` gives the same clauses in the same order as the proved encoder, and the same numbers
for variables (``Impossible.v``); ``tests/proofs`` and ``make proofs`` compare the two byte by byte.

Legend: n ranks, k chunks; rounds t from 0; rank r takes no part before round ``arrival[r]``.
s sends, d receives, c is a chunk, i a rank whose contribution is looked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

Clause = list[int]
"""Variables, negative where the variable must not hold."""


@dataclass(frozen=True)
class Question:
    """Is there a right schedule of ``rounds`` rounds in all, for these arrivals and ports?

    Attributes:
        arrival: for each rank the first round in which it can take part.
        pairs: matching ports; else duplex.
    """

    ranks: int
    chunks: int
    arrival: tuple[int, ...]
    rounds: int
    pairs: bool = False


def shorter(document: dict[str, Any]) -> Question:
    """The question whether a schedule (its file, as read) can have one completion round less.

    Raises:
        ValueError: it has incast ports, no completion round, or somebody is absent again after its
            arrival.
    """
    if document.get("ports", "duplex") not in ("duplex", "matching"):
        raise ValueError("only duplex and matching ports can be asked about")
    phases = document["phases"]
    if not any(phase["rounds"] for phase in phases if not phase["absent"]):
        raise ValueError("the schedule has no completion round")
    for earlier, phase in pairwise(phases):
        if not set(phase["absent"]) <= set(earlier["absent"]):
            raise ValueError("a rank is absent again after its arrival")

    def before(rank: int) -> int:
        rounds = 0
        for phase in phases:
            if rank not in phase["absent"]:
                break
            rounds += len(phase["rounds"])
        return rounds

    return Question(
        document["ranks"],
        document["chunks"],
        tuple(before(rank) for rank in range(document["ranks"])),
        sum(len(phase["rounds"]) for phase in phases) - 1,
        document.get("ports") == "matching",
    )


def clauses(q: Question) -> Iterator[Clause]:
    """All clauses of the question, in the order in which ``clauses_of`` lists them."""
    n = q.ranks
    k = q.chunks
    last = q.rounds

    def number(kind: int, s: int, d: int, c: int, t: int) -> int:
        return 1 + kind + 6 * (t + (last + 1) * (c + k * (d + n * s)))

    def sends(s: int, d: int, t: int) -> int:
        return number(0, s, d, 0, t)

    def picks(s: int, c: int, t: int) -> int:
        return number(1, s, 0, c, t)

    def moves(s: int, d: int, c: int, t: int) -> int:
        return number(2, s, d, c, t)

    def overwrites(d: int, c: int, t: int) -> int:
        return number(3, 0, d, c, t)

    def holds(i: int, r: int, c: int, t: int) -> int:
        return number(4, i, r, c, t)

    def spoilt(r: int, c: int, t: int) -> int:
        return number(5, 0, r, c, t)

    def ports(t: int, s: int, d: int) -> Iterator[Clause]:
        if s == d or q.arrival[s] > t or q.arrival[d] > t:
            yield [-sends(s, d, t)]
        for e in range(n):
            if d < e:
                yield [-sends(s, d, t), -sends(s, e, t)]
                yield [-sends(d, s, t), -sends(e, s, t)]
            if q.pairs and e != s:
                yield [-sends(s, d, t), -sends(d, e, t)]

    def effect(t: int, c: int, d: int) -> Iterator[Clause]:
        received = [moves(s, d, c, t) for s in range(n)]
        copy = overwrites(d, c, t)
        spoils = spoilt(d, c, t + 1)
        yield [-copy, *received]
        yield [copy, -spoilt(d, c, t), spoils]
        for s in range(n):
            yield [-received[s], -spoilt(s, c, t), spoils]
        for i in range(n):
            before = holds(i, d, c, t)
            after = holds(i, d, c, t + 1)
            yield [copy, -before, after]
            yield [-after, before, *received]
            for s in range(n):
                comes = holds(i, s, c, t)
                yield [-received[s], -comes, after]
                yield [-after, -received[s], comes, before]
                yield [-after, -received[s], comes, -copy]
                yield [-received[s], copy, -before, -comes, spoils]

    everyone = range(n)
    every_chunk = range(k)
    rounds = range(last)
    for t in rounds:
        for s in everyone:
            for d in everyone:
                yield from ports(t, s, d)
    for t in rounds:
        for s in everyone:
            for c in every_chunk:
                for other in range(c + 1, k):
                    yield [-picks(s, c, t), -picks(s, other, t)]
    for t in rounds:
        for c in every_chunk:
            for s in everyone:
                for d in everyone:
                    yield [-moves(s, d, c, t), sends(s, d, t)]
                    yield [-moves(s, d, c, t), picks(s, c, t)]
                    yield [moves(s, d, c, t), -sends(s, d, t), -picks(s, c, t)]
    for t in rounds:
        for c in every_chunk:
            for d in everyone:
                yield from effect(t, c, d)
    for c in every_chunk:
        for r in everyone:
            for i in everyone:
                yield [holds(i, r, c, 0) if i == r else -holds(i, r, c, 0)]
                yield [holds(i, r, c, last)]
            yield [-spoilt(r, c, last)]


def dimacs(formula: list[Clause]) -> str:
    """The formula as a file for solvers."""
    most = max(abs(literal) for clause in formula for literal in clause)
    lines = [f"p cnf {most} {len(formula)}", *(" ".join(map(str, [*c, 0])) for c in formula)]
    return "\n".join(lines) + "\n"
