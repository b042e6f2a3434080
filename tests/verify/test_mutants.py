"""The verdict on every mutant, property by property, is that of the naive judges of the tests.

``LATECOMER_SEED`` sets the seed (printed at the start), ``LATECOMER_MUTANTS`` the number in a part
of collectives, of which there are five times as many as pipelines. ``make test`` runs four parts of
each, and ``make test-long`` the rest.
"""

import json
import os
import random
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import pytest

from latecomer.verify import Verdict, check, decode, pipeline
from latecomer.verify.pipeline.costs import exact
from tests.verify import builders, mutants, oracle
from tests.verify.pipeline import documents, simulation

SEED = int(os.environ.get("LATECOMER_SEED", "20260118"))
MUTANTS = int(os.environ.get("LATECOMER_MUTANTS", "1500"))
SAYS = {Verdict.PROVED: True, Verdict.REFUTED: False, Verdict.UNKNOWN: None}


class Family(NamedTuple):
    """How documents of a kind are made and judged."""

    mutant: Callable[[random.Random], dict[str, Any]]
    right: dict[str, dict[str, Any]]
    again: Callable[[dict[str, Any], random.Random], dict[str, Any]]
    judge: Callable[[str, random.Random], dict[str, Any]]
    decode: Callable[[bytes], Any]
    check: Callable[[Any], Any]
    mutants: int
    properties: list[str]


FAMILIES = {
    "collective": Family(
        mutant=mutants.mutant,
        right=builders.all_right(),
        again=builders.shuffled,
        judge=oracle.judge,
        decode=decode,
        check=check,
        mutants=MUTANTS,
        properties=str.split("well_formed ports absence exactly_once same_bits hazards claims"),
    ),
    "pipeline": Family(
        mutant=mutants.pipeline_mutant,
        right=documents.all_right(),
        again=lambda doc, rng: doc,
        judge=lambda text, rng: simulation.judge(text),
        decode=pipeline.decode,
        check=pipeline.check,
        mutants=MUTANTS // 5,
        properties=str.split(
            "well_formed exactly_once dependencies loss_order communication message_order "
            "reduce_grad waits sharding deadlock_free memory"
        ),
    ),
}
PARTS = [(name, part) for part in range(4) for name in FAMILIES]
LONG_PARTS = [
    *(pytest.param("collective", part, marks=pytest.mark.long) for part in range(4, 8)),
    *(pytest.param("pipeline", part, marks=pytest.mark.long) for part in range(4, 16)),
]


def _agreed(family: Family, doc: dict[str, Any], rng: random.Random) -> Counter[str]:
    """Compare on one document; returns what came out, for the statistics."""
    text = json.dumps(doc)
    truth = family.judge(text, rng)
    schedule = family.decode(text.encode())
    report = family.check(schedule)
    verdicts = {name: SAYS[report.results[name].verdict] for name in family.properties}
    for name in family.properties:  # the judges say nothing where indices are out of range, say
        assert verdicts[name] == truth.get(name), (name, report.results[name], text)
    outcomes = Counter(f"{name} {holds}" for name, holds in verdicts.items())

    everything = {result.verdict for result in report.results.values()}
    assert (report.verdict is Verdict.PROVED) == (everything == {Verdict.PROVED}), text
    assert (report.verdict is Verdict.REFUTED) == (Verdict.REFUTED in everything), text

    if truth.get("deadlock_free"):
        _same_times(truth, schedule, report)
    else:
        assert getattr(report, "measures", None) is None, text
    outcomes["right"] += report.verdict is Verdict.PROVED
    return outcomes


def _same_times(truth: dict[str, Any], schedule: Any, report: Any) -> None:
    measured = report.measures
    in_order = truth.get("makespan_in_order")
    assert exact(measured.makespan) == _round(truth["makespan"])
    assert list(measured.peak_memory) == truth["peak_memory"]
    if schedule.has_messages:
        assert (measured.makespan_in_order is None) == (in_order is None)
        assert in_order is None or exact(measured.makespan_in_order) == _round(in_order)
    claim = schedule.meta.get("makespan", measured.makespan)
    bound = schedule.meta.get("lower_bound", measured.lower_bound)
    right = claim == measured.makespan and bound == measured.lower_bound
    assert (report.results["claims"].verdict is Verdict.PROVED) == right


def _round(time: Fraction) -> Fraction:
    return Fraction(repr(float(time)))


RIGHT = [(name, doc) for name, family in FAMILIES.items() for doc in family.right]


@pytest.mark.parametrize(("name", "doc"), RIGHT)
def test_right_schedules_are_proved_by_both(name: str, doc: str) -> None:
    rng = random.Random(SEED)
    family = FAMILIES[name]
    for _ in range(10 if name == "collective" else 1):
        assert _agreed(family, family.again(family.right[doc], rng), rng)["right"]


@pytest.mark.parametrize(("name", "part"), [*PARTS, *LONG_PARTS])
def test_mutants(name: str, part: int) -> None:
    print(f"LATECOMER_SEED={SEED} part {part}")
    rng = random.Random(f"{SEED}-{part}")
    family = FAMILIES[name]
    outcomes: Counter[str] = Counter()
    for _ in range(family.mutants):
        outcomes += _agreed(family, family.mutant(rng), rng)
    print(outcomes)
    assert outcomes["right"] >= family.mutants // 50
    for prop in family.properties:  # each check has been seen accepting and rejecting
        assert outcomes[f"{prop} True"] >= family.mutants // 100, (prop, outcomes)
        assert outcomes[f"{prop} False"] >= max(1, family.mutants // 200), (prop, outcomes)
