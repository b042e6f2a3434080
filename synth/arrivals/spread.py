"""Rounds in which partial sums may be in several places at once.

The lists of :mod:`latecomer.synth.arrivals.listing` send a partial sum to one rank and copy only
what is full, which wastes no transfer. Where ranks come together, with all else long done, there is
little to do at first, and ports are idle: then copies of partial sums cost nothing, and shorten the
way of the full one. So each round is a maximum-weight assignment of senders to receivers in which

    useful    a rank gets the full sum that it wants, or a node of the tree is made for the first
              time, on the side that collects it: as many of these as there can be
    besides   a node that is made again, or copied to where it lies below or (rarely) beside what
              the receiver has; but the last rank that has something keeps it

(nodes and trees: :mod:`latecomer.synth.arrivals.addition`). All else is a matter of the choices
(:mod:`latecomer.synth.arrivals.choices`) that a spread is made of.
"""

from __future__ import annotations

import numpy as np

from latecomer.synth.arrivals.addition import NOTHING
from latecomer.synth.arrivals.assignment import USEFUL, assignment
from latecomer.synth.arrivals.choices import BoolArray, Choices
from latecomer.verify.core.schedule import IntArray, Round, Transfer


class Spread:
    """What everybody has, and the next round.

    Args:
        choices: what it is a function of.
        part: [rank], the part of the sum that the rank has at first; several may have the same.
        wanted: [rank, chunk], where the full sum has to be in the end.

    Attributes:
        rounds: those made so far.
    """

    def __init__(self, choices: Choices, part: IntArray, wanted: BoolArray) -> None:
        self._choices = choices
        self._shape = choices.shape
        self._wanted = wanted
        self._node = choices.leaf[part]
        self._turn = choices.turn.tolist()
        self._bonus = choices.pair[:, :, None] + choices.chunk
        self._chunks = np.arange(wanted.shape[1])
        self.rounds: list[Round] = []

    @property
    def missing(self) -> int:
        """How many wanted sums are not there yet."""
        return int((self._wanted & (self._node != self._shape.root)).sum())

    def advance(self, most: int) -> int:
        """Go on until all is there, to ``most`` rounds at most; how many sums are missing then."""
        while self.missing and len(self.rounds) < most:
            self.rounds.append(self._advance())
        return self.missing

    def _advance(self) -> Round:
        """Choose and carry out a round."""
        node = self._node
        shape = self._shape
        weight = self._weigh()
        chunk = weight.argmax(axis=2)
        best = np.take_along_axis(weight, chunk[:, :, None], 2)[:, :, 0]
        after = node.copy()
        moves = []
        for src, dst in enumerate(assignment(best)):
            if best[src, dst]:
                c = int(chunk[src, dst])
                sent = node[src, c]
                held = node[dst, c]
                after[dst, c] = shape.result[sent, held]
                moves.append(Transfer(src, dst, c, "reduce" if shape.adds[sent, held] else "copy"))
        self._node = after
        return tuple(moves)

    def _weigh(self) -> IntArray:
        """[sender, receiver, chunk]: what sending it is worth; 0 where it is no use."""
        node = self._node
        shape = self._shape
        weights = self._choices.weights
        sent = node[:, None, :]
        held = node[None, :, :]
        result = shape.result[sent, held]
        adds = shape.adds[sent, held]
        # What the receiver has is lost, unless it is in what comes.
        lost = ~adds & ~shape.above[sent, held]
        holders = np.zeros((shape.root + 1, len(self._chunks)), np.int64)
        np.add.at(holders, (node, self._chunks), 1)
        contained = shape.above.T.astype(np.int64) @ holders
        full = (result == shape.root) & self._wanted
        # No rank has the node, nor one that it is in.
        new = (holders + contained)[result, self._chunks] == 0
        first = new & ~full & self._choices.collects[held, self._chunks]
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
        for rank in reversed(self._turn):
            keeper[self._node[rank], self._chunks] = rank
        rank = np.arange(len(self._node))[:, None]
        here = self._node, self._chunks
        kept: BoolArray = (keeper[here] == rank) & (contained[here] == 0)
        return kept
