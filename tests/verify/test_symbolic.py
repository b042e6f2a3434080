"""The second proof: Z3 agrees with the first, cvc5 agrees with Z3, a time-out is unknown."""

import json
import random
from collections import Counter
from functools import partial

import pytest

from latecomer.verify import Report, Schedule, Verdict, check
from latecomer.verify.symbolic import all_sums, smt2
from tests.verify import builders
from tests.verify.builders import Document, all_right, ring, schedule_of, straggler
from tests.verify.mutants import mutant
from tests.verify.oracle import run
from tests.verify.test_mutants import SEED

MUTANTS = 300
ASKED_OF_CVC5 = 60


def _check(schedule: Schedule, timeout_s: float) -> Report:
    return check(schedule, {"symbolic_sum": partial(all_sums, timeout_s=timeout_s)})


def ask_cvc5(script: str) -> str:
    import cvc5

    solver = cvc5.Solver()
    symbols = cvc5.SymbolManager(solver)
    parser = cvc5.InputParser(solver, symbols)
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, script, "question")
    answers = []
    while not (command := parser.nextCommand()).isNull():
        answers.append(str(command.invoke(solver, symbols)).strip())
    return "".join(answers)


def test_z3_agrees_on_mutants_and_cvc5_on_some_and_on_right_ones() -> None:
    print(f"LATECOMER_SEED={SEED}")
    rng = random.Random(SEED)
    right = list(all_right().values())
    answers: Counter[str] = Counter()
    for number, doc in enumerate([*right, *(mutant(rng) for _ in range(MUTANTS))]):
        schedule = schedule_of(doc)
        report = _check(schedule, 60)
        if report.results["well_formed"].verdict is not Verdict.PROVED:
            assert "symbolic_sum" not in report.results
            continue

        verdict = report.results["exactly_once"].verdict
        assert report.results["symbolic_sum"].verdict is verdict, doc
        answers[verdict] += number >= len(right)
        if number < len(right) + ASKED_OF_CVC5:
            answer = ask_cvc5(smt2(schedule))
            assert answer == ("unsat" if verdict is Verdict.PROVED else "sat"), doc
            answers[answer] += 1
    assert min(answers["proved"], answers["refuted"]) > MUTANTS // 10
    assert min(answers["unsat"], answers["sat"]) > 10


@pytest.mark.parametrize("timeout_s", [1e-9, 1e-4])
@pytest.mark.parametrize("broken", [False, True])
def test_no_time_is_unknown_never_refuted(timeout_s: float, broken: bool) -> None:
    doc = builders.broken(straggler(8)) if broken else straggler(8)
    report = _check(schedule_of(doc), timeout_s)
    assert report.results["symbolic_sum"].verdict is Verdict.UNKNOWN
    assert "Z3" in report.results["symbolic_sum"].note
    assert report.verdict is (Verdict.REFUTED if broken else Verdict.UNKNOWN)


OVERWRITTEN = ring(3)
OVERWRITTEN["phases"][0]["rounds"][1][0][3] = "copy"


@pytest.mark.parametrize("doc", [OVERWRITTEN, {**ring(3), "chunks": 4}])
def test_the_wrong_run_is_a_wrong_run(doc: Document) -> None:
    """The inputs of the counterexample, run by hand, do end wrong at the named rank."""
    counterexample = _check(schedule_of(doc), 60).results["symbolic_sum"].counterexample
    assert counterexample is not None
    inputs = json.loads(counterexample.expected.split("inputs ")[1])
    start = {(r, c): inputs[r] for r in range(3) for c in range(doc["chunks"])}
    sums = run(doc, start, int.__add__)
    wrong = sums[counterexample.rank, counterexample.chunk]
    assert ask_cvc5(smt2(schedule_of(doc))) == "sat"
    assert wrong == int(counterexample.found) != sum(inputs)
