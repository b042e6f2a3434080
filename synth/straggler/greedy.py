"""Completions for any n in seconds: every round a minimum-cost flow, with one round of foresight.

While chunks flow at full rate, every helper must receive in every round; a receive that is lost
is lost for good, and near a power of two hardly any may be. So a round is chosen as a whole: as
many receives as possible and, among these, the ones that keep later rounds full. A unit of flow is

    sender -> chunk -> receiver        (the sender holds the chunk, the receiver lacks it)

and costs little for chunks that few ranks hold (they must double while they are young) and for
receivers that lack many chunks (all helpers stay about equally provided, so that everybody has
something to give). Rarest-first choice is folklore; the second term is ours, and it is what makes
the difference between a gap of 2 and none. How the two are weighed is a *preference*; several are
tried where the next round would come out less than full, and the best outcome two rounds on wins.

Owners are balanced: chunk c is exchanged by helper c mod N in round c.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from ortools.graph.python import min_cost_flow

from latecomer.synth.straggler.instance import Instance
from latecomer.verify.core.schedule import Round, Transfer
from latecomer.verify.errors import SearchTimeout

FORESIGHT_RANKS = 160
"""Up to so many ranks several preferences are tried per round; beyond, one takes long enough."""

Preference = tuple[Literal["doublings", "order", "holders"], int, bool]
"""How rarity is measured, the weight of a receiver's lack, and whether ties are broken widely."""

# The first one also looks one round ahead, for all of them. What a lack weighs goes from 8, where
# rarity mostly decides, to 300: a receiver lacks few of the chunks on their way.
PREFERENCES: tuple[Preference, ...] = (
    ("doublings", 8, False),
    ("doublings", 100, False),
    ("order", 8, False),
    ("holders", 8, False),
    ("doublings", 30, False),
    ("doublings", 300, False),
    ("order", 100, False),
    ("doublings", 8, True),
    ("doublings", 100, True),
    ("order", 8, True),
    ("holders", 8, True),
)

RARITY = 1024
"""Cost units of one place in order, one holder, or a quarter of a doubling."""

# At the bound a completion ends ceil(log2 n) - 1 rounds after the last exchange.
OVERRUN = 3
"""Give up beyond so many times ceil(log2 n) rounds after the last exchange."""

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class _State:
    """The start of a round: chunks on their way (rarest last to come), and who holds them."""

    round: int
    chunks: Ints
    held: Bools  # [chunk, helper]

    @property
    def missing(self) -> int:
        """Receives that the chunks on their way still need."""
        return int((~self.held).sum())


