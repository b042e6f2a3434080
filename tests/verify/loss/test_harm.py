"""What one or several losses do, by theorem and by running: as the naive oracle sees it."""

import random
from itertools import product
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from latecomer.verify.loss.flow import Chunk, chunks_of, flows_of
from latecomer.verify.loss.harm import Harm, harm_of, harm_of_one
from latecomer.verify.loss.sets import covers
from tests.verify.builders import Document, all_right, document, moves, schedule_of
from tests.verify.mutants import random_schedule
from tests.verify.oracle import Ending, Entry, ending, transfers

RIGHT = all_right()
textbook = st.sampled_from(sorted(RIGHT)).map(RIGHT.__getitem__)


@st.composite
def odd(draw: st.DrawFn, most_ranks: int = 5) -> Document:
    """A right schedule of one chunk that no textbook has: with detours and needless transfers."""
    n = draw(st.integers(2, most_ranks))
    live = set(range(n))
    idle = set[int]()
    moves: list[list[Any]] = []

    def one_of(ranks: set[int]) -> int:
        return draw(st.sampled_from(sorted(ranks)))

    def leftovers() -> None:
        if idle and draw(st.booleans()):
            dst = one_of(idle)
            src = one_of(set(range(n)) - {dst})
            moves.append([src, dst, 0, draw(st.sampled_from(["copy", "reduce"]))])

    while len(live) > 1:
        src = one_of(live)
        if idle and len(moves) < 4 * n and draw(st.booleans()):  # enough odd ways: straight on
            dst = one_of(idle)
            moves.append([src, dst, 0, "copy"])
            idle.remove(dst)
        else:
            dst = one_of(live - {src})
            moves.append([src, dst, 0, "reduce"])
        live.remove(src)
        live.add(dst)
        idle.add(src)
        leftovers()
    done = set(live)
    while idle:
        dst = one_of(idle)
        moves.append([one_of(done), dst, 0, "copy"])
        idle.remove(dst)
        done.add(dst)
        leftovers()
        if len(done) > 1 and draw(st.booleans()):
            dst = one_of(done)
            moves.append([one_of(done - {dst}), dst, 0, "copy"])
    return document(n, 1, [("all", [], [[move] for move in moves])])


schedules = st.one_of(textbook, odd())


def _one_by_one(ranks: int, text: str) -> Document:
    """One chunk, and each transfer in a round of its own."""
    return document(ranks, 1, [("all", [], [[move] for move in moves(text)])])


RELAY = _one_by_one(
    3,
    "0+1:0 "  # 0 has handed over what it had ...
    "2=0:0 "  # ... and takes over from 2: if this is lost,
    "0+1:0 "  # it hands over the same once more
    "1=0:0 1=2:0",
)
"""The smallest schedule in which a loss makes something be counted twice."""


OVERWRITTEN = _one_by_one(3, "0+1:0 2+1:0 2+0:0 2+0:0 1=0:0 1=2:0")
"""Rank 0 holds the contribution of rank 2 twice, until it is overwritten."""


def members(mask: int) -> list[int]:
    return [bit for bit in range(mask.bit_length()) if mask >> bit & 1]


def entries(chunk: Chunk, blocks: tuple[tuple[int, int], ...]) -> set[Entry]:
    """The entries of blocks, each of which is a set of ranks and a set of contributions."""
    entries_of_blocks: set[Entry] = set()
    for ranks, contributions in blocks:
        entries_of_blocks.update(product(members(ranks), [chunk.number], members(contributions)))
    return entries_of_blocks


def as_ending(chunks: list[tuple[Chunk, Harm]]) -> Ending:
    missing: set[Entry] = set()
    twice: set[Entry] = set()
    for chunk, harm in chunks:
        missing |= entries(chunk, harm.missing)
        twice |= entries(chunk, harm.twice)
    differ = any(harm.differ for _, harm in chunks)
    return Ending(frozenset(missing), frozenset(twice), differ)


def losses(doc: Document, at_most: int | None = None) -> st.SearchStrategy[frozenset[int]]:
    numbers = st.integers(0, max(0, len(transfers(doc)) - 1))
    return st.frozensets(numbers, max_size=at_most)


@settings(max_examples=300, deadline=None)
@given(schedules, st.data())
def test_bounds_of_theorem_2(doc: Document, data: st.DataObject) -> None:
    lost = data.draw(losses(doc))
    chunks = [(chunk, flows_of(chunk)) for chunk in chunks_of(schedule_of(doc))]
    bound: set[Entry] = set()
    for chunk, flows in chunks:
        for flow in flows:
            if flow.move.index in lost:
                bound |= entries(chunk, ((flow.reach, flow.carried),))
    end = ending(doc, lost)
    assert end.missing <= bound
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
    assert not covers(flows_of(chunk))
    twice = [bool(harm_of_one(chunk, flow).twice) for flow in flows_of(chunk)]
    assert twice == [False, True, False, False, False]


RANDOM = (
    st.integers(0, 2**32)
    .map(lambda seed: random_schedule(random.Random(seed)))
    .filter(lambda doc: all(move[0] != move[1] for move in transfers(doc)))
)
"""Right or wrong, with several transfers per round."""
BOTH = moves("0+1:0 1+0:0")
DOUBLED = document(2, 1, [("all", [], [BOTH, BOTH, moves("0+1:0")])])
"""Both ranks end with both contributions more than once: one twice, the other four times."""


@settings(max_examples=300, deadline=None)
@given(schedules)
@example(RELAY)
@example(OVERWRITTEN)
def test_one_loss(doc: Document) -> None:
    """What theorem 1 says of each single loss is what the oracle sees."""
    for chunk in chunks_of(schedule_of(doc)):
        for flow in flows_of(chunk):
            expected = ending(doc, {flow.move.index})
            assert as_ending([(chunk, harm_of_one(chunk, flow))]) == expected


@settings(max_examples=600, deadline=None)
@given(schedules | RANDOM, st.data())
@example(DOUBLED, None)
def test_several_losses(doc: Document, data: st.DataObject | None) -> None:
    lost = data.draw(losses(doc, 8)) if data else frozenset()
    harms = [(chunk, harm_of(chunk, lost)) for chunk in chunks_of(schedule_of(doc))]
    end = ending(doc, lost)
    assert as_ending(harms) == end
    assert sum(harm.entries for _, harm in harms) == len(end.missing)
