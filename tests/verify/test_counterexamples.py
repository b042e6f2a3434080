"""A refutation names the place and shows the few transfers that matter."""

from __future__ import annotations

import random
from itertools import groupby
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.verify.builders import Document, document, optimal_four, ring, schedule_of, straggler
from tests.verify.mutants import mutant
from tests.verify.oracle import run as run_document
from verify import Counterexample, Schedule, Verdict, check
from verify.core.interpreter import run
from verify.core.semantics import Counts
from verify.core.verdict import SHOWN
from verify.report.explain import explain, explained


def _refutation(doc: Document, name: str) -> Counterexample:
    schedule = schedule_of(doc)
    found = check(schedule).results[name].counterexample
    assert found is not None, f"{name} was not refuted"
    assert found.property == name
    return explained(schedule, found)


def _place(found: Counterexample) -> tuple[Any, ...]:
    return found.phase, found.round, found.rank, found.chunk


def _shown(found: Counterexample) -> list[tuple[Any, ...]]:
    return [(t.phase, t.round, t.src, t.dst, t.chunk, t.op) for t in found.transfers]


def _rounds(*rounds: list[list[Any]], ports: Any = "duplex", n: int = 3, k: int = 2) -> Document:
    return document(n, k, [("p", [], list(rounds))], ports=ports)


# well_formed


@pytest.mark.parametrize(
    ("move", "expected", "found"),
    [
        ([3, 0, 0, "copy"], "src in 0..2", "3"),
        ([0, -1, 0, "copy"], "dst in 0..2", "-1"),
        ([0, 1, 2, "reduce"], "chunk in 0..1", "2"),
        ([1, 1, 0, "reduce"], "src and dst differ", "rank 1 sends to itself"),
    ],
)
def test_an_index_out_of_range(move: list[Any], expected: str, found: str) -> None:
    refuted = _refutation(_rounds([], [[0, 1, 0, "copy"], move]), "well_formed")
    assert (refuted.phase, refuted.round) == ("p", 1)
    assert (refuted.expected, refuted.found) == (expected, found)
    assert _shown(refuted) == [("p", 1, *move)]


def test_an_index_beyond_64_bits_is_refuted_too() -> None:
    refuted = _refutation(_rounds([[0, 10**30, 0, "copy"]]), "well_formed")
    assert refuted.expected == "dst in 0..2"


def test_absent_but_not_late() -> None:
    refuted = _refutation(document(3, 1, [("wait", [1], [[]])], late=[2]), "well_formed")
    assert (refuted.phase, refuted.rank) == ("wait", 1)
    assert refuted.transfers == ()


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"ranks": 0}, "ranks = 0"),
        ({"chunks": 0}, "chunks = 0"),
        ({"late": (3,)}, "late rank 3"),
        ({"late": (-1,)}, "late rank -1"),
    ],
)
def test_a_senseless_schedule_made_in_memory(change: dict[str, Any], found: str) -> None:
    report = check(msgspec.structs.replace(schedule_of(_rounds([])), **change))
    assert report.verdict is Verdict.REFUTED
    assert report.counterexample is not None
    assert report.counterexample.found == found


# ports, absence, hazards

FAN_IN = [[r, 0, 0, "reduce"] for r in range(1, 6)]
COPIED = [*FAN_IN[:3], [4, 0, 0, "copy"], FAN_IN[4]]
TWO_SENDS = [[0, 1, 0, "copy"], [1, 2, 1, "copy"], [0, 2, 1, "copy"]]
TWO_PARTNERS = [[0, 1, 0, "copy"], [1, 2, 1, "copy"]]
TWO_WRITERS = [[0, 2, 0, "reduce"], [1, 2, 0, "reduce"]]
ONE_ROUND: dict[str, tuple[list[list[Any]], Any, int, str, list[int]]] = {
    # the round, its ports, rank at fault, what was found, which transfers are shown
    "ports: sends": (TWO_SENDS, "duplex", 0, "rank 0 sends 2 times", [0, 2]),
    "ports: no more than it takes": (FAN_IN, 2, 0, "rank 0 receives 5 times", [0, 1, 2]),
    "ports: matching": (
        TWO_PARTNERS,
        "matching",
        1,
        "rank 1 receives from 0 and sends to 2",
        [0, 1],
    ),
    "hazards: reduces": (TWO_WRITERS, "duplex", 2, "2 transfers write it", [0, 1]),
    "hazards: a copy is alone under incast": (COPIED, 5, 0, "5 transfers write it", [0, 3]),
}


@pytest.mark.parametrize("name", ONE_ROUND)
def test_a_round_that_asks_too_much(name: str) -> None:
    moves, ports, rank, found, shown = ONE_ROUND[name]
    if isinstance(ports, int):
        ports = {"incast": ports}
    refuted = _refutation(_rounds([], [], moves, ports=ports, n=6), name.partition(":")[0])
    assert (refuted.phase, refuted.round, refuted.rank) == ("p", 2, rank)
    assert found in refuted.found
    assert _shown(refuted) == [("p", 2, *moves[i]) for i in shown]