class Greedy:
    """Completions for one instance, one per seed.

    Args:
        instance: duplex ports.
        seed: breaks ties.
    """

    def __init__(self, instance: Instance, seed: int) -> None:
        self.instance = instance
        self._dice = np.random.default_rng(seed)
        self._foresight = instance.ranks <= FORESIGHT_RANKS

    def run(self, until: float) -> tuple[Round, ...]:
        """The rounds of a completion.

        Args:
            until: give up at this time (of ``time.monotonic``).

        Raises:
            SearchTimeout: it is that late, or nothing gets anywhere.
        """
        k = self.instance.chunks
        state = _State(0, np.empty(0, np.int64), np.empty((0, self.instance.helpers), bool))
        last = k + OVERRUN * self.instance.fewest_hops
        rounds: list[Round] = []
        while state.round < k or len(state.chunks):
            if state.round == last or time.monotonic() > until:
                raise SearchTimeout(f"greedy gave up in round {state.round}")
            state, moves = self._best(state)
            rounds.append(moves)
        return tuple(rounds)

    def _owner(self, state: _State) -> int:
        """Who exchanges with the late rank in this round; -1 after the last exchange."""
        exchanging = state.round < self.instance.chunks
        return self.instance.owner(state.round) if exchanging else -1

    def _best(self, state: _State) -> tuple[_State, Round]:
        """The round that leaves least missing after the next one, of those tried."""
        if not self._foresight:
            return self._round(state, self._owner(state), PREFERENCES[0])
        best: tuple[int, int] | None = None
        chosen: tuple[_State, Round] | None = None
        for preference in PREFERENCES:
            after, moves = self._round(state, self._owner(state), preference)
            next_, _ = self._round(after, self._owner(after), PREFERENCES[0])
            outcome = next_.missing, after.missing
            if best is None or outcome < best:
                best = outcome
                chosen = (after, moves)
            if next_.missing <= self._ideal(state):
                break
        assert chosen is not None
        return chosen

    def _ideal(self, state: _State) -> int:
        """What two full rounds would leave missing: N - 1 receives while a chunk is exchanged,
        which makes N - 1 new ones missing, and N receives in later rounds."""
        late_rounds = sum(state.round + i >= self.instance.chunks for i in range(2))
        return max(0, state.missing - late_rounds * self.instance.helpers)

    def _round(self, state: _State, owner: int, preference: Preference) -> tuple[_State, Round]:
        """One round by one preference, and the state after it."""
        t = state.round
        late = self.instance.helpers
        order = np.lexsort((-state.chunks, state.held.sum(1)))  # rarest first, then youngest
        chunks = state.chunks[order]
        held = state.held[order].copy()
        moves: list[Transfer] = []
        if len(chunks):
            busy = np.arange(late) == owner
            for row, senders, receivers in self._flow(held, busy, preference):
                chunk = int(chunks[row])
                moves += (
                    Transfer(int(s), int(r), chunk, "copy")
                    for s, r in zip(senders, receivers, strict=False)
                )
                held[row, receivers] = True
        unfinished = ~held.all(1)
        chunks = chunks[unfinished]
        held = held[unfinished]
        if owner >= 0:
            moves += (Transfer(late, owner, t, "reduce"), Transfer(owner, late, t, "reduce"))
            # With a single helper the exchange makes the chunk complete everywhere.
            if late > 1:
                chunks = np.append(chunks, t)
                held = np.vstack([held, np.arange(late) == owner])
        return _State(t + 1, chunks, held), tuple(moves)

    def _flow(
        self, held: Bools, busy: Bools, preference: Preference
    ) -> Iterator[tuple[int, Ints, Ints]]:
        """For each row of ``held``: senders (``N`` is the late rank) and as many receivers."""
        n_chunks, n_helpers = held.shape
        late_sends = not busy.any()
        sent_chunk, sender = np.nonzero(held & ~busy)
        if late_sends:
            sent_chunk = np.concatenate([sent_chunk, np.arange(n_chunks)])
            sender = np.concatenate([sender, np.full(n_chunks, n_helpers)])
        received_chunk, receiver = np.nonzero(~held & ~busy)
        # A chunk is a node of its own, so that it needs an arc for each holder and for each rank
        # that lacks it, and not one for each pair of these; that as many send it as receive it is
        # what flows conserve.
        # nodes: senders 0 .. N, then chunks, then receivers, then source and sink
        chunk0 = n_helpers + 1
        receiver0 = n_helpers + 1 + n_chunks
        source = receiver0 + n_helpers
        sink = receiver0 + n_helpers + 1
        tails = [np.full(n_helpers + 1, source), sender, chunk0 + received_chunk]
        heads = [np.arange(n_helpers + 1), chunk0 + sent_chunk, receiver0 + receiver]
        costs = [
            np.zeros(n_helpers + 1, np.int64),
            np.zeros(len(sender), np.int64),
            self._costs(held, received_chunk, receiver, preference),
        ]
        tails.append(receiver0 + np.arange(n_helpers))
        heads.append(np.full(n_helpers, sink))
        costs.append(np.zeros(n_helpers, np.int64))
        flow = min_cost_flow.SimpleMinCostFlow()
        arcs = flow.add_arcs_with_capacity_and_unit_cost(
            np.concatenate(tails),
            np.concatenate(heads),
            np.ones(sum(map(len, tails)), np.int64),
            np.concatenate(costs),
        )
        flow.set_nodes_supplies([source, sink], [n_helpers, -n_helpers])
        status = flow.solve_max_flow_with_min_cost()
        assert status == flow.OPTIMAL
        used = flow.flows(arcs) > 0
        first = n_helpers + 1
        sends = used[first : first + len(sender)]
        receives = used[first + len(sender) : first + len(sender) + len(receiver)]
        for row in range(n_chunks):
            yield (
                row,
                sender[sends & (sent_chunk == row)],
                receiver[receives & (received_chunk == row)],
            )

    def _costs(self, held: Bools, chunk: Ints, receiver: Ints, preference: Preference) -> Ints:
        """Costs of the receives; rows of ``held`` are in order of rarity."""
        measure, weight, wide = preference
        holders = held.sum(1)
        rarity: Ints = {
            "order": np.arange(len(held)) * RARITY,
            "holders": holders * RARITY,
            "doublings": (np.log2(holders + 1) * 4 * RARITY).astype(np.int64),
        }[measure]
        lack = (~held).sum(0)
        # Below the weight of one chunk that is lacked, so that only ties are decided, unless these
        # are to be broken widely.
        ties = self._dice.integers(0, 4 + (weight if wide else 0), len(chunk))
        # A receiver lacks no more than all rows, so no cost is negative.
        costs: Ints = rarity[chunk] - weight * lack[receiver] + weight * len(held) + ties
        return costs
