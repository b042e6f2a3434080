"""One rank comes last, and the others' sums are finished on ports that its completion leaves idle.

Where the wait is just too short for the whole ReduceScatter, the completion need not be put off.
In its first rounds few know anything of the late rank, so most ports are idle: with n = 2^L ranks
n - 1 - 2^t of them in round t < L, on either side. A chunk's sum is not due before its own round.

The completion is a :class:`~latecomer.synth.arrivals.cube.Cube`; a small one can be a solver's
answer to :mod:`latecomer.synth.arrivals.normal`, which has merges of its own already. The others
are found backwards, as a broadcast from the owners: a chunk is there from the round before it is
due, each helper that does not own it gets it once (in truth: sends its partial sum, once), and each
round is an assignment that serves as many helpers as possible, first those with the fewest rounds
left. The broadcast has to be over at round 0, or when the helper arrived. If it can't be in time,
the completion starts later, by *spare* rounds.

What decides is who owns how much. A helper sends its partial sum of every chunk that it does not
own: in rounds of the wait, or in the first rounds of the completion, as long as it does not know of
the late rank. So who hears of it first has to own most, and that is what directions are chosen for.

Kept, with :mod:`latecomer.synth.arrivals.cube` and :mod:`latecomer.synth.arrivals.normal`, because
lists alone leave 9 of the 205 instances with n <= 12 (docs/explanation/arrivals.md) above the
bound, three more with n = 13 and one chunk per helper, and take minutes for some, where this takes
milliseconds.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from latecomer.synth.arrivals.assignment import USEFUL, assignment
from latecomer.synth.arrivals.cube import Cube
from latecomer.synth.arrivals.instance import Arrivals
from latecomer.verify.core.schedule import IntArray, Round, Transfer


class Completion(Protocol):
    """The rounds from which on the late rank takes part; as in :class:`Cube`."""

    rounds: list[list[Transfer]]
    owner: IntArray
    due: IntArray
    need: IntArray
    sends: NDArray[np.bool_]
    receives: NDArray[np.bool_]
    merged: NDArray[np.bool_]


def can_overlap(arrivals: Arrivals) -> bool:
    """Whether one rank comes last, alone, and enough others are there to wait for it."""
    return arrivals.ranks > 2 and arrivals.arrival.count(arrivals.last) == 1


def needs(arrivals: Arrivals, spare: int) -> IntArray:
    """For each helper how many chunks it can't send its partial sum of in the wait."""
    late = arrivals.arrival.index(arrivals.last)
    helpers = np.delete(np.array(arrivals.arrival), late)
    return arrivals.chunks - (arrivals.last + spare - helpers)


def on_a_cube(arrivals: Arrivals, spare: int, seed: int) -> Overlap:
    """One attempt; equal arguments, equal rounds."""
    dice = np.random.default_rng(seed)
    cube = Cube(arrivals.ranks, arrivals.chunks, needs(arrivals, spare), dice)
    return Overlap(arrivals, spare, cube, dice)


class Overlap:
    """One completion, and the merges before and in it.

    Args:
        arrivals: one rank comes last.
        spare: rounds between its arrival and the first of the completion.
        completion: its helpers are the others, in order.
        dice: decides among equal merges.

    Attributes:
        missing: partial sums for which there was no round; 0: the rounds are right.
        rounds: from round 0 on.
    """

    def __init__(
        self, arrivals: Arrivals, spare: int, completion: Completion, dice: np.random.Generator
    ) -> None:
        late = arrivals.arrival.index(arrivals.last)
        names = [rank for rank in range(arrivals.ranks) if rank != late] + [late]
        self._start = arrivals.last + spare
        self._completion = completion
        self._dice = dice
        self._arrival = np.array(arrivals.arrival)[names][:-1]
        rounds: list[list[Transfer]] = [[] for _ in range(self._start)]
        rounds += [list(moves) for moves in completion.rounds]
        # Where a helper neither owns enough nor has idle ports, no merges can make up for it.
        self.missing = int(np.maximum(0, completion.need).sum())
        if not self.missing:
            self.missing = self._merge(rounds)
        self.rounds: list[Round] = [
            tuple(Transfer(names[m.src], names[m.dst], m.chunk, m.op) for m in moves)
            for moves in rounds
        ]

    def _merge(self, rounds: list[list[Transfer]]) -> int:
        """Put merges into ``rounds``; how many are missing."""
        completion = self._completion
        dice = self._dice
        start = self._start
        n, k = completion.merged.shape
        rarity = dice.choice([500, 2000, 8000])
        load = dice.choice([200, 2000, 20_000])
        noise = dice.integers(0, dice.choice([1, 50, 500, 3000]), size=k)
        idle = np.ones((len(rounds), n), np.bool_)
        into = idle.copy()
        idle[start:] = ~completion.sends[:, :n]
        into[start:] = ~completion.receives[:, :n]
        present = np.arange(len(rounds))[:, None] >= self._arrival
        idle = idle & present
        into = into & present
        # Going backwards, the rounds up to t are those in which a helper can still send.
        left = np.cumsum(idle, axis=0)
        due = completion.due + start
        held = completion.merged.copy()
        mine = np.zeros((n, k), np.bool_)
        mine[completion.owner, np.arange(k)] = True
        # Backwards: a helper that holds the chunk here is one that collects; it takes the partial
        # sum of one that does not yet.
        for t in range(due.max() - 1, -1, -1):
            released = due > t
            held |= mine & released
            weight = rarity * (n - held.sum(axis=0)) // n + noise
            order = np.argsort(-weight, kind="stable")
            lacking = (~held & released)[:, order]
            possible = held[:, order][:, None, :] & lacking[None, :, :]
            chunk = order[possible.argmax(axis=2)]
            # The fewer rounds a helper has left for the sums that it still has to send, the sooner
            # its turn.
            urgency = load * (k + (~held & ~mine).sum(axis=1) - left[t])
            useful = possible.any(axis=2) & into[t][:, None] & idle[t][None, :]
            weights = np.where(useful, USEFUL + weight[chunk] + urgency[None, :], 0)
            for parent, child in enumerate(assignment(weights)):
                if weights[parent, child]:
                    c = int(chunk[parent, child])
                    rounds[t].append(Transfer(child, parent, c, "reduce"))
                    held[child, c] = True
        return int((~held).sum())
