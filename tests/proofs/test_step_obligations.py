"""The steps on which the main theorems rest, as quick questions to Z3; none needs Coq.

The theorems are proved in ``proofs/coq``, by induction; here are their induction steps, without
quantifiers, so that Z3 always decides. Of each obligation three things are asked: it holds; what it
assumes can be met at all; and without the assumption named ``needed`` it fails, so that it says
something.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pytest
import z3

from proofs.certificates.formula import Question, clauses

TIMEOUT_MS = 60_000


@dataclass(frozen=True)
class Obligation:
    """``assumed`` (name -> formula) implies ``claim``, and not without ``needed``."""

    assumed: dict[str, z3.BoolRef]
    claim: z3.BoolRef
    needed: str


def _decide(formulas: Iterable[z3.BoolRef]) -> z3.CheckSatResult:
    solver = z3.Solver()
    solver.set("timeout", TIMEOUT_MS)
    solver.add(*formulas)
    return solver.check()


def _collecting() -> Obligation:
    """Semantics.run_collects: a transfer keeps "value = sum over the collected sources"."""
    data, lists = z3.DeclareSort("Data"), z3.DeclareSort("Sources")
    plus = z3.Function("plus", data, data, data)
    joined = z3.Function("joined", lists, lists, lists)
    total = z3.Function("total", lists, data)
    at_dst, at_src = z3.Consts("at_dst at_src", data)
    from_dst, from_src = z3.Consts("from_dst from_src", lists)
    copies = z3.Bool("copies")
    after = z3.If(copies, at_src, plus(at_dst, at_src))
    sources = z3.If(copies, from_src, joined(from_dst, from_src))
    return Obligation(
        {
            "receiver": at_dst == total(from_dst),
            "sender": at_src == total(from_src),
            "sum of joined": total(joined(from_dst, from_src))
            == plus(total(from_dst), total(from_src)),
        },
        after == total(sources),
        "sum of joined",
    )


def _same_bits() -> Obligation:
    """SameBits.eval_join: putting operands in order does not change a commutative operation."""
    data = z3.DeclareSort("Data")
    plus = z3.Function("plus", data, data, data)
    a, b = z3.Consts("a b", data)
    swapped = z3.Bool("swapped")
    return Obligation(
        {"commutes": plus(a, b) == plus(b, a)},
        z3.If(swapped, plus(b, a), plus(a, b)) == plus(a, b),
        "commutes",
    )


def _new_knowers() -> Obligation:
    """Knowledge.spread_length: two ranks that learn in one round learn from different ranks."""
    source = z3.Function("source", z3.IntSort(), z3.IntSort())
    r, other = z3.Ints("r other")
    return Obligation(
        {
            "one send per rank": z3.Implies(source(r) == source(other), r == other),
            "two ranks": r != other,
        },
        source(r) != source(other),
        "one send per rank",
    )


def _doubling() -> Obligation:
    """Knowledge.spread_all_length, one round."""
    before, after, power = z3.Ints("before after power")
    return Obligation(
        {"so far": before <= power, "one send per rank": after <= 2 * before},
        after <= 2 * power,
        "one send per rank",
    )


def _completion_bound() -> Obligation:
    """Knowledge.knowledge_bound_holds, its last step: n > 2^(L-1) ranks know after R rounds."""
    power = z3.Function("power", z3.IntSort(), z3.IntSort())
    n, k, rounds, log = z3.Ints("n k rounds log")
    left = rounds - (k - 1)  # rounds after the first in which the last chunk leaves
    return Obligation(
        {
            "all know": n <= power(left),
            "L is the rounded logarithm": power(log - 1) < n,
            "powers grow": z3.Implies(left <= log - 1, power(left) <= power(log - 1)),
        },
        rounds >= k + log - 1,
        "all know",
    )


def _useful_receives() -> Obligation:
    """Spread.useful_length: at most I from each knower and I by the rank itself."""
    ports, knowers, told, own, useful = z3.Ints("ports knowers told own useful")
    return Obligation(
        {
            "told by knowers": told <= ports * knowers,
            "received by the rank itself": own <= ports,
            "useful": useful <= told + own,
        },
        useful <= ports * (knowers + 1),
        "received by the rank itself",
    )


def _around_the_ring() -> Obligation:
    """Ring: the rank after the previous one is the rank itself, for every n."""
    n, r, before, after = z3.Ints("n r before after")
    return Obligation(
        {
            "rank": z3.And(r >= 0, r < n),
            "previous": before == z3.If(r + n - 1 < n, r + n - 1, r - 1),
            "next": after == z3.If(before + 1 < n, before + 1, before + 1 - n),
        },
        after == r,
        "rank",
    )


def _hypercube_partner() -> Obligation:
    """Hypercube: partners are each other's partners and differ in the bit of the round."""
    corner, bit, partner = z3.BitVecs("corner bit partner", 16)
    return Obligation(
        {"one bit": z3.And(bit != 0, bit & (bit - 1) == 0), "partner": partner == corner ^ bit},
        z3.And(partner ^ bit == corner, (partner & bit == 0) != (corner & bit == 0)),
        "one bit",
    )


