"""What is open in a spread, drawn at random and changed bit by bit.

A spread is what :class:`~latecomer.synth.arrivals.spread.Spread` says.

A spread is a function of its choices: the tree of each chunk, on which side each sum is made, and
what decides between equally useful transfers.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from latecomer.synth.arrivals.addition import CUTS, NOTHING, Shape
from latecomer.verify.core.schedule import IntArray

BoolArray = NDArray[np.bool_]
TOWARDS = (0.0, 0.3, 0.5, 0.7, 0.9, 1.0)
"""How often the side of the last part collects: one of these is drawn."""
TIES = 1000
"""The most that a pair of ranks is preferred by, and a chunk by NOISES."""
# 1 stands for none: numbers are drawn below it.
NOISES = (1, 50, 500, 3000)
RANGES = {
    "again": (1000, 10_000, 100_000),
    "beside": (1, 1000, 30_000, 200_000),
    "node": (0, 1000, 5000, 20_000, 40_000),
    "first": (0, 3000, 10_000, 30_000),
    "rarity": (0, 2000, 8000, 30_000),
    "lack": (0, 10, 100, 500),
}
"""Over which each weight decides something."""


@dataclass(frozen=True)
class Weights:
    """What decides between transfers; dimensionless.

    Attributes:
        again: for making or copying a node that is there already, and is not full.
        beside: for copying it over something that is lost by that.
        node: for making a node for the first time.
        first: for making the full sum of a chunk for the first time.
        rarity: for a full sum that no rank holds yet, less with each holder.
        lack: per chunk that the receiver lacks.
    """

    again: int
    beside: int
    node: int
    first: int
    rarity: int
    lack: int


@dataclass(frozen=True, eq=False)
class Choices:
    """Of one spread.

    Attributes:
        shape: of the trees.
        leaf: [part, chunk], the leaf that a part of the sum is.
        collects: [node, chunk], whether the sum with its sibling is made where the node is.
        weights: see there.
        chunk: [chunk], added to its transfers.
        pair: [sender, receiver], added to theirs.
        turn: who of equals keeps what must not be lost: the first of these ranks.
    """

    shape: Shape
    leaf: IntArray
    collects: BoolArray
    weights: Weights
    chunk: IntArray
    pair: IntArray
    turn: IntArray

    @classmethod
    def drawn(cls, ranks: int, parts: int, chunks: int, dice: np.random.Generator) -> Choices:
        """At random, for so many parts of which the last may be in several places."""
        shape = Shape(parts, CUTS[int(dice.integers(len(CUTS)))])
        leaf = _dealt(parts, chunks, dice)
        order = int(dice.choice([0, 5, 20, 100, 400]))
        return cls(
            shape=shape,
            leaf=leaf,
            collects=_collecting(shape, leaf[-1], dice),
            weights=Weights(**{name: int(dice.choice(RANGES[name])) for name in RANGES}),
            chunk=dice.integers(0, dice.choice(NOISES), chunks) + order * np.arange(chunks, 0, -1),
            pair=dice.integers(0, TIES, (ranks, ranks)),
            turn=dice.permutation(ranks),
        )

    def changed(self, dice: np.random.Generator) -> Choices:
        """The same but for one choice."""
        c = int(dice.integers(len(self.chunk)))
        match int(dice.integers(6)):
            case 0:
                name = fields(Weights)[int(dice.integers(len(RANGES)))].name
                drawn = {name: int(dice.choice(RANGES[name]))}
                return replace(self, weights=replace(self.weights, **drawn))
            case 1:
                leaf = self.leaf.copy()
                two = dice.integers(0, len(leaf), 2)
                leaf[two, c] = leaf[two[::-1], c]
                return replace(self, leaf=leaf)
            case 2:
                node = int(dice.integers(self.shape.root))
                collects = self.collects.copy()
                collects[[node, self.shape.sibling[node]], c] ^= True
                return replace(self, collects=collects)
            case 3:
                chunk = self.chunk.copy()
                chunk[c] = dice.integers(NOISES[-1])
                return replace(self, chunk=chunk)
            case 4:
                pair = self.pair.copy()
                pair[dice.integers(len(pair))] = dice.integers(0, TIES, len(pair))
                return replace(self, pair=pair)
        return replace(self, turn=dice.permutation(self.turn))


def _dealt(parts: int, chunks: int, dice: np.random.Generator) -> IntArray:
    """[part, chunk]: which leaf it is, in turn or at random; the last part may have a fixed one."""
    part = np.arange(parts)[:, None]
    leaf: IntArray = (part + np.arange(chunks)) % parts
    if dice.integers(2):
        leaf = dice.permuted(np.broadcast_to(part, leaf.shape), axis=0)
    place = int(dice.choice([0, parts - 1, NOTHING]))
    if place != NOTHING:
        there = np.argmax(leaf == place, axis=0)
        chunk = np.arange(chunks)
        # Whoever has that leaf of a chunk gets the last part's in exchange.
        leaf[there, chunk] = leaf[-1]
        leaf[-1] = place
    return leaf


def _collecting(shape: Shape, last: IntArray, dice: np.random.Generator) -> BoolArray:
    """[node, chunk]: the side with leaf ``last`` as often as is drawn, others every other time."""
    node = np.arange(shape.root + 1)
    towards = dice.choice(TOWARDS)
    contains = shape.above[:, last] | (node[:, None] == last)
    draws = dice.random(contains.shape)
    beside = contains[shape.sibling] & (node < shape.root)[:, None]
    chosen = np.where(contains, draws < towards, np.where(beside, draws >= towards, draws < 0.5))
    # Of two siblings exactly one collects: what is drawn for the lower one decides.
    one = (node < shape.sibling)[:, None]
    collects: BoolArray = np.where(one, chosen, ~chosen[shape.sibling])
    return collects
