"""Schedules with random faults: ``verify`` and the simulation of the tests say the same.

``LATECOMER_SEED`` sets the seed (printed at the start), ``LATECOMER_MUTANTS`` the number of all
parts together, of which ``make test`` runs a quarter and ``make test-long`` the rest.
"""

import json
import os
import random
from collections import Counter
from fractions import Fraction

import pytest

from tests.verify.pipeline.documents import all_right, report_of
from tests.verify.pipeline.faults import mutant
from tests.verify.pipeline.simulation import judge
from verify.core.verdict import Verdict
from verify.pipeline import check, decode
from verify.pipeline.costs import exact

SEED = int(os.environ.get("LATECOMER_SEED", "0"))
MUTANTS = int(os.environ.get("LATECOMER_MUTANTS", "5200"))
PARTS = [*range(4), *(pytest.param(part, marks=pytest.mark.long) for part in range(4, 16))]
PROPERTIES = str.split(
    "well_formed exactly_once dependencies loss_order communication message_order reduce_grad "
    "sharding deadlock_free memory"
)
SAYS = {Verdict.PROVED: True, Verdict.REFUTED: False, Verdict.UNKNOWN: None}


def compared(text: bytes) -> Counter[str]:
    """Compare on one document; what was seen, for the statistics."""
    expected, schedule = judge(text), decode(text)
    report = check(schedule)
    seen: Counter[str] = Counter()
    for name in PROPERTIES:
        said = SAYS[report.results[name].verdict]
        assert said == expected.get(name), (name, report.results[name], text.decode())
        seen[f"{name} {said}"] += 1
    assert (report.measures is not None) == bool(expected.get("deadlock_free")), text.decode()
    if report.measures is None:
        return seen
    measured = report.measures
    assert exact(measured.makespan) == _round(expected["makespan"]), text.decode()
    assert list(measured.peak_memory) == expected["peak_memory"]
    if schedule.has_messages:
        in_order, said_in_order = expected["makespan_in_order"], measured.makespan_in_order
        assert (said_in_order is None) == (in_order is None)
        assert said_in_order is None or exact(said_in_order) == _round(in_order), text.decode()
    claim = schedule.meta.get("makespan", measured.makespan)
    bound = schedule.meta.get("lower_bound", measured.lower_bound)
    right = claim == measured.makespan and bound == measured.lower_bound
    assert (report.results["claims"].verdict is Verdict.PROVED) == right
    seen["runs"] += 1
    return seen


def _round(time: Fraction) -> Fraction:
    return Fraction(repr(float(time)))


@pytest.mark.parametrize("part", PARTS)
def test_mutants_get_the_same_verdict(part: int) -> None:
    print(f"LATECOMER_SEED={SEED} part {part}")
    rng = random.Random(f"{SEED}-{part}")
    seen: Counter[str] = Counter()
    mutants = MUTANTS // len(PARTS)
    for _ in range(mutants):
        seen += compared(json.dumps(mutant(rng)).encode())
    for name in PROPERTIES:  # each check has been seen accepting and rejecting
        assert seen[f"{name} True"] >= mutants // 100, (name, seen)
        assert seen[f"{name} False"] >= max(1, mutants // 200), (name, seen)
    assert seen["runs"] > mutants // 5


@pytest.mark.parametrize("name", all_right())
def test_right_schedules(name: str) -> None:
    compared(json.dumps(all_right()[name]).encode())
    assert report_of(all_right()[name]).verdict is Verdict.PROVED
