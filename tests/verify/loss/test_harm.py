"""What one or several losses do, by theorem and by running: as the naive oracle sees it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.verify.builders import Document, document, schedule_of
from tests.verify.loss.strategies import RIGHT, odd, schedules
from tests.verify.oracle import Ending, ending, judge, transfers
from verify.loss.flow import Chunk, Flow, chunks_of, flows_of
from verify.loss.harm import Harm, harm_of, harm_of_one
from verify.loss.sets import covers


def _one_by_one(ranks: int, *moves: list[Any]) -> Document:
    """One chunk, and each transfer in a round of its own."""
    return document(ranks, 1, [("all", [], [[move] for move in moves])])


RELAY = _one_by_one(
    3,
    [0, 1, 0, "reduce"],  # 0 has handed over what it had ...
    [2, 0, 0, "copy"],  # ... and takes over from 2: if this is lost,
    [0, 1, 0, "reduce"],  # it hands over the same once more
    [1, 0, 0, "copy"],
    [1, 2, 0, "copy"],
)
"""The smallest schedule in which a loss makes something be counted twice."""


def members(mask: int) -> list[int]:
    return [bit for bit in range(mask.bit_length()) if mask >> bit & 1]


def entries(chunk: Chunk, blocks: tuple[tuple[int, int], ...]) -> set[tuple[int, int, int]]:
    return {
        (rank, chunk.number, contribution)
        for ranks, contributions in blocks
        for rank in members(ranks)
        for contribution in members(contributions)
    }


def as_ending(chunks: list[tuple[Chunk, Harm]]) -> Ending:
    return Ending(
        frozenset().union(*(entries(chunk, harm.missing) for chunk, harm in chunks)),
        frozenset().union(*(entries(chunk, harm.twice) for chunk, harm in chunks)),
        any(harm.differ for _, harm in chunks),
    )


def disagreements(doc: Document, flows: Callable[[Chunk], list[Flow]] = flows_of) -> int:
    """How many single losses theorem 1 and the oracle see differently."""
    wrong = 0
    for chunk in chunks_of(schedule_of(doc)):
        for flow in flows(chunk):
            expected = ending(doc, {flow.move.index})
            wrong += as_ending([(chunk, harm_of_one(chunk, flow))]) != expected
    return wrong


@settings(max_examples=300, deadline=None)
@given(schedules)
@example(RELAY)
def test_one_loss(doc: Document) -> None:
    assert disagreements(doc) == 0


@settings(max_examples=300, deadline=None)
@given(schedules, st.data())
def test_many_losses(doc: Document, data: st.DataObject) -> None:
    numbers = st.integers(0, len(transfers(doc)) - 1)
    lost = data.draw(st.frozensets(numbers, max_size=8))
    harms = [(chunk, harm_of(chunk, lost)) for chunk in chunks_of(schedule_of(doc))]
    assert as_ending(harms) == ending(doc, lost)
    assert sum(harm.entries for _, harm in harms) == len(ending(doc, lost).missing)


@settings(max_examples=300, deadline=None)
@given(schedules, st.data())
def test_bounds_of_theorem_2(doc: Document, data: st.DataObject) -> None:
    numbers = st.integers(0, len(transfers(doc)) - 1)
    lost = data.draw(st.frozensets(numbers))
    chunks = [(chunk, flows_of(chunk)) for chunk in chunks_of(schedule_of(doc))]
    blocks = (
        entries(chunk, ((flow.reach, flow.carried),))
        for chunk, flows in chunks
        for flow in flows
        if flow.move.index in lost
    )
    end = ending(doc, lost)
    assert end.missing <= set().union(*blocks)
    n = doc["ranks"]
    for number in range(doc["chunks"]):
        assert sum(c == number for _, c, _ in end.missing) <= n * (n - 1)
    if all(covers(flows) for _, flows in chunks):
        assert not end.twice


@settings(max_examples=150, deadline=None)
@given(schedules)
def test_blocks_are_what_comes_by_a_transfer(doc: Document) -> None:
    """An entry comes by a transfer if it is missing when the transfer arrives blank."""
    for chunk in chunks_of(schedule_of(doc)):
        for flow in flows_of(chunk):
            block = entries(chunk, ((flow.reach, flow.carried),))
            index = flow.move.index
            assert (block if flow.reach else set()) == ending(doc, set(), {index}).missing
            assert flow.block == len(block)


def test_twice_happens() -> None:
    (chunk,) = chunks_of(schedule_of(RELAY))
    flows = flows_of(chunk)
    assert not covers(flows)
    harms = [harm_of_one(chunk, flow) for flow in flows]
    assert [bool(harm.twice) for harm in harms] == [False, True, False, False, False]
    assert entries(chunk, harms[1].twice) == {(rank, 0, 0) for rank in range(3)}
    assert entries(chunk, harms[1].missing) == {(rank, 0, 2) for rank in range(3)}
    assert not harms[1].differ


def test_textbook_schedules_never_count_twice() -> None:
    for doc in RIGHT.values():
        assert all(covers(flows_of(chunk)) for chunk in chunks_of(schedule_of(doc)))


@st.composite
def any_schedule(draw: st.DrawFn) -> Document:
    """Right or wrong, with several transfers per round."""
    n = draw(st.integers(2, 4))
    ranks = st.integers(0, n - 1)
    move = st.tuples(ranks, ranks, st.integers(0, 1), st.sampled_from(["copy", "reduce"]))
    rounds = draw(st.lists(st.lists(move.filter(lambda m: m[0] != m[1]), max_size=4), max_size=8))
    return document(n, 2, [("all", [], [[list(m) for m in moves] for moves in rounds])])


DOUBLED = document(
    2, 1, [("all", [], [[[0, 1, 0, "reduce"], [1, 0, 0, "reduce"]]] * 2 + [[[0, 1, 0, "reduce"]]])]
)
"""Both ranks end with both contributions more than once: one twice, the other four times."""


@settings(max_examples=300, deadline=None)
@given(any_schedule(), st.data())
@example(DOUBLED, None)
def test_runs_of_wrong_schedules(doc: Document, data: st.DataObject | None) -> None:
    numbers = st.integers(0, max(0, len(transfers(doc)) - 1))
    lost = data.draw(st.frozensets(numbers, max_size=3)) if data else frozenset()
    harms = [(chunk, harm_of(chunk, lost)) for chunk in chunks_of(schedule_of(doc))]
    assert as_ending(harms) == ending(doc, lost)


@settings(max_examples=200, deadline=None)
@given(odd())
def test_odd_schedules_are_right(doc: Document) -> None:
    verdicts = judge(json.dumps(doc), random.Random(0))
    assert verdicts["exactly_once"]
    assert verdicts["hazards"]


def _changed(change: Callable[[Flow], dict[str, Any]]) -> Callable[[Chunk], list[Flow]]:
    return lambda chunk: [msgspec.structs.replace(f, **change(f)) for f in flows_of(chunk)]


KEPT_TWICE = [[0, 1], [2, 1], [2, 0], [2, 0]]
"""Rank 0 holds the contribution of rank 2 twice, until it is overwritten."""
WRONG: dict[str, tuple[Callable[[Chunk], list[Flow]], Document]] = {
    "a lost copy leaves nothing behind": (
        _changed(lambda f: {"kept": 0, "kept_twice": 0}),
        RIGHT["ring-3"],
    ),
    "a lost reduce is a lost copy": (
        _changed(lambda f: {"kept": f.kept or 1 << f.move.dst}),
        RIGHT["ring-3"],
    ),
    "nobody passes on what a loss left": (
        _changed(lambda f: {"reach": f.reach and 1 << f.move.dst}),
        RIGHT["ring-3"],
    ),
    "nothing is there twice": (
        _changed(lambda f: {"kept_twice": 0}),
        _one_by_one(
            3,
            *([src, dst, 0, "reduce"] for src, dst in KEPT_TWICE),
            [1, 0, 0, "copy"],
            [1, 2, 0, "copy"],
        ),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_oracle_sees_wrong_theorems(name: str) -> None:
    wrong, doc = WRONG[name]
    assert disagreements(doc) == 0
    assert disagreements(doc, wrong) > 0
