"""Certificates of optimality: they hold, doctored ones are refused, the formula is the right one.

All but the last tests need neither Coq nor a solver's proof: the checker is plain Python.
"""

import json
import lzma
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import z3

from proofs.certificates.check import FOLDER, check_certificate, refutation_of
from proofs.certificates.formula import Question, clauses, dimacs, shorter
from proofs.certificates.refutation import Refused, check
from tests.verify.builders import broken
from tests.verify.search import fewest_rounds
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
DOCTORED: dict[str, list[str]] = {
    "no empty clause": PROOF[: next(i for i, line in enumerate(PROOF) if line.startswith("0 "))],
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
    solvable = list(clauses(Question(**(vars(question) | {"rounds": question.rounds + 1}))))
    refused = 0
    for _ in range(150):
        lines = list(PROOF)
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(lines))
            words = lines[at].split()
            words[rng.randrange(len(words))] = str(rng.randint(-60, 60))
            lines[at] = " ".join(words)
        with pytest.raises(Refused):
            check(solvable, lines)
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
    schedule, right = tmp_path / "s.json", FOLDER / "n3-k2-arrivals-0-1-1.json"
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
    arrival = ",".join(map(str, question.arrival))
    ports = "matching" if question.pairs else "duplex"
    sizes = map(str, (question.ranks, question.chunks, arrival, question.rounds))
    done = _run(kernel, "--formula", *sizes, ports)
    assert done.stdout == dimacs(list(clauses(question)))


def test_verified_checker_refuses_too(kernel: Path, tmp_path: Path) -> None:
    assert optimal(kernel, SMALL, "\n".join(PROOF))
    for name, changed in DOCTORED.items():
        assert not optimal(kernel, SMALL, "\n".join(changed)), name
    wrong = tmp_path / "wrong.json"
    wrong.write_text(json.dumps(broken(json.loads(SMALL.read_text()))))
    assert not optimal(kernel, wrong, "\n".join(PROOF))
