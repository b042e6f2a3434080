"""The verdict on every mutant, property by property, is that of the naive oracle.

``LATECOMER_SEED`` sets the seed (printed at the start), ``LATECOMER_MUTANTS`` the number of all
parts together, of which ``make test`` runs half and ``make test-long`` the rest.
"""

import json
import os
import random
from collections import Counter

import pytest

from tests.verify.builders import all_right, shuffled
from tests.verify.mutants import mutant
from tests.verify.oracle import judge
from verify import Verdict, check, decode

SEED = int(os.environ.get("LATECOMER_SEED", "20260118"))
MUTANTS = int(os.environ.get("LATECOMER_MUTANTS", "12000"))
DECIDED_BY_ORACLE = str.split("well_formed ports absence exactly_once same_bits hazards claims")
PARTS = [*range(4), *(pytest.param(part, marks=pytest.mark.long) for part in range(4, 8))]


@pytest.mark.parametrize("name", all_right())
def test_right_schedules_are_proved_by_both(name: str) -> None:
    rng = random.Random(SEED)
    for _ in range(10):
        text = json.dumps(shuffled(all_right()[name], rng)).encode()
        assert all(judge(text, rng).values())
        report = check(decode(text))
        assert report.verdict is Verdict.PROVED, report.counterexample


@pytest.mark.parametrize("part", PARTS)
def test_mutants(part: int) -> None:
    print(f"LATECOMER_SEED={SEED} part {part}")
    rng = random.Random(f"{SEED}-{part}")
    seen: Counter[str] = Counter()
    for number in range(MUTANTS // len(PARTS)):
        text = json.dumps(mutant(rng)).encode()
        truth = judge(text, rng)
        report = check(decode(text))
        where = f"seed {SEED}, part {part}, mutant {number}: {text.decode()}"
        for name in DECIDED_BY_ORACLE:
            if name in truth:
                expected = Verdict.PROVED if truth[name] else Verdict.REFUTED
            else:
                expected = Verdict.UNKNOWN  # meaningless without indices in range
            assert report.results[name].verdict is expected, f"{name}: {where}"
        right = all(truth.values())
        assert (report.verdict is Verdict.PROVED) == right, where
        assert (report.verdict is Verdict.REFUTED) == (not right), where
        seen["right" if right else "wrong"] += 1
        seen.update(name for name, holds in truth.items() if not holds)
    print(dict(seen))
    total = seen["right"] + seen["wrong"]
    assert seen["right"] >= total // 50
    assert seen["wrong"] >= total // 4
    for name in DECIDED_BY_ORACLE:
        assert seen[name] >= total // 200, f"{name} is hardly ever refuted: {seen}"
