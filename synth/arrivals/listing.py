"""Merges and copies put into rounds: in each round the best assignment of senders to receivers.

Given who sends its partial sums to whom (:mod:`latecomer.synth.arrivals.trees`), list scheduling: a
round is a maximum-weight assignment of the present ranks as senders to the present ranks as
receivers, over all transfers that are useful now:

    merge      a partial sum that is complete goes to its parent
    exchange   where one merge is left at the root, root and child may send to each other: both hold
               the full sum. Each direction is useful alone too (backwards, the child is the one
               that holds the full sum), so the two need no common variable.
    copy       a full sum goes to a rank that does not have it

As many useful transfers as possible count first; among those the priorities: chunks with few
holders, ranks with much left to do. Assignments are exact (OR-tools), so a schedule is a function
of the trees, the priorities and the seed. Rounds go on until all is done; something useful always
exists once everybody is present, so that is certain.

Source: the exchange-and-copy rounds of StragglAR (arXiv 2505.23523). Deviation: nothing in the
order is fixed beforehand; an exchange happens whenever it fits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from latecomer.synth.arrivals.assignment import USEFUL, assignment
from latecomer.synth.arrivals.instance import Arrivals
from latecomer.synth.arrivals.trees import IntArray, Trees
from latecomer.verify.core.schedule import Op, Round, Transfer

Move = tuple[int, int, int]
"""Sender, receiver, chunk."""


@dataclass(frozen=True)
class Priorities:
    """What decides between useful transfers; dimensionless weights.

    Attributes:
        merge: for merging rather than copying.
        exchange: for a merge that can be an exchange.
        order: for a chunk of lower number, per chunk: what came first is finished first.
        merge_load: per merge that sender and receiver have ahead of them.
        rarity: for a copy of a chunk that no rank holds yet, less with each holder.
        copy_load: per chunk that the receiver lacks.
        noise: the most that is added to a chunk at random.
    """

    merge: int = 5000
    exchange: int = 3000
    order: int = 0
    merge_load: int = 10
    rarity: int = 2000
    copy_load: int = 10
    noise: int = 0


def drawn(dice: np.random.Generator) -> Priorities:
    """Priorities at random, over the range in which any of them decides something."""
    return Priorities(
        merge=int(dice.choice([0, 1000, 5000, 20_000, 40_000])),
        exchange=int(dice.choice([0, 3000, 10_000, 30_000])),
        order=int(dice.choice([0, 5, 20, 100, 400])),
        merge_load=int(dice.choice([0, 10, 100])),
        rarity=int(dice.choice([0, 2000, 8000, 30_000])),
        copy_load=int(dice.choice([0, 10, 100, 500])),
        noise=int(dice.choice([0, 50, 500, 3000])),
    )


def list_schedule(
    arrivals: Arrivals, trees: Trees, priorities: Priorities, seed: int
) -> list[Round]:
    """The rounds, from round 0 on; equal arguments give equal rounds."""
    state = _State(arrivals, trees, priorities, seed)
    rounds: list[Round] = []
    while not state.full.all():
        rounds.append(state.advance(len(rounds)))
    return rounds


class _State:
    """What everybody has, and the next round.

    Attributes:
        full: [rank, chunk], it holds the sum of all ranks.
        pending: [rank, chunk], how many children it waits for.
        merged: [rank, chunk], it has sent its partial sum on.
    """

    def __init__(self, arrivals: Arrivals, trees: Trees, priorities: Priorities, seed: int) -> None:
        n = arrivals.ranks
        k = arrivals.chunks
        self.arrival = np.array(arrivals.arrival)
        self.parent = trees.parent
        self.roots = trees.roots
        self.priorities = priorities
        self.full = np.zeros((n, k), np.bool_)
        self.pending = trees.children()
        self.merged = self.parent < 0
        noise = np.random.default_rng(seed).integers(0, priorities.noise + 1, size=k)
        self.chunk_bonus = noise + priorities.order * np.arange(k, 0, -1)
        self.noise = noise

    def advance(self, t: int) -> Round:
        """Choose and carry out round ``t``."""
        present = self.arrival <= t
        weight, chunk = self._copies()
        self._add_merges(present, weight, chunk)
        weight[~present, :] = 0
        weight[:, ~present] = 0
        moves = [
            (src, dst, int(chunk[src, dst]))
            for src, dst in enumerate(assignment(weight))
            if weight[src, dst]
        ]
        return self._carry_out(moves)

    def _copies(self) -> tuple[IntArray, IntArray]:
        """For each sender and receiver the weight of the best copy (0: none) and its chunk."""
        n, _ = self.full.shape
        p = self.priorities
        rarity = p.rarity * (n - self.full.sum(axis=0)) // n + self.noise
        order = np.argsort(-rarity, kind="stable")
        full = self.full[:, order]
        possible = full[:, None, :] & ~full[None, :, :]
        # argmax is the first that is possible, so the rarest.
        chunk = order[possible.argmax(axis=2)]
        lacks = (~self.full).sum(axis=1)
        weight = USEFUL + rarity[chunk] + p.copy_load * lacks[None, :]
        return np.where(possible.any(axis=2), weight, 0), chunk

    def _add_merges(self, present: NDArray[np.bool_], weight: IntArray, chunk: IntArray) -> None:
        """Put merges where they weigh more than the copies in ``weight`` and ``chunk``."""
        p = self.priorities
        ready = ~self.merged & (self.pending == 0) & present[:, None]
        child, c = np.nonzero(ready & present[self.parent])
        parent = self.parent[child, c]
        load = ready.sum(axis=1)[child] + self.pending.sum(axis=1)[parent]
        gain = USEFUL + p.merge + self.chunk_bonus[c] + p.merge_load * load
        # Where one merge is left at the root, the child can have the full sum in exchange.
        last = (parent == self.roots[c]) & (self.pending[parent, c] == 1)
        gain = gain + p.exchange * last
        src = np.concatenate([child, parent[last]])
        dst = np.concatenate([parent, child[last]])
        c = np.concatenate([c, c[last]])
        gain = np.concatenate([gain, gain[last]])
        order = np.argsort(gain, kind="stable")  # of several for one pair, the last is kept
        order = order[gain[order] > weight[src[order], dst[order]]]
        weight[src[order], dst[order]] = gain[order]
        chunk[src[order], dst[order]] = c[order]

    def _carry_out(self, moves: list[Move]) -> Round:
        chosen = set(moves)
        # What counts is what a sender held at the start of the round.
        before = self.full.copy()
        transfers = []
        for src, dst, chunk in moves:
            op: Op = "copy" if before[src, chunk] else "reduce"
            transfers.append(Transfer(src, dst, chunk, op))
            if op == "copy":
                self.full[dst, chunk] = True
            elif self.parent[src, chunk] == dst:
                self.merged[src, chunk] = True
                self.pending[dst, chunk] -= 1
                if dst == self.roots[chunk] and self.pending[dst, chunk] == 0:
                    self.full[dst, chunk] = True
            else:  # the root's partial sum goes to its last child
                self.merged[dst, chunk] = True
                self.full[dst, chunk] = True
                if (dst, src, chunk) not in chosen:
                    self.pending[src, chunk] = 0
        return tuple(transfers)
