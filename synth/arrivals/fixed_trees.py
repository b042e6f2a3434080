"""A completion for ranks that come together, as a question to a solver: small, with given trees.

The model is that of :mod:`synth.arrivals.together`: every helper has P, the helpers' sum, and the
tree of each chunk is fixed beforehand. So a question that is exhausted says nothing about other
trees. As in :mod:`synth.arrivals.exact` there are no variables for pairs: of each chunk and node
there are, in each round, no more receives than sends.

    a rank holds a node after a round if it held it, received it, or had one of its two children
    and received the other; of each chunk it holds one node
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from synth.arrivals.addition import NOTHING, Shape
from synth.solvers.model import Found, Model
from verify.core.schedule import IntArray, Round, Transfer

LARGEST = 2**4
"""Ranks times chunks that a solver is asked about."""


class TreeQuestion:
    """Is there a completion of so many rounds with these trees? And back.

    Args:
        shape: of the trees.
        start: [rank, chunk], the leaf that the rank has at first.
        rounds: how many.
    """

    def __init__(self, shape: Shape, start: IntArray, rounds: int) -> None:
        self._shape = shape
        self._start = start
        self._rounds = rounds
        self._ranks, self._chunks = start.shape
        self._nodes = range(shape.root + 1)
        self._variable: dict[tuple[str, int, int, int, int], int] = {}
        self.model = Model()
        for rank, chunk in np.ndindex(start.shape):
            for node in self._nodes:
                held = self._named("hold", 0, rank, chunk, node)
                self.model.require_any([held if node == start[rank, chunk] else -held])
            self.model.require_any([self._named("hold", rounds, rank, chunk, shape.root)])
        for t in range(rounds):
            for rank in range(self._ranks):
                self._step(t, rank)
            for chunk in range(self._chunks):
                for node in self._nodes:
                    self.model.require_no_more(
                        self._all("receive", t, chunk, node), self._all("send", t, chunk, node)
                    )

    def _named(self, kind: str, t: int, rank: int, chunk: int, node: int) -> int:
        name = kind, t, rank, chunk, node
        if name not in self._variable:
            self._variable[name] = self.model.new_variable()
        return self._variable[name]

    def _all(self, kind: str, t: int, chunk: int, node: int) -> list[int]:
        return [self._named(kind, t, rank, chunk, node) for rank in range(self._ranks)]

    def _step(self, t: int, rank: int) -> None:
        """Its two ports, and what it holds afterwards."""
        sends = []
        receives = []
        for chunk in range(self._chunks):
            before, after, sent, got = (
                [self._named(kind, t + late, rank, chunk, node) for node in self._nodes]
                for kind, late in (("hold", 0), ("hold", 1), ("send", 0), ("receive", 0))
            )
            sends += sent
            receives += got
            self.model.require_at_most_one(after)
            for node in self._nodes:
                self.model.require_any([-sent[node], before[node]])
                causes = [-after[node], before[node], got[node]]
                children = np.flatnonzero(self._shape.parent == node).tolist()
                if not children:
                    self.model.require_any(causes)
                    continue
                one, other = children
                for either in (got[one], before[one]), (got[other], before[other]):
                    self.model.require_any([*causes, *either])
                self.model.require_any([*causes, got[one], got[other]])
                self.model.require_any([*causes, before[one], before[other]])
        self.model.require_at_most_one(sends)
        self.model.require_at_most_one(receives)

    def decode(self, answer: Found) -> list[Round]:
        """The rounds that an assignment stands for; what is received in vain is left out."""
        node = self._start.copy()
        rounds = []
        for t in range(self._rounds):
            after = self._after(t, answer)
            rounds.append(tuple(self._transfers(t, answer, node, after)))
            node = after
        return rounds

    def _after(self, t: int, answer: Found) -> IntArray:
        """[rank, chunk]: the node held after round ``t``; NOTHING where it is of no more use."""
        after = np.full(self._start.shape, NOTHING)
        for rank, chunk in np.ndindex(after.shape):
            for node in self._nodes:
                if self._named("hold", t + 1, rank, chunk, node) in answer.true:
                    after[rank, chunk] = node
        return after

    def _transfers(
        self, t: int, answer: Found, before: IntArray, after: IntArray
    ) -> Iterator[Transfer]:
        for chunk in range(self._chunks):
            for node in self._nodes:
                senders, receivers = (
                    [r for r, x in enumerate(self._all(kind, t, chunk, node)) if x in answer.true]
                    for kind in ("send", "receive")
                )
                for src, dst in zip(senders, receivers, strict=False):
                    held = before[dst, chunk]
                    then = after[dst, chunk]
                    if src != dst and then not in (held, NOTHING):
                        copied = then == node
                        yield Transfer(src, dst, chunk, "copy" if copied else "reduce")