def test_an_absent_rank_takes_part() -> None:
    doc = straggler(5)
    doc["phases"][0]["rounds"][2].append([4, 1, 3, "reduce"])
    refuted = _refutation(doc, "absence")
    assert _place(refuted) == ("reduce_scatter", 2, 4, 3)
    assert _shown(refuted) == [("reduce_scatter", 2, 4, 1, 3, "reduce")]


# exactly_once


def test_a_dropped_transfer_shows_what_never_arrives() -> None:
    doc = optimal_four()
    assert doc["phases"][1]["rounds"][3].pop(2) == [1, 2, 1, "copy"]
    refuted = _refutation(doc, "exactly_once")
    assert _place(refuted) == (None, None, 2, 1)  # nothing of chunk 1 comes to rank 2 any more
    assert refuted.expected == "the contribution of rank 0 once"
    assert refuted.found == "it never arrives; it ends at rank(s) 0, 1, 3"
    assert _shown(refuted) == [  # the ways that it took instead
        ("reduce_scatter", 1, 0, 1, 1, "reduce"),
        ("completion", 1, 1, 3, 1, "reduce"),
        ("completion", 2, 1, 0, 1, "copy"),
    ]


def test_a_transfer_done_twice_shows_where_the_two_sums_meet() -> None:
    doc = ring(4)
    doc["phases"][0]["rounds"].insert(1, [[0, 1, 0, "reduce"]])
    refuted = _refutation(doc, "exactly_once")
    assert _place(refuted) == ("reduce_scatter", 1, 1, 0)
    assert refuted.expected == "the contribution of rank 0 once"
    assert _shown(refuted) == [
        ("reduce_scatter", 0, 0, 1, 0, "reduce"),
        ("reduce_scatter", 1, 0, 1, 0, "reduce"),
    ]


def test_counted_twice_by_two_ways() -> None:
    """0 reaches 2 by way of 1 and directly: three transfers, and not the unrelated ones."""
    doc = _rounds(
        [[0, 1, 0, "reduce"]],
        [[1, 2, 0, "reduce"], [2, 1, 1, "reduce"]],
        [[0, 2, 0, "reduce"], [2, 0, 1, "copy"]],
        [[2, 0, 0, "copy"], [0, 1, 1, "copy"]],
        [[2, 1, 0, "copy"], [0, 2, 1, "copy"]],
    )
    refuted = _refutation(doc, "exactly_once")
    assert _place(refuted) == ("p", 2, 2, 0)
    assert _shown(refuted) == [
        ("p", 0, 0, 1, 0, "reduce"),
        ("p", 1, 1, 2, 0, "reduce"),
        ("p", 2, 0, 2, 0, "reduce"),
    ]
    assert "rank 0 ends with 2" in refuted.found


def test_nobody_moves_a_chunk() -> None:
    doc = ring(3)
    doc["chunks"] = 4
    refuted = _refutation(doc, "exactly_once")
    assert (refuted.phase, refuted.round, refuted.chunk) == (None, None, 3)
    assert refuted.transfers == ()
    assert "never arrives" in refuted.found


def test_a_contribution_that_is_overwritten_everywhere() -> None:
    doc = _rounds([[0, 1, 0, "copy"]], [[1, 0, 0, "reduce"]], n=2, k=1)
    refuted = _refutation(doc, "exactly_once")
    assert refuted.chunk == 0
    assert refuted.transfers != ()


def test_saturation_does_not_turn_into_right() -> None:
    """2^k times a contribution would come back to one in 8 bits only if it wrapped."""
    rounds: list[list[list[Any]]] = [[[0, 1, 0, "reduce"], [1, 0, 0, "reduce"]] for _ in range(9)]
    for extra in range(20):
        doc = document(2, 1, [("p", [], rounds + [[[0, 1, 0, "reduce"]]] * extra)])
        schedule = schedule_of(doc)
        assert run(schedule, Counts(), 0, 1).min() >= 255
        assert check(schedule).results["exactly_once"].verdict is Verdict.REFUTED


# same_bits


def test_the_right_sum_in_two_orders() -> None:
    """Ranks 0 and 2 add (x0 + x1) + (x2 + x3), ranks 1 and 3 add one after another."""
    doc = _rounds(
        [[0, 1, 0, "reduce"], [1, 0, 0, "reduce"]],
        [[2, 1, 0, "reduce"], [3, 2, 0, "reduce"]],
        [[3, 1, 0, "reduce"], [2, 0, 0, "reduce"]],
        [[1, 3, 0, "copy"], [0, 2, 0, "copy"]],
        n=4,
        k=1,
    )
    found = _refutation(doc, "same_bits")
    assert check(schedule_of(doc)).results["exactly_once"].verdict is Verdict.PROVED
    assert _place(found) == ("p", 2, 1, 0)
    assert found.expected == "the sum that rank 0 ends with: ((x0 + x1) + (x2 + x3))"
    assert found.found == "(x3 + (x2 + (x0 + x1)))"
    assert _shown(found)[-2:] == [("p", 2, 3, 1, 0, "reduce"), ("p", 2, 2, 0, 0, "reduce")]


