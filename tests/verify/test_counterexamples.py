"""A refutation names the place and shows the few transfers that matter."""

import random
from itertools import groupby
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latecomer.verify import Counterexample, Phase, Schedule, Verdict, check
from latecomer.verify.core import semantics
from latecomer.verify.core.interpreter import run
from latecomer.verify.core.semantics import Counts
from latecomer.verify.core.verdict import SHOWN
from latecomer.verify.report.explain import explain, explained
from tests.verify.builders import (
    Document,
    broken,
    document,
    moves,
    optimal_four,
    report_of,
    ring,
    schedule_of,
    straggler,
)
from tests.verify.mutants import mutant
from tests.verify.oracle import run as run_document


def _text(phase: str, number: int, move: Any) -> str:
    op = {"reduce": "+", "copy": "="}[move.op]
    return f"{phase} {number} {move.src}{op}{move.dst}:{move.chunk}"


def _shown(refuted: Counterexample) -> list[str]:
    return [_text(t.phase, t.round, t) for t in refuted.transfers]


def _rounds(*rounds: str, ports: Any = "duplex", n: int = 3, k: int = 2) -> Document:
    return document(n, k, [("p", [], [moves(text) for text in rounds])], ports=ports)


def _refutation(doc: Document, name: str) -> Counterexample:
    schedule = schedule_of(doc)
    counterexample = check(schedule).results[name].counterexample
    assert counterexample is not None, f"{name} was not refuted"
    assert counterexample.property == name
    return explained(schedule, counterexample)


def _location(refuted: Counterexample) -> tuple[Any, ...]:
    return refuted.phase, refuted.round, refuted.rank, refuted.chunk


# well_formed


@pytest.mark.parametrize(
    ("n", "move", "expected", "found"),
    [
        (3, "3=0:0", "src in 0..2", "3"),
        (3, "0=-1:0", "dst in 0..2", "-1"),
        (3, "0+1:2", "chunk in 0..1", "2"),
        (3, "1+1:0", "src and dst differ", "rank 1 sends to itself"),
        *((n, f"0={10**30}:0", f"dst in 0..{n - 1}", str(2**63 - 1)) for n in (3, 100)),
    ],
)
def test_an_index_out_of_range(n: int, move: str, expected: str, found: str) -> None:
    doc = _rounds("", f"0=1:0 {move}", n=n)
    refuted = _refutation(doc, "well_formed")
    assert (refuted.phase, refuted.round) == ("p", 1)
    assert (refuted.expected, refuted.found) == (expected, found)
    assert _shown(refuted) == [f"p 1 {move.replace(str(10**30), found)}"]  # clipped
    assert report_of(doc).staging == report_of(doc).lower_bound == 0


@pytest.mark.parametrize(
    ("change", "expected", "found"),
    [
        ({"ranks": 0}, "", "ranks = 0"),
        ({"chunks": 0}, "", "chunks = 0"),
        ({"late": (3,)}, "late ranks in 0..2", "late rank 3"),
        ({"late": (-1,)}, "late ranks in 0..2", "late rank -1"),
        ({"phases": (Phase("wait", (1,), ((),)),), "late": (2,)}, "ranks [2]", "rank 1 is absent"),
    ],
)
def test_a_senseless_schedule_made_in_memory(
    change: dict[str, Any], expected: str, found: str
) -> None:
    report = check(msgspec.structs.replace(schedule_of(_rounds("")), **change))
    assert report.verdict is Verdict.REFUTED
    assert report.counterexample is not None
    assert expected in report.counterexample.expected
    assert report.counterexample.found.startswith(found)
    assert report.counterexample.phase == ("wait" if "phases" in change else None)
    assert report.counterexample.rank == (1 if "phases" in change else None)
    assert report.counterexample.transfers == ()


# ports, absence, hazards

FAN_IN = " ".join(f"{rank}+0:0" for rank in range(1, 6))
ALL_IN = " ".join(f"{rank}+0:0" for rank in range(1, 16))
COPIED = FAN_IN.replace("4+", "4=")
ONE_ROUND: list[tuple[str, str, Any, int, str, str]] = [
    # property, the round, its ports, rank at fault, what was found, which transfers are shown
    ("ports", "0=1:0 1=2:1 0=2:1", "duplex", 0, "rank 0 sends 2 times", "0=1:0 0=2:1"),
    ("ports", FAN_IN, {"incast": 2}, 0, "rank 0 receives 5 times", "1+0:0 2+0:0 3+0:0"),
    ("ports", ALL_IN, {"incast": 14}, 0, "rank 0 receives 15 times", " ".join(ALL_IN.split()[:12])),
    ("ports", "0=1:0 1=2:1", "matching", 1, "rank 1 receives from 0 and", "0=1:0 1=2:1"),
    ("hazards", "3+4:0 0+2:0 1+2:0", "duplex", 2, "2 transfers write it", "0+2:0 1+2:0"),
    ("hazards", COPIED, {"incast": 5}, 0, "5 transfers write it", "1+0:0 4=0:0"),
]


