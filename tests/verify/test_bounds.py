"""Bounds and claims: no schedule beats the bound (by exhaustive search on the smallest cases)."""

import itertools
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

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
from verify import Incast, Phase, Schedule, Verdict, check
from verify.core.bounds import bandwidth_bound, dissemination_bound, lower_bound, spread_bound
from verify.core.schedule import Ports

Cell = tuple[int, ...]  # how often each rank's contribution is in, 2 meaning too often
State = tuple[Cell, ...]  # cell of (rank, chunk) at rank * k + chunk
Move = tuple[int, int, int, str]
Pattern = tuple[tuple[int, ...] | None, ...]
"""One entry per phase: the ranks absent for one round, or None for the completion."""


def _rounds(n: int, k: int, ports: Ports, absent: tuple[int, ...]) -> list[tuple[Move, ...]]:
    """Every legal round among the ranks that are present."""
    incast = ports.incast if isinstance(ports, Incast) else 1
    present = [r for r in range(n) if r not in absent]

    def into(dst: int) -> Iterator[tuple[Move, ...]]:
        others = [src for src in present if src != dst]
        moves = [*itertools.product(others, [dst], range(k), ("copy", "reduce"))]
        for some in itertools.chain(*(itertools.combinations(moves, m) for m in range(incast + 1))):
            chunks = [move[2] for move in some]
            if all(op == "reduce" or chunks.count(c) == 1 for _, _, c, op in some):
                yield some

    found = []
    for parts in itertools.product(*(list(into(dst)) for dst in present)):
        moves = tuple(move for part in parts for move in part)
        sends = [move[0] for move in moves]
        if max(map(sends.count, sends), default=0) > incast:
            continue
        pairs = {frozenset(move[:2]) for move in moves}
        if ports == "matching" and any(a & b for a, b in itertools.combinations(pairs, 2)):
            continue
        found.append(moves)
    return found


def _after(state: State, moves: tuple[Move, ...], k: int) -> State:
    cells = list(state)
    for src, dst, c, op in moves:
        moved, kept = state[src * k + c], cells[dst * k + c]
        both = tuple(min(2, a + b) for a, b in zip(moved, kept, strict=True))
        cells[dst * k + c] = moved if op == "copy" else both
    return tuple(cells)


def _alive(state: State, n: int, k: int) -> bool:
    """Every contribution is still somewhere exactly once."""
    return all(any(state[r * k + c][x] == 1 for r in range(n)) for c in range(k) for x in range(n))


def _possible(n: int, k: int, ports: Ports, pattern: Pattern, completion: int) -> bool:
    """Whether some right schedule follows the pattern with so many completion rounds."""
    rounds = {absent: _rounds(n, k, ports, absent) for absent in {p or () for p in pattern}}
    start: State = tuple(tuple(int(x == r) for x in range(n)) for r in range(n) for _ in range(k))
    states, goal = {start}, ((1,) * n,) * (n * k)
    plan = [p or () for p in pattern for _ in range(1 if p else completion)]
    if not plan:
        return start == goal
    for absent in plan[:-1]:
        states = {
            after
            for state in states
            for moves in rounds[absent]
            if _alive(after := _after(state, moves, k), n, k)
        }
    return any(_after(state, moves, k) == goal for state in states for moves in rounds[plan[-1]])


def _schedule(n: int, k: int, ports: Ports, pattern: Pattern) -> Schedule:
    phases = tuple(Phase("x", absent or (), ((),) if absent else ()) for absent in pattern)
    late = tuple(sorted({rank for absent in pattern for rank in absent or ()}))
    return Schedule(ranks=n, chunks=k, ports=ports, phases=phases, late=late)


