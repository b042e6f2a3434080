"""Lists and overlaps in turn, until one is at the lower bound, or tries or work are spent.

lists      trees (:mod:`latecomer.synth.arrivals.trees`) and priorities, all combinations once
overlaps   (:mod:`latecomer.synth.arrivals.overlap`) for fewer rounds than that, from the bound up
together   where several ranks come last, and together (:mod:`latecomer.synth.arrivals.together`); a
           solver is asked for the first number of rounds that is not reached
lists      as at first, with other random numbers, then with priorities drawn at random
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, product

import numpy as np

from latecomer.synth.arrivals.instance import Arrivals
from latecomer.synth.arrivals.listing import Priorities, drawn, list_schedule
from latecomer.synth.arrivals.normal import LARGEST, NormalForm
from latecomer.synth.arrivals.overlap import Overlap, can_overlap, needs, on_a_cube
from latecomer.synth.arrivals.parity import least_rounds
from latecomer.synth.arrivals.together import Together, come_together
from latecomer.synth.arrivals.trees import Trees, balanced
from latecomer.synth.solvers.choice import Solving
from latecomer.synth.solvers.model import Exhausted, Found
from latecomer.synth.straggler.search import Progress
from latecomer.verify.core.schedule import Round

PRIORITIES = (
    Priorities(order=20, copy_load=100),
    Priorities(),
    Priorities(merge=20_000, rarity=8_000),
)
REPEATS = 8
"""How often all priorities are tried, each time with other random numbers, short of the bound."""
DRAWN = 300
"""How many priorities are drawn after that: for several late ranks as good as any chosen."""
OVERLAPS = 100
"""How many overlaps are tried for each number of rounds,"""
# Where none comes near, the work is left to the lists: the gap is too wide for an overlap.
FIRST_OVERLAPS = 10
"""short of this many, if none of them comes near: if as many sums as ranks or more are missing."""
TOGETHER_WORK = 4
"""One try for ranks that come together is as much work as so many lists."""
# About a minute. Z3 takes 2 to 64 seconds for the ten completions that only this question finds
# (docs/explanation/late-together.md).
FREE_TREES_WORK = 40.0
"""What the question about ranks that come together may take, whatever the trees,"""
FREE_TREES_SHARE = 0.5
"""and how much of WORK that is: so it is asked once, of several numbers of chunks for the first."""
# Up to n k = 128 Z3 finds owners and merges in seconds, where there are any.
ASKED_WORK = 24.0
"""What the question for a small overlap may take."""
WORK = 2**32
"""Ranks * ranks * chunks * rounds, over all tries, and as much as LEAST_WORK for each round: about
half a minute's worth. Each number of chunks that is looked at gets one list at least."""
# A round takes some time however few ranks and chunks there are.
LEAST_WORK = 2**14
NOISE = 50
"""Added to the priorities' noise with each repeat."""

NamedRounds = tuple[str, list[Round]]
"""A method's name, and the rounds that it found."""


