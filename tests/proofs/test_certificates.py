"""Certificates of optimality: they hold, doctored ones are refused, the formula is the right one.

All but the last tests need neither Coq nor a solver's proof: the checker is plain Python.
"""

from __future__ import annotations

import json
import lzma
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proofs.certificates.check import FOLDER, check_certificate, refutation_of
from proofs.certificates.formula import Question, clauses, dimacs, shorter
from proofs.certificates.refutation import Refused, check
from synth.arrivals.instance import Arrivals
from synth.solvers.choice import solve
from synth.solvers.model import Exhausted, Found, Model
from tests.synth.test_arrivals_exact import fewest_rounds
from verify import Verdict, decode
from verify import check as verify

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


def test_command_needs_nothing_installed() -> None:
    command = [sys.executable, "-I", "-S", "-c"]
    program = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.argv = ['check', {str(SMALL)!r}]; "
        "from proofs.certificates.check import main; main()"
    )
    done = subprocess.run(
        [*command, program], capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "1 of 1 certificates hold" in done.stdout


def doctored(formula: list[list[int]], proof: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Refutations with one thing changed, each of which must be refused."""
    empty = next(i for i, line in enumerate(proof) if line.startswith("0 "))
    yield "no empty clause", proof[:empty]
    yield "nothing", []
    yield "the empty clause from nothing", ["0 0"]
    yield "the empty clause from one clause", ["0 1 0"]
    yield "a clause of the future", [f"0 {len(formula) + 1} 0"]
    yield "clause 0", ["0 0 0"]
    yield "a negative hint", ["0 -1 0"]
    yield "words", ["one 0 1 0"]
    yield "no end", ["1 2 3"]
    yield "no second end", [proof[0][:-2], *proof[1:]]


@pytest.mark.parametrize("number", range(10))
def test_doctored_proof_is_refused(number: int) -> None:
    formula, proof = formula_and_proof(SMALL)
    _, changed = list(doctored(formula, proof))[number]
    with pytest.raises(Refused):
        check(formula, changed)


def test_changed_numbers_are_refused_or_still_a_proof() -> None:
    """Whatever is changed, a formula that can be solved is not refuted."""
    rng = random.Random(7)
    _, proof = formula_and_proof(SMALL)
    document = json.loads(SMALL.read_text())
    question = shorter(document)
    solvable = list(clauses(Question(**(vars(question) | {"rounds": question.rounds + 1}))))
    refused = 0
    for _ in range(150):
        lines = list(proof)
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(lines))
            words = lines[at].split()
            words[rng.randrange(len(words))] = str(rng.randint(-60, 60))
            lines[at] = " ".join(words)
        with pytest.raises(Refused):
            check(solvable, lines)
        formula, _ = formula_and_proof(SMALL)
        try:
            check(formula, lines)
        except Refused:
            refused += 1
    assert refused > 100


@pytest.mark.parametrize("change", ["longer", "other arrivals", "more ranks", "truncated"])
def test_refutation_of_another_question_is_refused(tmp_path: Path, change: str) -> None:
    schedule = tmp_path / "s.json"
    document = json.loads((FOLDER / "n3-k2-arrivals-0-1-1.json").read_text())
    packed = refutation_of(FOLDER / "n3-k2-arrivals-0-1-1.json").read_bytes()
    if change == "longer":
        document["phases"][-1]["rounds"].append([])
    elif change == "other arrivals":
        document["phases"][0]["absent"] = [2]
    elif change == "more ranks":
        document["ranks"] = 4
    else:
        packed = packed[: len(packed) // 2]
    schedule.write_text(json.dumps(document))
    refutation_of(schedule).write_bytes(packed)
    with pytest.raises((Refused, EOFError)):
        check_certificate(schedule)


def test_no_question_about_incast() -> None:
    document = json.loads(SMALL.read_text()) | {"ports": {"incast": 2}}
    with pytest.raises(ValueError, match="duplex"):
        shorter(document)


# -- the formula ---------------------------------------------------------------------------------


def solvable(question: Question) -> bool:
    """By CP-SAT, which is not trusted anywhere else."""
    model, numbers = Model(), dict[int, int]()
    for clause in clauses(question):
        for literal in clause:
            if abs(literal) not in numbers:
                numbers[abs(literal)] = model.new_variable()
        model.require_any([numbers[abs(x)] * (1 if x > 0 else -1) for x in clause])
    answer = solve(model, "cp-sat", seed=0, time_limit_s=60)
    assert isinstance(answer, Found | Exhausted)
    return isinstance(answer, Found)


@pytest.mark.parametrize(
    ("chunks", "arrival"), [(1, (0, 0, 0)), (2, (0, 0, 1)), (1, (0, 1, 1)), (3, (0, 1))]
)
def test_formula_agrees_with_a_search_through_all_states(
    chunks: int, arrival: tuple[int, ...]
) -> None:
    fewest = fewest_rounds(Arrivals(chunks, arrival, tuple(range(1, len(arrival)))))
    for rounds in range(1, fewest + 2):
        question = Question(len(arrival), chunks, arrival, max(arrival) + rounds)
        assert solvable(question) == (rounds >= fewest)


def values(document: dict[str, Any], question: Question) -> dict[int, bool]:
    """What the variables mean, for a schedule: counted by running it (numbers as in formula.py)."""
    n, k, last = question.ranks, question.chunks, question.rounds
    true: set[int] = set()

    def number(kind: int, s: int, d: int, c: int, t: int) -> int:
        return 1 + kind + 6 * (t + (last + 1) * (c + k * (d + n * s)))

    held = [[[int(i == r) for i in range(n)] for _ in range(k)] for r in range(n)]
    rounds = [moves for phase in document["phases"] for moves in phase["rounds"]]
    for t in range(last + 1):
        for r in range(n):
            for c in range(k):
                true |= {number(4, i, r, c, t) for i in range(n) if held[r][c][i]}
                if max(held[r][c]) > 1:
                    true.add(number(5, 0, r, c, t))
        before = [[list(chunk) for chunk in rank] for rank in held]
        for s, d, c, op in rounds[t] if t < len(rounds) else []:
            true |= {number(0, s, d, 0, t), number(1, s, 0, c, t), number(2, s, d, c, t)}
            if op == "copy":
                true.add(number(3, 0, d, c, t))
                held[d][c] = before[s][c]
            else:
                held[d][c] = [a + b for a, b in zip(held[d][c], before[s][c], strict=True)]
    return {v: v in true for v in range(1, number(5, n - 1, n - 1, k - 1, last) + 1)}


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda path: path.stem)
def test_right_schedule_solves_its_formula(schedule: Path) -> None:
    """And a wrong one does not: any transfer left out breaks some clause."""
    document = json.loads(schedule.read_text())
    own = shorter(document)
    question = Question(**(vars(own) | {"rounds": own.rounds + 1}))
    formula = list(clauses(question))

    def broken() -> list[list[int]]:
        value = values(document, question)
        return [c for c in formula if not any(value[abs(x)] == (x > 0) for x in c)]

    assert broken() == []
    rounds = [moves for phase in document["phases"] for moves in phase["rounds"] if moves]
    random.Random(3).choice(rounds).pop()
    assert broken()


# -- with the verified checker -------------------------------------------------------------------


def optimal(kernel: Path, schedule: Path, proof: str) -> bool:
    done = subprocess.run(
        [kernel, "--optimal", schedule],
        input=proof,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
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
    arrival = ",".join(map(str, question.arrival))
    ports = "matching" if question.pairs else "duplex"
    sizes = map(str, (question.ranks, question.chunks, arrival, question.rounds))
    done = subprocess.run(
        [kernel, "--formula", *sizes, ports],
        capture_output=True,
        text=True,
        check=True,
        timeout=500,
    )
    assert done.stdout == dimacs(list(clauses(question)))


def test_verified_checker_refuses_too(kernel: Path, tmp_path: Path) -> None:
    formula, proof = formula_and_proof(SMALL)
    assert optimal(kernel, SMALL, "\n".join(proof))
    for name, changed in doctored(formula, proof):
        assert not optimal(kernel, SMALL, "\n".join(changed)), name
    wrong = tmp_path / "wrong.json"
    shutil.copy(SMALL, wrong)
    document = json.loads(SMALL.read_text())
    document["phases"][-1]["rounds"][0].pop()
    wrong.write_text(json.dumps(document))
    assert not optimal(kernel, wrong, "\n".join(proof))
