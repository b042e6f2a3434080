"""The shape of a tree of additions, the same for all chunks, and what receiving does in it.

Nodes are the sums that may be held: leaves 0 .. m-1 are what there is at first, the inner nodes
follow, the root (the full sum) is the last. Each inner node is added up from two *siblings*. What a
rank that holds one node gains by receiving another:

    its sibling      their parent: the one case in which something is added
    one above it     that one, as a copy: it contains what the rank had
    anything else    that one, as a copy, and what the rank had is lost to it
    itself or below  nothing

Any rank may hold any node, and several may hold the same. There is one tree per chunk, so whoever
ends with the root ends with the same bits.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from latecomer.verify.core.schedule import IntArray

Cut = Literal["halves", "thirds", "power", "last"]
"""How leaves are divided: in halves, in two thirds and one, the greatest power of two from the
rest, or all others from the last."""
CUTS: tuple[Cut, ...] = ("halves", "thirds", "power", "last")
NOTHING = -1
"""Instead of a node."""


class Shape:
    """A tree over so many leaves.

    Args:
        leaves: m, 1 or more.
        cut: how.

    Attributes:
        root: the last node.
        parent, sibling: for each node; NOTHING at the root.
        above: [node, other], the node contains the other, and more.
        result: [sent, held], the node that the receiver then holds, or NOTHING where it gains none.
        adds: [sent, held], whether they are siblings.
    """

    def __init__(self, leaves: int, cut: Cut) -> None:
        self.root = 2 * leaves - 2
        self.parent: IntArray = np.full(self.root + 1, NOTHING)
        self.sibling: IntArray = np.full(self.root + 1, NOTHING)
        self._next = leaves
        self._divide(0, leaves, cut)
        nodes = np.arange(self.root + 1)
        self.above = np.zeros((len(nodes), len(nodes)), np.bool_)
        for node in nodes[:-1].tolist():
            over = int(self.parent[node])
            while over != NOTHING:
                self.above[over, node] = True
                over = int(self.parent[over])
        self.adds = self.sibling[:, None] == nodes[None, :]
        copied = np.where(
            self.above.T | np.eye(len(nodes), dtype=np.bool_), NOTHING, nodes[:, None]
        )
        self.result: IntArray = np.where(self.adds, self.parent[:, None], copied)

    def _divide(self, low: int, high: int, cut: Cut) -> int:
        """The node of leaves ``low .. high - 1``."""
        width = high - low
        if width == 1:
            return low
        middle = (
            low
            + {
                "halves": (width + 1) // 2,
                "thirds": max(1, 2 * width // 3),
                "power": 1 << (width - 1).bit_length() - 1,
                "last": width - 1,
            }[cut]
        )
        one = self._divide(low, middle, cut)
        other = self._divide(middle, high, cut)
        node = self._next
        self._next = self._next + 1
        self.parent[[one, other]] = node
        self.sibling[one] = other
        self.sibling[other] = one
        return node
