"""Rounds in which partial sums may be in several places at once.

The lists of :mod:`synth.arrivals.listing` send a partial sum to one rank and copy only what is
full, which wastes no transfer. Where ranks come together, with all else long done, there is little
to do at first, and ports are idle: then copies of partial sums cost nothing, and shorten the way of
the full one. So each round is a maximum-weight assignment of senders to receivers in which

    useful    a rank gets the full sum that it wants, or a node of the tree is made for the first
              time, on the side that collects it: as many of these as there can be
    besides   a node that is made again, or copied to where it lies below or (rarely) beside what
              the receiver has; but the last rank that has something keeps it

(nodes and trees: :mod:`synth.arrivals.addition`). What decides between useful transfers is drawn at
random, as who collects what is: tries are cheap.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from synth.arrivals.addition import NOTHING, Shape
from synth.arrivals.assignment import USEFUL, assignment
from verify.core.schedule import IntArray, Round, Transfer

BoolArray = NDArray[np.bool_]


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
        order: for a chunk of lower number, per chunk.
        noise: the most that is added to a chunk at random.
    """

    again: int
    beside: int
    node: int
    first: int
    rarity: int
    lack: int
    order: int
    noise: int

    @classmethod
    def drawn(cls, dice: np.random.Generator) -> Weights:
        """At random, over the range in which any of them decides something."""
        return cls(
            again=int(dice.choice([1000, 10_000, 100_000])),
            beside=int(dice.choice([1, 10, 1000])),
            node=int(dice.choice([0, 1000, 5000, 20_000, 40_000])),
            first=int(dice.choice([0, 3000, 10_000, 30_000])),
            rarity=int(dice.choice([0, 2000, 8000, 30_000])),
            lack=int(dice.choice([0, 10, 100, 500])),
            order=int(dice.choice([0, 5, 20, 100, 400])),
            noise=int(dice.choice([0, 50, 500, 3000])),
        )


class Spread:
    """What everybody has, and the next round.

    Args:
        shape: of the tree of every chunk.
        start: [rank, chunk], the leaf that the rank has at first; several may have the same.
        wanted: [rank, chunk], where the full sum has to be in the end.
        collects: [node, chunk], where the node is, rather than its sibling, their sum is made.
        dice: decides all else.

    Attributes:
        rounds: those made so far.
    """

    def __init__(
        self,
        shape: Shape,
        start: IntArray,
        wanted: BoolArray,
        collects: BoolArray,
        dice: np.random.Generator,
    ) -> None:
        self._shape, self._wanted, self._collects = shape, wanted, collects
        self._node = start.copy()
        self._weights = Weights.drawn(dice)
        ranks, chunks = start.shape
        self._turn = dice.permutation(ranks).tolist()
        noise = dice.integers(0, self._weights.noise + 1, size=chunks)
        self._bonus = noise + self._weights.order * np.arange(chunks, 0, -1)
        self._chunks = np.arange(chunks)
        self.rounds: list[Round] = []

    @property
    def missing(self) -> int:
        """How many wanted sums are not there yet."""
        return int((self._wanted & (self._node != self._shape.root)).sum())

    def finish(self, most: int) -> bool:
        """Go on until all is there, and that in ``most`` rounds at most; whether it is."""
        ranks = len(self._node)
        while missing := self.missing:
            if len(self.rounds) - -missing // ranks > most:
                return False
            self.rounds.append(self._advance())
        return len(self.rounds) <= most

    def _advance(self) -> Round:
        """Choose and carry out a round."""
        node, shape = self._node, self._shape
        weight = self._weigh()
        chunk = weight.argmax(axis=2)
        best = np.take_along_axis(weight, chunk[:, :, None], 2)[:, :, 0]
        after, moves = node.copy(), []
        for src, dst in enumerate(assignment(best)):
            if best[src, dst]:
                c = int(chunk[src, dst])
                sent, held = node[src, c], node[dst, c]
                after[dst, c] = shape.result[sent, held]
                moves.append(Transfer(src, dst, c, "reduce" if shape.adds[sent, held] else "copy"))
        self._node = after
        return tuple(moves)

    def _weigh(self) -> IntArray:
        """[sender, receiver, chunk]: what sending it is worth; 0 where it is no use."""
        node, shape, weights = self._node, self._shape, self._weights
        sent, held = node[:, None, :], node[None, :, :]
        result, adds = shape.result[sent, held], shape.adds[sent, held]
        lost = ~adds & ~shape.above[sent, held]
        holders = np.zeros((shape.root + 1, len(self._chunks)), np.int64)
        np.add.at(holders, (node, self._chunks), 1)
        contained = shape.above.T.astype(np.int64) @ holders
        full = (result == shape.root) & self._wanted
        new = (holders + contained)[result, self._chunks] == 0
        first = new & ~full & self._collects[held, self._chunks]
        weight = np.where(lost, weights.beside, weights.again)
        weight = np.where(first, USEFUL + weights.node, weight)
        rarity = weights.rarity * (len(node) - holders[shape.root]) // len(node)
        weight = np.where(full, USEFUL + rarity + weights.first * new, weight)
        lack = (self._wanted & (node != shape.root)).sum(axis=1)
        weight = weight + weights.lack * lack[None, :, None] + self._bonus
        useless = (result == NOTHING) | (lost & self._kept(contained))
        return np.where(useless, 0, weight)

    def _kept(self, contained: IntArray) -> BoolArray:
        """[rank, chunk]: nobody else has it, or it is this one's turn to keep it."""
        keeper = np.full(contained.shape, NOTHING)
        for rank in self._turn:
            keeper[self._node[rank], self._chunks] = rank
        rank = np.arange(len(self._node))[:, None]
        here = self._node, self._chunks
        kept: BoolArray = (keeper[here] == rank) & (contained[here] == 0)
        return kept