def test_the_same_wrong_value_everywhere_has_the_same_bits() -> None:
    report = check(schedule_of(_rounds([[0, 1, 0, "copy"]], n=2, k=1)))
    assert report.results["same_bits"].verdict is Verdict.PROVED
    assert report.results["exactly_once"].verdict is Verdict.REFUTED


def test_the_same_tree_made_twice_has_the_same_bits() -> None:
    """Ranks 1 and 0 both add x0 and x1, in different rounds and with the operands swapped."""
    doc = _rounds(
        [[1, 2, 0, "copy"]],
        [[0, 1, 0, "reduce"]],
        [[2, 0, 0, "reduce"]],
        [[1, 2, 0, "copy"]],
        k=1,
    )
    assert check(schedule_of(doc)).results["same_bits"].verdict is Verdict.PROVED
    doc["phases"][0]["rounds"][0] = []
    assert check(schedule_of(doc)).results["same_bits"].verdict is Verdict.REFUTED


def test_several_reduces_of_one_round_are_added_in_listed_order() -> None:
    """Under incast rank 0 adds x1 first, rank 3 adds x2 first."""
    fan_in = [[1, 0, 0, "reduce"], [2, 0, 0, "reduce"], [2, 3, 0, "reduce"], [1, 3, 0, "reduce"]]
    swap = [[0, 3, 0, "reduce"], [3, 0, 0, "reduce"]]
    doc = _rounds(fan_in, swap, n=4, k=1, ports={"incast": 2})
    assert check(schedule_of(doc)).results["same_bits"].verdict is Verdict.REFUTED
    equal = _rounds(
        [[1, 0, 0, "reduce"], [2, 0, 0, "reduce"]],
        [[0, 1, 0, "copy"], [0, 2, 0, "copy"]],
        ports={"incast": 2},
        k=1,
    )
    assert check(schedule_of(equal)).verdict is Verdict.PROVED


def test_a_huge_tree_is_cut() -> None:
    doc = straggler(64)
    doc["phases"][1]["rounds"][-1].pop()
    found = _refutation(doc, "same_bits")
    assert len(found.expected) < 300
    assert found.expected.endswith("...")


# staging


def test_staging_counts_what_is_sent_and_received_at_once() -> None:
    assert check(schedule_of(straggler(5))).staging == 1  # the exchange
    assert check(schedule_of(ring(5))).staging == 0
    three = [[a, b, c, "reduce"] for c in range(3) for a, b in [(0, 1), (1, 0)]]
    assert check(schedule_of(_rounds(three, k=3, ports={"incast": 3}))).staging == 3


# any mutant


@settings(deadline=None, max_examples=400)
@given(st.integers(0, 2**32))
def test_what_is_shown_is_in_theschedule_of(seed: int) -> None:
    """The named transfers stand at the named places, and they are few."""
    schedule = schedule_of(mutant(random.Random(seed)))
    report = check(schedule)
    for name, result in report.results.items():
        found = result.counterexample
        if found is None:
            continue
        found = explained(schedule, found)
        assert found.property == name
        assert len(found.transfers) <= SHOWN
        places = {
            (phase.name, number, t.src, t.dst, t.chunk, t.op)
            for phase, number, moves in schedule.located_rounds()
            for t in moves
        }
        if max((t.src + t.dst + t.chunk for t in found.transfers), default=0) < 2**40:
            assert set(_shown(found)) <= places  # (indices beyond 64 bits are shown clipped)


@settings(deadline=None, max_examples=300)
@given(st.integers(0, 2**32))
def test_every_wrong_count_can_be_explained(seed: int) -> None:
    schedule = schedule_of(mutant(random.Random(seed)))
    if check(schedule).results["well_formed"].verdict is not Verdict.PROVED:
        return
    counts = run(schedule, Counts(), 0, schedule.chunks)
    for rank in range(schedule.ranks):
        for chunk in range(schedule.chunks):
            for contribution in range(schedule.ranks):
                if counts[rank, chunk, contribution] != 1:
                    found = explain(schedule, rank, chunk, contribution)
                    assert found.chunk == chunk
                    assert all(t.chunk == chunk for t in found.transfers)
                    if counts[rank, chunk, contribution] > 1:
                        _replay_twice(schedule, found, contribution)


def _replay_twice(schedule: Schedule, found: Counterexample, contribution: int) -> None:
    """The shown transfers alone already add the contribution twice at the named rank."""
    if len(found.transfers) == SHOWN:
        return  # cut
    rounds = groupby(found.transfers, lambda t: (t.phase, t.round))
    moves = [[[t.src, t.dst, 0, t.op] for t in those] for _, those in rounds]
    start = {(rank, 0): int(rank == contribution) for rank in range(schedule.ranks)}
    held = run_document(document(schedule.ranks, 1, [("p", [], moves)]), start, int.__add__)
    assert held[found.rank, 0] == 2
