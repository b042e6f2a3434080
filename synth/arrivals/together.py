"""Several ranks come together, so late that the others' sums may be wherever they are needed.

Let l ranks come in one round, after a wait in which h = n - l helpers added up all that they have.
What is left is an addition of l + 1 parts per chunk: those of the late ranks, and P, the helpers'
sum. Two things make its first rounds fruitful (docs/explanation/late-together.md):

    P in several places   every helper may hold it when the late ranks come, if the wait is long
                          enough; a helper that has no use for it is a free place for other sums
    sums in several       partial sums are copied where a port would be idle
    places

So the completion is a :class:`~synth.arrivals.spread.Spread` with leaf P at all helpers. Then it is
seen which helpers use P at all, and the wait is another one, of the helpers' own parts, in which
only these want the sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from synth.arrivals.addition import CUTS, NOTHING, Shape
from synth.arrivals.instance import Arrivals
from synth.arrivals.spread import BoolArray, Spread
from verify.core.schedule import IntArray, Round, Transfer

WAITS = 8
"""How often a wait is tried for one completion."""
TOWARDS = (0.0, 0.3, 0.5, 0.7, 0.9, 1.0)
"""How often it is the helpers' side that collects: one of these, drawn for each attempt."""


def come_together(arrivals: Arrivals) -> bool:
    """Whether all that are not there at first come in one round, two or more of them."""
    return len(arrivals.times) == 2 and arrivals.arrival.count(arrivals.last) > 1


def attempt(arrivals: Arrivals, most: int, seed: int) -> Iterator[list[Round]]:
    """All rounds of one attempt with at most ``most`` after the arrival, if it comes to that."""
    dice = np.random.default_rng(seed)
    ranks, chunks = arrivals.ranks, arrivals.chunks
    late = arrivals.arrival.count(arrivals.last)
    shape = Shape(late + 1, CUTS[int(dice.integers(len(CUTS)))])
    leaf = _dealt(late + 1, chunks, dice)
    start = leaf[np.minimum(np.arange(ranks), late)]
    collects = _collecting(shape, leaf[late], float(dice.choice(TOWARDS)), dice)
    everywhere = np.ones((ranks, chunks), np.bool_)
    completion = Spread(shape, start, everywhere, collects, dice)
    if completion.finish(most):
        yield from with_wait(arrivals, completion.rounds, dice)


def with_wait(
    arrivals: Arrivals, completion: Sequence[Round], dice: np.random.Generator
) -> Iterator[list[Round]]:
    """A wait before a completion in which late ranks come first, helpers last; if there is one."""
    late = arrivals.arrival.count(arrivals.last)
    helpers, chunks = arrivals.ranks - late, arrivals.chunks
    wanted = _used(completion, arrivals.ranks, chunks)[late:]
    shape = Shape(helpers, "halves")
    names = sorted(range(arrivals.ranks), key=lambda rank: -arrivals.arrival[rank])
    for _ in range(WAITS):
        start = _dealt(helpers, chunks, dice)
        nowhere = np.full(chunks, NOTHING)
        collects = _collecting(shape, nowhere, 0.5, dice)
        wait = Spread(shape, start, wanted, collects, dice)
        if wait.finish(arrivals.last):
            idle: list[Round] = [()] * (arrivals.last - len(wait.rounds))
            before = [_renamed(moves, names[late:]) for moves in wait.rounds]
            yield [*before, *idle, *(_renamed(moves, names) for moves in completion)]
            return


def _dealt(leaves: int, chunks: int, dice: np.random.Generator) -> IntArray:
    """[part, chunk]: which leaf it is, in turn or at random; the last part may have a fixed one."""
    parts = np.arange(leaves)[:, None]
    leaf: IntArray = (parts + np.arange(chunks)) % leaves
    if dice.integers(2):
        leaf = dice.permuted(np.broadcast_to(parts, leaf.shape), axis=0)
    place = int(dice.choice([0, leaves - 1, NOTHING]))
    if place != NOTHING:
        there, chunk = np.argmax(leaf == place, axis=0), np.arange(chunks)
        leaf[there, chunk], leaf[-1] = leaf[-1], place
    return leaf


def _collecting(
    shape: Shape, special: IntArray, towards: float, dice: np.random.Generator
) -> BoolArray:
    """[node, chunk]: whether the sum with its sibling is made where the node is.

    Args:
        shape: of the tree.
        special: for each chunk a leaf,
        towards: and how often the side that contains it collects; others do every other time.
        dice: decides.
    """
    node = np.arange(shape.root + 1)
    contains = shape.above[:, special] | (node[:, None] == special)
    draws = dice.random((2, *contains.shape))
    first = np.where(contains, draws[0] < towards, draws[1] < 0.5)
    beside = contains[shape.sibling] & (node < shape.root)[:, None]
    first = np.where(beside, draws[0] >= towards, first)
    one = (node < shape.sibling)[:, None]
    collects: BoolArray = np.where(one, first, ~first[shape.sibling])
    return collects


def _used(completion: Sequence[Round], ranks: int, chunks: int) -> BoolArray:
    """[rank, chunk]: what it has at first is sent, or added to."""
    used, untouched = np.zeros((ranks, chunks), np.bool_), np.ones((ranks, chunks), np.bool_)
    for moves in completion:
        for move in moves:
            used[move.src, move.chunk] |= untouched[move.src, move.chunk]
            if move.op == "reduce":
                used[move.dst, move.chunk] |= untouched[move.dst, move.chunk]
        for move in moves:
            untouched[move.dst, move.chunk] = False
    return used


def _renamed(moves: Round, names: Sequence[int]) -> Round:
    return tuple(Transfer(names[m.src], names[m.dst], m.chunk, m.op) for m in moves)