class Attempts:
    """What is tried, for one instance or for several numbers of chunks, with so much work in all.

    Args:
        solving: seed, effort and time limit.
        progress: is told what is being tried.

    Attributes:
        exhausted: the rounds that are too few, where a solver has found that there is no schedule.
    """

    def __init__(self, solving: Solving, progress: Progress) -> None:
        self.solving = solving
        self._progress = progress
        self.exhausted: dict[Arrivals, int] = {}
        self._work = WORK * solving.effort

    def least(self, arrivals: Arrivals) -> int:
        """The greatest lower bound that has a proof, or for which a solver has exhausted less."""
        return max(least_rounds(arrivals), self.exhausted.get(arrivals, 0) + 1)

    def shortest(self, arrivals: Arrivals, *, once: bool = False) -> NamedRounds:
        """The attempt with the fewest rounds, of equals the first; the first if ``once``."""
        attempts = self._attempts(arrivals)
        best = next(attempts)
        while not (once or self._spent or len(best[1]) <= arrivals.last + self.least(arrivals)):
            attempt = next(attempts, None)
            if attempt is None:
                break
            best = min(best, attempt, key=lambda named: len(named[1]))
        return best

    @property
    def _spent(self) -> bool:
        return self._work < 0 or self.solving.over

    def _pay(self, arrivals: Arrivals, rounds: int) -> None:
        self._work -= rounds * (LEAST_WORK + arrivals.ranks**2 * arrivals.chunks)

    def _attempts(self, arrivals: Arrivals) -> Iterator[NamedRounds]:
        # All combinations of trees and priorities come first: their fewest rounds are what
        # overlaps, ranks that come together and a solver have to be better than.
        lists = self._lists(arrivals)
        fewest = 2**63
        for attempt in islice(lists, 2 * len(PRIORITIES)):
            fewest = min(fewest, len(attempt[1]) - arrivals.last)
            yield attempt
        if can_overlap(arrivals):
            for rounds in range(arrivals.bound, fewest):
                overlaps = list(self._overlaps(arrivals, rounds))
                yield from overlaps
                if overlaps:
                    break
            # Where the cube has too few rounds to let the right ranks own enough
            # (latecomer.synth.arrivals.normal).
            if arrivals.bound < fewest and arrivals.ranks * arrivals.chunks <= LARGEST:
                yield from self._asked(arrivals)
        if come_together(arrivals):
            yield from self._together(arrivals, fewest)
        yield from lists

    def _together(self, arrivals: Arrivals, fewest: int) -> Iterator[NamedRounds]:
        """From one round less than listed down, as far as it goes."""
        search = Together(arrivals, self.solving.seed)
        for rounds in reversed(range(least_rounds(arrivals), fewest)):
            completion = self._drawn(search, rounds) or self._any_trees(search, rounds)
            if not completion:
                return
            for all_rounds in search.with_wait(completion):
                yield "together", all_rounds

    def _drawn(self, search: Together, rounds: int) -> list[Round]:
        """A completion of so many rounds by drawing and changing; none if that finds none."""
        chunks = search.arrivals.chunks
        self._progress(f"together, {chunks} chunks, {rounds} rounds")
        for completion in search.completions(rounds, self.solving.effort):
            self._pay(search.arrivals, TOGETHER_WORK * rounds)
            if not completion.missing:
                return completion.rounds
            if self._spent:
                break
        return []

    def _any_trees(self, search: Together, rounds: int) -> list[Round]:
        """A completion with any trees, if the solver finds one; none leaves fewer to be tried."""
        price = FREE_TREES_SHARE * WORK * self.solving.effort
        if self._work < price or self.solving.over or not search.can_be_asked(rounds):
            return []
        self._progress(f"{self.solving.solver}, all completions of {rounds} rounds")
        self._work -= price
        question = search.question(rounds)
        answer = self.solving.ask(question.model, FREE_TREES_WORK)
        if isinstance(answer, Exhausted):
            self.exhausted[search.arrivals] = rounds
        return question.decode(answer) if isinstance(answer, Found) else []

    def _overlaps(self, arrivals: Arrivals, rounds: int) -> Iterator[NamedRounds]:
        """Those with so many rounds after the last arrival, if there are any."""
        first = self.solving.seed
        least = 2**63
        for number in range(max(1, int(OVERLAPS * self.solving.effort))):
            if self._spent or (number == FIRST_OVERLAPS and least >= arrivals.ranks):
                return
            self._progress(f"overlap, {arrivals.chunks} chunks, {rounds} rounds")
            spare = rounds - arrivals.dissemination_bound
            overlap = on_a_cube(arrivals, spare, first + number)
            self._pay(arrivals, len(overlap.rounds))
            least = min(least, overlap.missing)
            if not overlap.missing:
                yield "overlap", overlap.rounds
                return

    def _asked(self, arrivals: Arrivals) -> Iterator[NamedRounds]:
        """An overlap at the bound, if the solver finds its completion."""
        self._progress(f"{self.solving.solver}, {arrivals.bound} rounds in normal form")
        spare = arrivals.bound - arrivals.dissemination_bound
        question = NormalForm(arrivals.ranks, arrivals.chunks, needs(arrivals, spare))
        answer = self.solving.ask(question.model, ASKED_WORK)
        if isinstance(answer, Found):
            completion = question.decode(answer)
            # The solver has placed the merges in the completion; those of the wait are still found
            # by lot.
            for seed in range(self.solving.seed, self.solving.seed + OVERLAPS):
                dice = np.random.default_rng(seed)
                overlap = Overlap(arrivals, spare, completion, dice)
                if not overlap.missing:
                    yield "overlap", overlap.rounds
                    return

    def _lists(self, arrivals: Arrivals) -> Iterator[NamedRounds]:
        for number, (trees, priorities, seed) in enumerate(self._priorities(arrivals), 1):
            self._progress(f"list, {arrivals.chunks} chunks, try {number}")
            rounds = list_schedule(arrivals, trees, priorities, seed)
            self._pay(arrivals, len(rounds))
            yield "list", rounds

    def _priorities(self, arrivals: Arrivals) -> Iterator[tuple[Trees, Priorities, int]]:
        first = self.solving.seed
        for repeat in range(REPEATS):
            for staged, priorities in product((True, False), PRIORITIES):
                noisy = replace(priorities, noise=NOISE * repeat)
                trees = balanced(arrivals, staged=staged, seed=first + repeat)
                yield trees, noisy, first + repeat
        dice = np.random.default_rng(first)
        for seed in range(first, first + int(DRAWN * self.solving.effort)):
            trees = balanced(arrivals, staged=bool(dice.integers(2)), seed=seed)
            yield trees, drawn(dice), seed
