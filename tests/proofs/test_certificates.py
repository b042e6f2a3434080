"""Certificates of optimality: they hold, doctored ones are refused, the formula is the right one.

All but the last tests need neither Coq nor a solver's proof: the checker is plain Python.
"""

from __future__ import annotations

import json
import lzma
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import z3

from latecomer.verify import Verdict, decode
from latecomer.verify import check as verify
from latecomer.verify.core.interpreter import Algebra, Values, run
from latecomer.verify.core.schedule import IntArray
from proofs.certificates.check import FOLDER, check_certificate, refutation_of
from proofs.certificates.formula import Question, clauses, dimacs, shorter
from proofs.certificates.refutation import Refused, check
from tests.verify.builders import broken, document
from tests.verify.search import fewest_rounds

ROOT = Path(__file__).resolve().parents[2]
SCHEDULES = sorted(FOLDER.glob("*.json"))
SMALL = FOLDER / "n3-k2-arrivals-0-0-0.json"


def formula_and_proof(schedule: Path) -> tuple[list[list[int]], list[str]]:
    formula = list(clauses(shorter(json.loads(schedule.read_text()))))
    with lzma.open(refutation_of(schedule), "rt") as lines:
        return formula, lines.read().splitlines()


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda path: path.stem)
def test_holds(schedule: Path) -> None:
    assert "impossible" in check_certificate(schedule)
    report = verify(decode(schedule.read_bytes()))
    assert report.verdict is Verdict.PROVED
    assert report.optimal == "unknown"  # else it would need no certificate


def _run(*command: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=500, check=False, **options
    )


def test_command_needs_nothing_installed() -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.argv = ['check', {str(SMALL)!r}]; "
        "from proofs.certificates.check import main; main()"
    )
    done = _run(sys.executable, "-I", "-S", "-c", program)
    assert done.returncode == 0, done.stderr
    assert "1 of 1 certificates hold" in done.stdout


FORMULA, PROOF = formula_and_proof(SMALL)
EMPTY_CLAUSE = next(number for number, line in enumerate(PROOF) if line.startswith("0 "))
DOCTORED: dict[str, list[str]] = {
    "no empty clause": PROOF[:EMPTY_CLAUSE],
    "nothing": [],
    "the empty clause from nothing": ["0 0"],
    "the empty clause from one clause": ["0 1 0"],
    "a clause of the future": [f"0 {len(FORMULA) + 1} 0"],
    "clause 0": ["0 0 0"],
    "a negative hint": ["0 -1 0"],
    "words": ["one 0 1 0"],
    "no end": ["1 2 3"],
    "no second end": [PROOF[0][:-2], *PROOF[1:]],
}


@pytest.mark.parametrize("name", DOCTORED)
def test_doctored_proof_is_refused(name: str) -> None:
    with pytest.raises(Refused):
        check(FORMULA, DOCTORED[name])


def test_changed_numbers_are_refused_or_still_a_proof() -> None:
    """Whatever is changed, a formula that can be solved is not refuted."""
    rng = random.Random(7)
    question = shorter(json.loads(SMALL.read_text()))
    with_a_round_more = Question(**(vars(question) | {"rounds": question.rounds + 1}))
    solvable_formula = list(clauses(with_a_round_more))

    refused = 0
    for _ in range(150):
        lines = list(PROOF)
        for _ in range(rng.randint(1, 3)):
            number = rng.randrange(len(lines))
            words = lines[number].split()
            words[rng.randrange(len(words))] = str(rng.randint(-60, 60))
            lines[number] = " ".join(words)

        with pytest.raises(Refused):
            check(solvable_formula, lines)
        try:
            check(FORMULA, lines)
        except Refused:
            refused += 1
    assert refused > 100


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "longer": lambda doc: doc["phases"][-1]["rounds"].append([]),
    "other arrivals": lambda doc: doc["phases"][0].update(absent=[2]),
    "more ranks": lambda doc: doc.update(ranks=4),
    "truncated": lambda doc: None,
}


