"""Several ranks come together, so late that the others' sums may be wherever they are needed.

Let l ranks come in one round, after a wait in which h = n - l helpers added up all that they have.
What is left is an addition of l + 1 parts per chunk: those of the late ranks, and P, the helpers'
sum. Two things make its first rounds fruitful (docs/explanation/late-together.md):

    P in several places   every helper may hold it when the late ranks come, if the wait is long
                          enough; a helper that has no use for it is a free place for other sums
    sums in several       partial sums are copied where a port would be idle
    places

So the completion is a :class:`~latecomer.synth.arrivals.spread.Spread` with leaf P at all helpers.
Then it is seen which helpers use P at all, and the wait is another one, of the helpers' own parts,
in which only these want the sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from latecomer.synth.arrivals.choices import BoolArray, Choices
from latecomer.synth.arrivals.free_trees import LARGEST, FreeTrees, question_size
from latecomer.synth.arrivals.instance import Arrivals
from latecomer.synth.arrivals.spread import Spread
from latecomer.verify.core.schedule import Round, Transfer

DRAWN = 100
"""So many completions are drawn for each number of rounds,"""
CHANGES = 500
"""and so often the one that came nearest is changed."""
WAITS = 20
"""So many waits are drawn."""


def come_together(arrivals: Arrivals) -> bool:
    """Whether all that are not there at first come in one round, two or more of them."""
    return len(arrivals.times) == 2 and arrivals.arrival.count(arrivals.last) > 1


class Together:
    """A search for completions of so many rounds, and for the wait before one.

    Args:
        arrivals: all that are late come together.
        seed: decides all that is drawn.
    """

    def __init__(self, arrivals: Arrivals, seed: int) -> None:
        self.arrivals = arrivals
        self._dice = np.random.default_rng(seed)
        self._late = arrivals.arrival.count(arrivals.last)
        self._names = sorted(range(arrivals.ranks), key=lambda rank: -arrivals.arrival[rank])

    def completions(self, rounds: int, effort: float) -> Iterator[Spread]:
        """Some that are drawn, then changes of the one in which least is missing in the end."""
        ranks = self.arrivals.ranks
        chunks = self.arrivals.chunks
        # Late ranks come first: each has a part of its own, and all helpers have P, the last part.
        part = np.minimum(np.arange(ranks), self._late)
        wanted = np.ones((ranks, chunks), np.bool_)
        best = None
        least = ranks * chunks
        for number in range(max(1, int((DRAWN + CHANGES) * effort))):
            if best is None or number < DRAWN * effort:
                choices = Choices.drawn(ranks, self._late + 1, chunks, self._dice)
            else:
                choices = best.changed(self._dice)
            spread = Spread(choices, part, wanted)
            # Also where it is no better: changes that change nothing lead to others that do.
            if spread.advance(rounds) <= least:
                best = choices
                least = spread.missing
            yield spread

    def can_be_asked(self, rounds: int) -> bool:
        """Whether :meth:`question` is small enough for a solver."""
        return question_size(*self._size(rounds)) <= LARGEST

    def question(self, rounds: int) -> FreeTrees:
        """Is there one with any trees? Where that is exhausted, no schedule is so short."""
        return FreeTrees(*self._size(rounds))

    def _size(self, rounds: int) -> tuple[int, int, int, int]:
        return self.arrivals.ranks, self._late, self.arrivals.chunks, rounds

    def with_wait(self, completion: Sequence[Round]) -> Iterator[list[Round]]:
        """All rounds, of a wait and a completion in which late ranks come first; if it fits in."""
        arrivals = self.arrivals
        late = self._late
        helpers = arrivals.ranks - late
        chunks = arrivals.chunks
        wanted = _used(completion, arrivals.ranks, chunks)[late:]
        for _ in range(WAITS):
            choices = Choices.drawn(helpers, helpers, chunks, self._dice)
            wait = Spread(choices, np.arange(helpers), wanted)
            if not wait.advance(arrivals.last):
                idle: list[Round] = [()] * (arrivals.last - len(wait.rounds))
                before = [_renamed(moves, self._names[late:]) for moves in wait.rounds]
                yield [*before, *idle, *(_renamed(moves, self._names) for moves in completion)]
                return


def _used(completion: Sequence[Round], ranks: int, chunks: int) -> BoolArray:
    """[rank, chunk]: what it has at first is sent, or added to."""
    used = np.zeros((ranks, chunks), np.bool_)
    untouched = np.ones((ranks, chunks), np.bool_)
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