@pytest.mark.parametrize(("prop", "text", "ports", "rank", "found", "shown"), ONE_ROUND)
def test_a_round_that_asks_too_much(
    prop: str, text: str, ports: Any, rank: int, found: str, shown: str
) -> None:
    refuted = _refutation(_rounds("", "", text, ports=ports, n=16), prop)
    assert (refuted.phase, refuted.round, refuted.rank) == ("p", 2, rank)
    assert refuted.found.startswith(found)
    assert _shown(refuted) == [f"p 2 {move}" for move in shown.split()]


def test_an_absent_rank_takes_part() -> None:
    doc = straggler(5)
    doc["phases"][0]["rounds"][2].append([4, 1, 3, "reduce"])
    refuted = _refutation(doc, "absence")
    assert _location(refuted) == ("reduce_scatter", 2, 4, 3)
    assert _shown(refuted) == ["reduce_scatter 2 4+1:3"]


# exactly_once

TWICE = ring(4)
TWICE["phases"][0]["rounds"].insert(1, moves("0+1:0"))
WAYS = _rounds("0+1:0", "1+2:0 2+1:1", "0+2:0 2=0:1", "2=0:0 0=1:1", "2=1:0 0=2:1")
ONCE: list[tuple[Document, int, tuple[Any, ...], str, str]] = [
    # whose contribution, where, what was found, which transfers are shown
    (  # nothing of chunk 1 comes to rank 2 any more: the ways that it took instead
        broken(optimal_four()),
        0,
        (None, None, 2, 1),
        "it never arrives; it ends at rank(s) 0, 1, 3",
        "reduce_scatter 1 0+1:1, completion 1 1+3:1, completion 2 1=0:1",
    ),
    # where the two sums meet
    (TWICE, 0, ("reduce_scatter", 1, 1, 0), "", "reduce_scatter 0 0+1:0, reduce_scatter 1 0+1:0"),
    # 0 reaches 2 by way of 1 and directly: three transfers, and not the unrelated ones
    (WAYS, 0, ("p", 2, 2, 0), "rank 0 ends with 2", "p 0 0+1:0, p 1 1+2:0, p 2 0+2:0"),
    # a chunk that is moved too seldom is looked at first
    (_rounds("0+1:0", "0+1:0", n=2), 1, (None, None, 0, 1), "it never arrives", ""),
]


@pytest.mark.parametrize(("doc", "whose", "location", "found", "shown"), ONCE)
def test_a_contribution_missing_or_twice(
    doc: Document, whose: int, location: tuple[Any, ...], found: str, shown: str
) -> None:
    refuted = _refutation(doc, "exactly_once")
    assert _location(refuted) == location
    assert refuted.expected == f"the contribution of rank {whose} once"
    assert found in refuted.found
    assert ", ".join(_shown(refuted)) == shown


def test_saturation_does_not_turn_into_right() -> None:
    """2^k times a contribution would come back to one in a few bits only if it wrapped."""
    for extra in range(20):
        schedule = schedule_of(_rounds(*["0+1:0 1+0:0"] * 9, *["0+1:0"] * extra, n=2, k=1))
        assert (run(schedule, Counts(), 0, 1) == 0b11000000).all()
        assert check(schedule).results["exactly_once"].verdict is Verdict.REFUTED


