"""The theorem on transpose AllReduce for every n: its lemmas, and the schedules it is about."""

import copy
import json
import random

import pytest
import z3

from proofs import transpose_loss as theorem
from synth import direct, generate, rhd, ring
from synth.transpose.generate import transpose
from tests.verify.builders import schedule_of
from tests.verify.mutants import CollectiveChange
from tests.verify.test_symbolic import ask_cvc5
from verify import Schedule, Verdict, encode
from verify.core.structure import hazards, well_formed
from verify.errors import ArgumentError
from verify.loss.examine import examine

SIZES = [(n, incast) for n in (*range(2, 14), 24) for incast in (1, 2, 3, n - 1) if incast < n]


def test_lemmas_are_proved(capsys) -> None:
    with pytest.raises(SystemExit, match="False"):
        theorem.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"proved  {lemma}" for lemma in theorem.LEMMAS]
    assert len(lines) == 7


@pytest.mark.parametrize("lemma", theorem.LEMMAS)
def test_another_solver_proves_it_too_and_it_is_not_empty(lemma: str) -> None:
    """Its premises can be met, for small and for large n: without the question it is ``sat``."""
    assert ask_cvc5(theorem.script(lemma)) == "unsat"
    assertions = z3.parse_smt2_string(theorem.script(lemma))
    n = z3.Int("n")
    for size in (2, 3, 1000):
        solver = z3.Solver()
        solver.add(*list(assertions)[:-1], n == size)
        assert solver.check() == z3.sat


WRONG = {
    "a lost contribution is there all the same": ("(distinct (pos1 q) lost1)", "true"),
    "a lost copy is there all the same": ("(distinct (pos2 r) lost2)", "true"),
    "the owner holds nothing at first": ("(or (= q o) (and (< (pos1", "(or (and (< (pos1"),
    "a contribution is there one too early": ("(< (pos1 q) m)", "(<= (pos1 q) m)"),
    "a copy is there one too late": ("(< (pos2 r) m)", "(< (+ (pos2 r) 1) m)"),
    "others hold nothing before their copy": ("(held1 (- n 1) q) (once (= q r))", "(held1 m q) 0"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_claims_are_not_proved(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    right, wrong = WRONG[name]
    assert right in theorem.PREAMBLE
    monkeypatch.setattr(theorem, "PREAMBLE", theorem.PREAMBLE.replace(right, wrong))
    assert not all(theorem.proved(lemma) for lemma in theorem.LEMMAS)


def _as_the_theorem_says(schedule: Schedule) -> bool:
    """One contribution of one chunk at all ranks, or one chunk at one rank, who keeps its own."""
    report = examine(schedule, 1, 60.0)
    assert report.each is not None
    everybody = tuple(range(schedule.ranks))
    for single in report.each:
        lost, reduce = single.lost, single.lost.op == "reduce"
        others = tuple(rank for rank in everybody if rank != lost.dst)
        blocks = (everybody, (lost.src,)) if reduce else ((lost.dst,), others)
        found = [(block.chunk, block.ranks, block.contributions) for block in single.missing]
        if found != [(lost.chunk, *blocks)] or single.twice or single.differ is reduce:
            return False
    return True


@pytest.mark.parametrize(("n", "incast"), SIZES)
def test_for_each_n(n: int, incast: int) -> None:
    """What is examined is compared with the oracle's runs in ``test_examine``."""
    for schedule in (transpose(n, incast=incast), *([direct(n)] if incast == n - 1 else [])):
        assert theorem.is_transpose(schedule)
        assert _as_the_theorem_says(schedule)


def test_others_are_no_transpose() -> None:
    two_level = transpose(8, groups=2, exchange="transpose")
    for schedule in (ring(5), rhd(8), generate(5), two_level, transpose(8, groups=4)):
        assert not theorem.is_transpose(schedule)
        assert not _as_the_theorem_says(schedule)


def test_mutants() -> None:
    """Whatever is still a transpose after a change obeys the theorem, and so is right."""
    rng = random.Random(7)
    verdicts = {True: 0, False: 0}
    right = json.loads(encode(transpose(5, incast=2)))
    for _ in range(400):
        doc = copy.deepcopy(right)
        CollectiveChange(doc, rng)
        schedule = schedule_of(doc)
        if any(decide(schedule).verdict is not Verdict.PROVED for decide in (well_formed, hazards)):
            continue  # it has no meaning
        try:
            obeys = _as_the_theorem_says(schedule)
        except ArgumentError:
            obeys = False  # wrong without any loss
        transposes = theorem.is_transpose(schedule)
        verdicts[transposes] += 1
        assert obeys or not transposes
    assert min(verdicts.values()) > 40