PORTS: list[Ports] = ["duplex", "matching", Incast(2)]
TWO: list[Pattern] = [(None,), ((1,), None), (None, (1,)), ((1,), None, (0,))]
THREE: list[Pattern] = [
    *[(None,), ((2,), None), (None, (2,)), ((2,), None, (2,)), ((1, 2), (2,), None)],
    *[((2,), (1,), None), ((1,), None, (2,)), ((2,), (2,), None, (2,))],
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


@pytest.mark.parametrize(("n", "k", "ports", "pattern"), CASES)
def test_no_right_schedule_beats_the_bound(n: int, k: int, ports: Ports, pattern: Pattern) -> None:
    bound = lower_bound(_schedule(n, k, ports, pattern))
    if bound:  # one round fewer is enough: a spare round may stay empty
        assert not _possible(n, k, ports, pattern, bound - 1)


@pytest.mark.parametrize(
    ("n", "k", "ports", "pattern"),
    [
        (2, 1, "matching", ((1,), None)),
        (2, 3, "duplex", (None,)),
        (3, 1, "matching", ((2,), None)),
        (3, 1, "duplex", ((2,), None, (2,))),  # its data spreads while rank 2 is away again
        (3, 1, Incast(2), (None,)),
        (3, 2, "matching", ((2,), None)),  # one more than the dissemination bound
        (4, 1, "duplex", (None,)),
    ],
)
def test_the_bound_is_attained(n: int, k: int, ports: Ports, pattern: Pattern) -> None:
    assert _possible(n, k, ports, pattern, lower_bound(_schedule(n, k, ports, pattern)))


def test_the_bounds_in_numbers() -> None:
    assert [dissemination_bound(n, n - 1) for n in (2, 4, 8, 16)] == [1, 4, 9, 18]
    assert dissemination_bound(9, 8, ports=2) == 4 + 2 - 1
    assert bandwidth_bound(8, 28) == 49
    assert [spread_bound(n, n - 1) for n in (4, 8, 16, 64)] == [4, 9, 18, 68]
    assert [spread_bound(n, n - 1, "matching") for n in (3, 5, 7, 9)] == [3, 6, 9, 11]
    assert spread_bound(7, 24, "matching") == 30 > dissemination_bound(7, 24)
    assert lower_bound(schedule_of(straggler(8))) == 7 + 3 - 1


@pytest.mark.parametrize("ports", ["duplex", "matching", Incast(2), Incast(3)], ids=str)
def test_spread_bound_is_the_fewest_rounds_that_hold_all_receives(ports: Ports) -> None:
    """Summed up round by round, for all small sizes; the closed loop of the bound is another."""
    each = ports.incast if isinstance(ports, Incast) else 1
    for n, k in itertools.product(range(2, 20), range(1, 20)):
        most = n - n % 2 if ports == "matching" else n * each
        rounds = held = 0
        while held < n * k:
            held += min(most, each * (each + 1) ** rounds + each)
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


def test_true_claims_are_proved() -> None:
    report = report_of({**optimal_four(), "meta": {**TRUE, "method": "by hand"}})
    assert report.results["claims"].verdict is Verdict.PROVED


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("rounds", 5), ("completion_rounds", 3), ("lower_bound", 3), ("gap", 1)],
        *[("optimal", False), ("rounds", "6"), ("rounds", 6.0), ("optimal", 1), ("gap", False)],
        ("lower_bound", None),
    ],
)
def test_a_false_claim_is_refuted_and_named(name: str, value: object) -> None:
    report = report_of({**optimal_four(), "meta": {name: value}})
    assert report.verdict is Verdict.REFUTED
    assert [p for p, r in report.results.items() if r.verdict is Verdict.REFUTED] == ["claims"]
    assert report.counterexample is not None
    assert name in report.counterexample.found
    assert report.optimal is True  # the schedule itself is right


def test_an_undecided_claim_is_unknown() -> None:
    report = report_of({**straggler(6), "meta": {"optimal": True}})
    assert report.verdict is Verdict.UNKNOWN
    assert report.results["claims"].note


def test_a_wrong_schedule_can_not_claim_to_be_optimal() -> None:
    report = report_of({**broken(optimal_four()), "meta": {"optimal": True}})
    assert report.optimal is False
    assert report.results["claims"].verdict is Verdict.REFUTED


def test_everybody_on_time() -> None:
    report = report_of(ring(5))
    assert report.completion_rounds == report.rounds == 8
    assert report.lower_bound == max(dissemination_bound(5, 5), bandwidth_bound(5, 5)) == 8


def test_bound_of_a_schedule_without_sense_is_zero() -> None:
    schedule = schedule_of(document(3, 1, [("a", [], [[[0, 7, 0, "copy"]]])]))
    assert check(schedule).lower_bound == 0
    assert check(msgspec.structs.replace(schedule, ranks=0)).verdict is Verdict.REFUTED
