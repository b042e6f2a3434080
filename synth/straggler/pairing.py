"""Completions with matching ports for any n: every round a maximum-weight matching of the ranks.

The weight of a pair is what its two ranks gain from an exchange: one for each direction in which
there is a chunk to give, and besides, as in :mod:`latecomer.synth.straggler.greedy`, a little more
for chunks that few ranks hold and for receivers that lack many. Source: rarest-first exchange by
matchings, as in the published generator of StragglAR; the second term, and the exact matching
(networkx, after Galil 1986) in place of one pair after the other, are ours.

Owners are balanced: chunk c is exchanged by helper c mod N in round c.
"""

from __future__ import annotations

import time

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from latecomer.synth.straggler.instance import Instance
from latecomer.verify.core.schedule import Round, Transfer
from latecomer.verify.errors import SearchTimeout

# Far above what rarity and lack add to one direction, so these mostly decide only between matchings
# that gain in as many directions.
EXCHANGE = 2**24
"""What one direction of a pair weighs,"""
DOUBLING = 2**12
"""less so much for each doubling of the holders of its chunk,"""
LACK = 2**4
"""and more so much for each chunk that the receiver lacks."""

# Pairing mostly ends within two rounds of the bound (docs/explanation/straggler.md): what takes so
# long gets nowhere.
OVERRUN = 4
"""Give up beyond so many rounds per rank after the last exchange."""


class Pairing:
    """A completion for one instance; ``seed`` breaks ties."""

    def __init__(self, instance: Instance, seed: int) -> None:
        self.instance = instance
        self._dice = np.random.default_rng(seed)

    def run(self, until: float) -> tuple[Round, ...]:
        """The rounds of a completion.

        Args:
            until: give up at this time (of ``time.monotonic``).

        Raises:
            SearchTimeout: it is that late, or nothing gets anywhere.
        """
        k = self.instance.chunks
        n = self.instance.ranks
        late = self.instance.helpers
        held = np.zeros((k, n), bool)
        rounds: list[Round] = []
        while not held.all():
            t = len(rounds)
            if t == k + OVERRUN * n or time.monotonic() > until:
                raise SearchTimeout(f"pairing gave up in round {t}")
            moves: list[Transfer] = []
            free = np.ones(n, bool)
            if t < k:
                owner = self.instance.owner(t)
                free[[owner, late]] = False
                moves += (Transfer(late, owner, t, "reduce"), Transfer(owner, late, t, "reduce"))
            moves += self._copies(held, free)
            for move in moves:
                held[move.chunk, move.dst] = True
            rounds.append(tuple(moves))
        return tuple(rounds)

    def _copies(self, held: NDArray[np.bool_], free: NDArray[np.bool_]) -> list[Transfer]:
        """What the pairs of the best matching of the ``free`` ranks give each other."""
        chunks = np.nonzero(held.any(1) & ~held.all(1))[0]
        ranks = np.nonzero(free)[0]
        has = held[np.ix_(chunks, ranks)]
        lack = (~has).sum(0)
        rarity = (DOUBLING * np.log2(held[chunks].sum(1))).astype(np.int64)
        # Of the chunks that one rank could give another, the one that fewest ranks hold.
        useful = has[:, :, None] & ~has[:, None, :]  # [chunk, sender, receiver]
        rarest = np.where(useful, rarity[:, None, None], EXCHANGE)
        best = rarest.argmin(0) if len(chunks) else np.zeros((len(ranks),) * 2, np.int64)
        gain = np.where(useful.any(0), EXCHANGE - rarest.min(0, initial=EXCHANGE) + LACK * lack, 0)
        # The noise is below LACK, so that only ties are decided.
        weight = gain + gain.T + self._dice.integers(0, 4, gain.shape)
        graph = nx.Graph()
        for a in range(len(ranks)):
            for b in range(a + 1, len(ranks)):
                if gain[a, b] + gain[b, a] > 0:
                    graph.add_edge(a, b, weight=int(weight[a, b]))
        return [
            Transfer(int(ranks[src]), int(ranks[dst]), int(chunks[best[src, dst]]), "copy")
            for pair in nx.max_weight_matching(graph)
            for src, dst in (pair, pair[::-1])
            if gain[src, dst] > 0
        ]
