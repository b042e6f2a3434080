"""Bounds and claims: no schedule beats the bound (by exhaustive search on the smallest cases)."""

import itertools
from typing import Any

import pytest

from latecomer.verify import Incast, Phase, Schedule, Verdict
from latecomer.verify.core.bounds import (
    bandwidth_bound,
    dissemination_bound,
    lower_bound,
    spread_bound,
)
from latecomer.verify.core.schedule import Ports
from tests.verify.builders import (
    Document,
    broken,
    document,
    optimal_four,
    optimal_two,
    report_of,
    ring,
    schedule_of,
    straggler,
)
from tests.verify.search import Search

Pattern = tuple[tuple[int, ...] | None, ...]
"""One entry per phase: the ranks absent for one round, or None for the completion."""


def _possible(n: int, k: int, ports: Ports, pattern: Pattern, completion: int) -> bool:
    """Whether some schedule with right sums follows the pattern with so many completion rounds."""
    search = Search(n, k, ports)
    absences: list[tuple[int, ...]] = []
    for absent in pattern:
        absences += [absent] if absent else [()] * completion
    return any(search.advance(absent) for absent in absences)  # the rest may stay empty


def _schedule(n: int, k: int, ports: Ports, pattern: Pattern) -> Schedule:
    phases = []
    late: set[int] = set()
    for absent in pattern:
        rounds = ((),) if absent else ()
        phases.append(Phase("x", absent or (), rounds))
        late.update(absent or ())
    return Schedule(ranks=n, chunks=k, ports=ports, phases=tuple(phases), late=tuple(sorted(late)))


PORTS: list[Ports] = ["duplex", "matching", Incast(2)]
TWO: list[Pattern] = [(None,), ((1,), None), (None, (1,)), ((1,), None, (0,))]
THREE: list[Pattern] = [
    (None,),
    ((2,), None),
    (None, (2,)),
    ((2,), None, (2,)),
    ((1, 2), (2,), None),
    ((2,), (1,), None),
    ((1,), None, (2,)),
    ((2,), (2,), None, (2,)),
    ((2,), (1,), (2,), None),
]
CASES: list[tuple[int, int, Ports, Pattern]] = [
    *itertools.product([2], [1, 2, 3], PORTS, TWO),
    *itertools.product([3], [1], PORTS, THREE),
    (3, 2, "duplex", (None,)),
    (3, 2, "matching", ((2,), None)),
    (3, 2, "matching", ((2,), (2,), None)),
    (3, 2, "duplex", (None, (2,))),
    (4, 1, "duplex", (None,)),
    (4, 1, "matching", ((3,), None)),
    (4, 1, "matching", ((3,), None, (3,))),
    (4, 1, "matching", ((2, 3), (3,), None)),
]


ATTAINED: list[tuple[int, int, Ports, Pattern]] = [
    (2, 1, "matching", ((1,), None)),
    (2, 3, "duplex", (None,)),
    (3, 1, "matching", ((2,), None)),
    (3, 1, "duplex", ((2,), None, (2,))),  # its data spreads while rank 2 is away again
    (3, 1, "duplex", ((2,), (1,), (2,), None)),  # in no round
    (3, 1, Incast(2), (None,)),
    (3, 2, "matching", ((2,), None)),  # one more than the dissemination bound
    (4, 1, "duplex", (None,)),
]


@pytest.mark.parametrize("case", CASES)
def test_no_right_schedule_beats_the_bound(case: tuple[int, int, Ports, Pattern]) -> None:
    n, k, ports, pattern = case
    bound = lower_bound(_schedule(n, k, ports, pattern))
    if bound:  # one round fewer is enough: a spare round may stay empty
        assert not _possible(n, k, ports, pattern, bound - 1)
    if case in ATTAINED:
        assert _possible(n, k, ports, pattern, bound)


def test_the_bounds_in_numbers() -> None:
    assert [dissemination_bound(n, n - 1) for n in (2, 4, 8, 16)] == [1, 4, 9, 18]
    assert dissemination_bound(9, 8, ports=2) == 4 + 2 - 1
    assert bandwidth_bound(8, 28) == 49
    assert bandwidth_bound(3, 2) == 3
    assert bandwidth_bound(5, 3, 2) == 3
    assert [spread_bound(n, n - 1) for n in (4, 8, 16, 64)] == [4, 9, 18, 68]
    assert [spread_bound(n, n - 1, "matching") for n in (3, 5, 7, 9)] == [3, 6, 9, 11]
    assert spread_bound(7, 24, "matching") == 30 > dissemination_bound(7, 24)
    assert lower_bound(schedule_of(straggler(8))) == 7 + 3 - 1
    one_round_each = document(4, 8, [("wait", [3], [[]]), ("completion", [], [[]])], late=[3])
    assert lower_bound(schedule_of(one_round_each)) == 2 * 8 * 3 // 4 - 1


@pytest.mark.parametrize("ports", ["duplex", "matching", Incast(2), Incast(3)], ids=str)
def test_spread_bound_is_the_fewest_rounds_that_hold_all_receives(ports: Ports) -> None:
    """Summed up round by round, for all small sizes; the closed loop of the bound is another."""
    incast = ports.incast if isinstance(ports, Incast) else 1
    for n, k in itertools.product(range(2, 20), range(1, 20)):
        receives_at_most = n - n % 2 if ports == "matching" else n * incast
        receives = 0
        rounds = 0
        while receives < n * k:
            receives += min(receives_at_most, incast * (incast + 1) ** rounds + incast)
            rounds += 1
        assert spread_bound(n, k, ports) == rounds, (n, k)


SPARE = straggler(5)
SPARE["phases"][1]["rounds"].insert(2, [])
RATED: list[tuple[Document, Any]] = [
    *((doc, True) for doc in (optimal_four(), optimal_four("matching"), optimal_two(), ring(5))),
    (SPARE, False),  # an empty completion round
    (straggler(6), "unknown"),
]


@pytest.mark.parametrize(("doc", "optimal"), RATED)
def test_optimal_at_the_bound(doc: Document, optimal: Any) -> None:
    report = report_of(doc)
    assert report.verdict is Verdict.PROVED
    assert report.optimal is optimal or report.optimal == optimal == "unknown"
    assert (report.completion_rounds == report.lower_bound) == (optimal is True)


TRUE = {"rounds": 6, "completion_rounds": 4, "lower_bound": 4, "gap": 0, "optimal": True}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rounds", 5),
        ("completion_rounds", 3),
        ("lower_bound", 3),
        ("gap", 1),
        ("optimal", False),
        ("rounds", "6"),
        ("rounds", 6.0),
        ("optimal", 1),
        ("gap", False),
        ("lower_bound", None),
    ],
)
def test_a_false_claim_is_refuted_and_named(name: str, value: object) -> None:
    true = {**TRUE, "method": "by hand"}
    assert report_of({**optimal_four(), "meta": true}).verdict is Verdict.PROVED
    report = report_of({**optimal_four(), "meta": {**true, name: value}})
    assert report.verdict is Verdict.REFUTED
    assert [p for p, r in report.results.items() if r.verdict is Verdict.REFUTED] == ["claims"]
    assert report.counterexample is not None
    assert name in report.counterexample.found
    assert report.optimal is True  # the schedule itself is right


def test_a_wrong_schedule_can_not_claim_to_be_optimal() -> None:
    report = report_of({**broken(optimal_four()), "meta": {"optimal": True}})
    assert report.optimal is False
    assert report.results["claims"].verdict is Verdict.REFUTED
