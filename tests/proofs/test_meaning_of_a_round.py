"""The formula of the certificates says what the interpreter does, for every round of three ranks.

The interpreter runs each round on unknowns of Z3: of whom a rank holds the contribution, and
whether it holds one twice. That the clauses follow is proved for all sizes in ``Formula.v``; here
are the clauses and the rounds that run. None of it needs Coq.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import product

import numpy as np
import z3

from proofs.certificates.formula import Question, clauses
from tests.verify.builders import document
from verify import decode
from verify.core.interpreter import Algebra, Values, run
from verify.core.schedule import IntArray

RANKS = 3
QUESTION = Question(RANKS, 1, (0,) * RANKS, 1)
ARRIVES, COPIES, HOLDS, SPOILT = 2, 3, 4, 5  # kinds of variables in formula.py


def variable(kind: int, s: int, d: int, t: int) -> z3.BoolRef:
    return z3.Bool(str(1 + kind + 6 * (t + (QUESTION.rounds + 1) * (d + RANKS * s))))


@dataclass(frozen=True)
class Held:
    """What a rank holds: of which ranks, and whether of one of them twice."""

    of: tuple[z3.BoolRef, ...]
    spoilt: z3.BoolRef

    def __add__(self, other: Held) -> Held:
        both = list(zip(self.of, other.of, strict=True))
        twice = [z3.And(*pair) for pair in both]
        return Held(tuple(z3.Or(*pair) for pair in both), z3.Or(self.spoilt, other.spoilt, *twice))


def unknowns(t: int) -> Values:
    state = np.empty((RANKS, 1), object)
    for r in range(RANKS):
        of = tuple(variable(HOLDS, i, r, t) for i in range(RANKS))
        state[r, 0] = Held(of, variable(SPOILT, 0, r, t))
    return state


class Unknowns(Algebra):
    def initial(self, ranks: int, low: int, high: int) -> Values:
        return unknowns(0)

    def added(self, kept: Values, moved: Values, index: IntArray) -> Values:
        return kept + moved


def one_round(sources: tuple[tuple[int, str] | None, ...]) -> z3.BoolRef:
    """That this round is run: who receives from whom, and what the interpreter makes of it."""
    moves = [[source[0], d, 0, source[1]] for d, source in enumerate(sources) if source]
    schedule = decode(json.dumps(document(RANKS, 1, [("one", [], [moves])])).encode())
    after = run(schedule, Unknowns(), 0, 1)
    copied = {d for _, d, _, op in moves if op == "copy"}
    facts = [variable(COPIES, 0, d, 0) == (d in copied) for d in range(RANKS)]
    arrives = {(s, d) for s, d, _, _ in moves}
    for s, d in product(range(RANKS), repeat=2):
        facts.append(variable(ARRIVES, s, d, 0) == ((s, d) in arrives))
    for wanted, found in zip(unknowns(1)[:, 0], after[:, 0], strict=True):
        facts += [a == b for a, b in zip(wanted.of, found.of, strict=True)]
        facts.append(wanted.spoilt == found.spoilt)
    return z3.And(facts)


def test_clauses_follow_from_what_the_interpreter_does() -> None:
    """And with any literal taken away some clause is wrong."""
    into = [
        [None, *((s, op) for s in range(RANKS) if s != d for op in ("copy", "reduce"))]
        for d in range(RANKS)
    ]
    solver = z3.Solver()
    solver.add(z3.Or([one_round(sources) for sources in product(*into)]))

    def follows(clause: list[int]) -> bool:
        return solver.check([z3.Not(literal(x)) for x in clause]) == z3.unsat

    def literal(number: int) -> z3.BoolRef:
        positive = z3.Bool(str(abs(number)))
        return positive if number > 0 else z3.Not(positive)

    after = {str(x) for held in unknowns(1)[:, 0] for x in (held.spoilt, *held.of)}
    about = [c for c in clauses(QUESTION) if len(c) > 1 and any(str(abs(x)) in after for x in c)]
    assert len(about) == RANKS * (1 + RANKS + RANKS * (2 + 4 * RANKS))
    assert all(map(follows, about))
    to_itself = {int(str(variable(ARRIVES, d, d, 0))) for d in range(RANKS)}  # never happens
    shorter = [
        clause[:i] + clause[i + 1 :]
        for clause in about
        if not any(-x in to_itself for x in clause)
        for i in range(len(clause))
        if clause[i] not in to_itself
    ]
    assert not any(map(follows, shorter))