@pytest.mark.parametrize("change", CHANGES)
def test_refutation_of_another_question_is_refused(tmp_path: Path, change: str) -> None:
    schedule = tmp_path / "s.json"
    right = FOLDER / "n3-k2-arrivals-0-1-1.json"
    document = json.loads(right.read_text())
    CHANGES[change](document)
    schedule.write_text(json.dumps(document))

    packed = refutation_of(right).read_bytes()
    if change == "truncated":
        packed = packed[: len(packed) // 2]
    refutation_of(schedule).write_bytes(packed)

    with pytest.raises((Refused, EOFError)):
        check_certificate(schedule)


def test_no_question_about_incast() -> None:
    document = json.loads(SMALL.read_text()) | {"ports": {"incast": 2}}
    with pytest.raises(ValueError, match="duplex"):
        shorter(document)


# -- the formula ---------------------------------------------------------------------------------


def solvable(question: Question) -> bool:
    """By Z3, which is not trusted anywhere else."""
    solver = z3.Solver()
    solver.from_string(dimacs(list(clauses(question))))
    answer = solver.check()
    assert answer in (z3.sat, z3.unsat)
    return bool(answer == z3.sat)


@pytest.mark.parametrize(
    ("chunks", "arrival"), [(1, (0, 0, 0)), (2, (0, 0, 1)), (1, (0, 1, 1)), (3, (0, 1))]
)
def test_formula_agrees_with_a_search_through_all_states(
    chunks: int, arrival: tuple[int, ...]
) -> None:
    fewest = fewest_rounds(chunks, arrival)
    for rounds in range(1, fewest + 2):
        question = Question(len(arrival), chunks, arrival, max(arrival) + rounds)
        assert solvable(question) == (rounds >= fewest)


# -- the formula says what the interpreter does, for every round of three ranks ------------------
#
# The interpreter runs each round on unknowns of Z3: of whom a rank holds the contribution, and
# whether it holds one twice. That the clauses follow is proved for all sizes in ``Formula.v``; here
# are the clauses and the rounds that run. None of it needs Coq.

RANKS = 3
QUESTION = Question(RANKS, 1, (0,) * RANKS, 1)
ARRIVES = 2  # kinds of variables in formula.py
COPIES = 3
HOLDS = 4
SPOILT = 5


def variable(kind: int, s: int, d: int, t: int) -> z3.BoolRef:
    return z3.Bool(str(1 + kind + 6 * (t + (QUESTION.rounds + 1) * (d + RANKS * s))))


@dataclass(frozen=True)
class Held:
    """What a rank holds: of which ranks, and whether of one of them twice."""

    of: tuple[z3.BoolRef, ...]
    spoilt: z3.BoolRef

    def __add__(self, added: Held) -> Held:
        pairs = list(zip(self.of, added.of, strict=True))
        of = tuple(z3.Or(own, new) for own, new in pairs)
        twice = [z3.And(own, new) for own, new in pairs]
        return Held(of, z3.Or(self.spoilt, added.spoilt, *twice))


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
    after_run = run(schedule, Unknowns(), 0, 1)

    copied = {d for _, d, _, op in moves if op == "copy"}
    facts = [variable(COPIES, 0, d, 0) == (d in copied) for d in range(RANKS)]
    arrives = {(s, d) for s, d, _, _ in moves}
    for s, d in product(range(RANKS), repeat=2):
        facts.append(variable(ARRIVES, s, d, 0) == ((s, d) in arrives))

    for in_formula, in_run in zip(unknowns(1)[:, 0], after_run[:, 0], strict=True):
        facts += [a == b for a, b in zip(in_formula.of, in_run.of, strict=True)]
        facts.append(in_formula.spoilt == in_run.spoilt)
    return z3.And(facts)


def possible_sources(d: int) -> list[tuple[int, str] | None]:
    """From whom rank ``d`` may receive in a round, and how: from nobody, or from another rank."""
    senders = [s for s in range(RANKS) if s != d]
    return [None, *((s, op) for s in senders for op in ("copy", "reduce"))]


def test_clauses_follow_from_what_the_interpreter_does() -> None:
    """And with any literal taken away some clause is wrong."""
    all_rounds = product(*(possible_sources(d) for d in range(RANKS)))
    solver = z3.Solver()
    solver.add(z3.Or([one_round(sources) for sources in all_rounds]))

    def follows(clause: list[int]) -> bool:
        return solver.check([z3.Not(literal(x)) for x in clause]) == z3.unsat

    def literal(number: int) -> z3.BoolRef:
        positive = z3.Bool(str(abs(number)))
        return positive if number > 0 else z3.Not(positive)

    state_after = set()
    for held in unknowns(1)[:, 0]:
        state_after |= {int(str(x)) for x in (held.spoilt, *held.of)}
    about_the_round = [
        clause
        for clause in clauses(QUESTION)
        if len(clause) > 1 and not state_after.isdisjoint(map(abs, clause))
    ]
    assert len(about_the_round) == RANKS * (1 + RANKS + RANKS * (2 + 4 * RANKS))
    assert all(map(follows, about_the_round))

    to_itself = {int(str(variable(ARRIVES, d, d, 0))) for d in range(RANKS)}  # never happens
    for clause in about_the_round:
        if any(-x in to_itself for x in clause):
            continue
        for i, x in enumerate(clause):
            if x not in to_itself:
                assert not follows(clause[:i] + clause[i + 1 :])


# -- with the verified checker -------------------------------------------------------------------


def optimal(kernel: Path, schedule: Path, proof: str) -> bool:
    done = _run(kernel, "--optimal", schedule, input=proof)
    return done.returncode == 0 and json.loads(done.stdout) == {"optimal": True}


@pytest.mark.parametrize(
    "question",
    [
        Question(3, 2, (0, 0, 1), 4),
        Question(4, 2, (0, 1, 1, 2), 5, pairs=True),
        Question(2, 1, (0, 3), 5),
        Question(5, 3, (0, 0, 2, 0, 1), 4),
    ],
    ids=str,
)
def test_proved_encoder_writes_the_same_formula(kernel: Path, question: Question) -> None:
    ranks = str(question.ranks)
    chunks = str(question.chunks)
    arrival = ",".join(map(str, question.arrival))
    rounds = str(question.rounds)
    ports = "matching" if question.pairs else "duplex"
    done = _run(kernel, "--formula", ranks, chunks, arrival, rounds, ports)
    assert done.stdout == dimacs(list(clauses(question)))


def test_verified_checker_refuses_too(kernel: Path, tmp_path: Path) -> None:
    assert optimal(kernel, SMALL, "\n".join(PROOF))
    for name, changed in DOCTORED.items():
        assert not optimal(kernel, SMALL, "\n".join(changed)), name

    wrong = tmp_path / "wrong.json"
    wrong.write_text(json.dumps(broken(json.loads(SMALL.read_text()))))
    assert not optimal(kernel, wrong, "\n".join(PROOF))