@pytest.mark.parametrize("missing", range(7))
def test_fault_in_any_block_of_chunks(missing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three ranks, seven chunks, two in a block; a copy comes too early in one chunk."""
    monkeypatch.setattr(semantics, "BLOCK_BYTES", 12)
    right = ["2+1", "1+0", "0=1", "1=2"]
    early = ["2+1", "0=1", "1+0", "1=2"]
    rounds = []
    for chunk in range(7):
        tree = early if chunk == missing else right
        rounds += [f"{move}:{chunk}" for move in tree]
    assert _refutation(_rounds(*rounds, k=7), "exactly_once").chunk == missing


# same_bits


def test_the_right_sum_in_two_orders() -> None:
    """Ranks 0 and 2 add (x0 + x1) + (x2 + x3), ranks 1 and 3 add one after another."""
    doc = _rounds("0+1:0 1+0:0", "2+1:0 3+2:0", "3+1:0 2+0:0", "1=3:0 0=2:0", n=4, k=1)
    refuted = _refutation(doc, "same_bits")
    assert report_of(doc).results["exactly_once"].verdict is Verdict.PROVED
    assert _location(refuted) == ("p", 2, 1, 0)
    assert refuted.expected == "the sum that rank 0 ends with: ((x0 + x1) + (x2 + x3))"
    assert refuted.found == "(x3 + (x2 + (x0 + x1)))"
    assert _shown(refuted)[-2:] == ["p 2 3+1:0", "p 2 2+0:0"]


@pytest.mark.parametrize(
    ("rounds", "incast", "once", "differs"),  # which rank from rank 0, in which chunk
    [
        (["0=1:0", "0=2:0"], 1, False, None),  # the same wrong value everywhere
        (["0=1:0 0=1:1", "0=2:0 0=1:1"], 1, False, (2, 1)),  # ... of one chunk
        (["0=1:0"], 1, False, (2, 0)),
        # ranks 1 and 0 both add x0 and x1, in different rounds and with the operands swapped
        (["1=2:0", "0+1:0", "2+0:0", "1=2:0"], 1, False, None),
        (["", "0+1:0", "2+0:0", "1=2:0"], 1, False, (1, 0)),
        # several reduces of one round are added in the order listed
        (["1+0:0 2+0:0", "0=1:0 0=2:0"], 2, True, None),
        # rank 0 adds x1 first, rank 3 adds x2 first
        (["1+0:0 2+0:0 2+3:0 1+3:0", "0+3:0 3+0:0"], 2, False, (1, 0)),
    ],
)
def test_sums_and_bits(
    rounds: list[str], incast: int, once: bool, differs: tuple[int, int] | None
) -> None:
    n = 3 + ("3" in rounds[0])
    k = 1 + (":1" in rounds[0])
    results = report_of(_rounds(*rounds, n=n, k=k, ports={"incast": incast})).results
    assert results["exactly_once"].verdict is (Verdict.PROVED if once else Verdict.REFUTED)
    refuted = results["same_bits"].counterexample
    assert (refuted and (refuted.rank, refuted.chunk)) == differs


def test_a_huge_tree_is_cut() -> None:
    refuted = _refutation(broken(straggler(64)), "same_bits")
    assert len(refuted.expected) < 300
    assert refuted.expected.endswith("...")


# staging


def test_staging_counts_what_is_sent_and_received_at_once() -> None:
    assert report_of(straggler(5)).staging == 1  # the exchange
    assert report_of(ring(5)).staging == 0
    three = _rounds("0+1:0 1+0:0 0+1:1 1+0:1 0+1:2 1+0:2", k=3, ports={"incast": 3})
    assert report_of(three).staging == 3


# any mutant


@settings(deadline=None, max_examples=400)
@given(st.integers(0, 2**32))
def test_what_is_shown_is_in_the_schedule(seed: int) -> None:
    """The named transfers stand at the named places, and they are few."""
    schedule = schedule_of(mutant(random.Random(seed)))
    report = check(schedule)
    for name, result in report.results.items():
        if result.counterexample is None:
            continue
        refuted = explained(schedule, result.counterexample)
        assert refuted.property == name
        assert len(refuted.transfers) <= SHOWN
        if max((t.src + t.dst + t.chunk for t in refuted.transfers), default=0) < 2**40:
            # (indices beyond 64 bits are shown clipped)
            assert set(_shown(refuted)) <= _texts_of_all_transfers(schedule)
    if report.results["well_formed"].verdict is Verdict.PROVED:
        _every_wrong_count_can_be_explained(schedule)


def _texts_of_all_transfers(schedule: Schedule) -> set[str]:
    texts: set[str] = set()
    for phase, number, transfers in schedule.located_rounds():
        texts.update(_text(phase.name, number, transfer) for transfer in transfers)
    return texts


def _every_wrong_count_can_be_explained(schedule: Schedule) -> None:
    bits = run(schedule, Counts(), 0, schedule.chunks)
    counts = np.unpackbits(bits, axis=3, count=schedule.ranks).sum(2)
    for rank, chunk, contribution in np.argwhere(counts != 1).tolist():
        refuted = explain(schedule, rank, chunk, contribution)
        assert {refuted.chunk, *(t.chunk for t in refuted.transfers)} == {chunk}
        if counts[rank, chunk, contribution] > 1:
            _replay_twice(schedule, refuted, contribution)


def _replay_twice(schedule: Schedule, refuted: Counterexample, contribution: int) -> None:
    """The shown transfers alone already add the contribution more than once."""
    if len(refuted.transfers) == SHOWN:
        return  # cut
    rounds = []
    for _, shown in groupby(refuted.transfers, lambda t: (t.phase, t.round)):
        rounds.append([[t.src, t.dst, 0, t.op] for t in shown])
    start = {(rank, 0): int(rank == contribution) for rank in range(schedule.ranks)}
    sums = run_document(document(schedule.ranks, 1, [("p", [], rounds)]), start, int.__add__)
    assert sums[refuted.rank, 0] > 1  # 3 where a copy that is not shown had taken one away again