def _unit_propagation() -> Obligation:
    """Refutation.examine_ok: with all other literals false a clause forces its last one."""
    a, b, c = z3.Bools("a b c")
    return Obligation(
        {"clause": z3.Or(a, b, c), "first false": z3.Not(a), "second false": z3.Not(b)},
        c,
        "second false",
    )


def _earliest() -> Obligation:
    """PipelineRun.earliest: an action that starts as soon as it can ends no later than allowed."""
    now, ready, cost, start = z3.Ints("now ready cost start")
    return Obligation(
        {"rank is free": now <= start, "needs are there": ready <= start},
        z3.If(now > ready, now, ready) + cost <= start + cost,
        "needs are there",
    )


def _one_after_the_other() -> Obligation:
    """PipelineBound.one_after_the_other: one more action of a rank, behind those before it."""
    begun, so_far, cost, start, last = z3.Ints("begun so_far cost start last")
    return Obligation(
        {"rank is busy until then": begun + so_far <= start, "over": start + cost <= last},
        begun + so_far + cost <= last,
        "rank is busy until then",
    )


OBLIGATIONS = {
    make.__name__.strip("_"): make()
    for make in (
        _collecting,
        _same_bits,
        _new_knowers,
        _doubling,
        _completion_bound,
        _useful_receives,
        _around_the_ring,
        _hypercube_partner,
        _unit_propagation,
        _earliest,
        _one_after_the_other,
    )
}


@pytest.mark.parametrize("name", OBLIGATIONS)
def test_step(name: str) -> None:
    obligation = OBLIGATIONS[name]
    assumed, refuted = obligation.assumed, z3.Not(obligation.claim)
    assert _decide([*assumed.values(), refuted]) == z3.unsat
    assert _decide(assumed.values()) == z3.sat
    without = [formula for key, formula in assumed.items() if key != obligation.needed]
    assert _decide([*without, refuted]) == z3.sat


def test_clauses_follow_from_the_meaning_of_a_round() -> None:
    """Formula.effect_holds: what a round does, said once more, implies each clause about it; and
    with any literal taken away some clause is wrong."""
    question = Question(3, 1, (0, 0, 0), 1)
    n, last = question.ranks, question.rounds

    def variable(kind: int, s: int, d: int, t: int) -> z3.BoolRef:
        return z3.Bool(str(1 + kind + 6 * (t + (last + 1) * (d + n * s))))

    def holds(i: int, r: int, t: int) -> z3.BoolRef:
        return variable(4, i, r, t)

    def spoilt(r: int, t: int) -> z3.BoolRef:
        return variable(5, 0, r, t)

    meaning = []
    for d in range(n):
        comes = [variable(2, s, d, 0) for s in range(n)]
        copy = variable(3, 0, d, 0)
        meaning += [z3.AtMost(*comes, 1), z3.Implies(copy, z3.Or(comes))]
        for i in range(n):
            received = z3.Or([z3.And(comes[s], holds(i, s, 0)) for s in range(n)])
            kept = z3.And(holds(i, d, 0), z3.Not(copy))
            meaning.append(holds(i, d, 1) == z3.Or(received, kept))
        brought = z3.Or([z3.And(comes[s], spoilt(s, 0)) for s in range(n)])
        twice = z3.Or(
            [z3.And(comes[s], holds(i, d, 0), holds(i, s, 0)) for s in range(n) for i in range(n)]
        )
        kept = z3.And(z3.Not(copy), z3.Or(spoilt(d, 0), twice))
        meaning.append(spoilt(d, 1) == z3.Or(brought, kept))

    def literal(number: int) -> z3.BoolRef:
        positive = z3.Bool(str(abs(number)))
        return positive if number > 0 else z3.Not(positive)

    def follows(clause: list[int]) -> bool:
        return _decide([*meaning, *(z3.Not(literal(x)) for x in clause)]) == z3.unsat

    after = {str(x) for d in range(n) for x in (spoilt(d, 1), *(holds(i, d, 1) for i in range(n)))}
    about = [c for c in clauses(question) if len(c) > 1 and any(str(abs(x)) in after for x in c)]
    assert len(about) == n * (1 + n + n * (2 + 4 * n))
    assert all(map(follows, about))
    to_itself = {1 + 2 + 6 * ((last + 1) * (d + n * d)) for d in range(n)}  # never happens
    shorter = [
        clause[:i] + clause[i + 1 :]
        for clause in about
        if not any(-x in to_itself for x in clause)
        for i in range(len(clause))
        if clause[i] not in to_itself
    ]
    assert not any(map(follows, shorter))
