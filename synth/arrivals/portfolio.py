"""All methods tried on one instance, and the fastest schedule of them.

Schedules are compared by what they take after the last arrival: seconds where a setting is given,
else the share of S*beta, then rounds. What could not win even at its own lower bound is not made.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate

import msgspec

from latecomer.synth import show
from latecomer.synth.arrivals.attempts import Attempts
from latecomer.synth.arrivals.envelope import WaitThenComplete, started_late
from latecomer.synth.arrivals.exact import Question, can_be_asked
from latecomer.synth.arrivals.instance import Arrivals
from latecomer.synth.cost import Cost, Setting, completion_cost, completion_cost_of
from latecomer.synth.solvers.choice import Solving
from latecomer.synth.solvers.model import Exhausted, Found
from latecomer.synth.standard import doubling, rhd, ring
from latecomer.synth.straggler.generate import search as search_straggler
from latecomer.synth.straggler.search import Progress
from latecomer.verify.core.schedule import Schedule
from latecomer.verify.errors import SearchTimeout

MOST_NUMBERS = 8
"""How many numbers of chunks are tried where they are left open."""
LARGEST = 2**14
"""Ranks times chunks that schedules are made for."""
EXACT_WORK = 8.0
"""Of a solver, for each number of rounds."""


@dataclass(frozen=True)
class MethodCandidate:
    """One method, and what it costs after the last arrival.

    Attributes:
        method: its name.
        arrivals: the instance in units of its own chunks.
        rounds: after the last arrival.
        cost: of those rounds.
        schedule: None where it was not made; rounds and cost are then at its lower bound.
        note: why it was not made.
    """

    method: str
    arrivals: Arrivals
    rounds: int
    cost: Cost
    schedule: Schedule | None
    note: str = ""


class Portfolio:
    """The candidates for one instance.

    Attributes:
        candidates: all that were looked at, in the order of trying.
    """

    def __init__(
        self,
        arrivals: Arrivals,
        solving: Solving,
        *,
        setting: Setting | None,
        progress: Progress,
    ) -> None:
        self.arrivals = arrivals
        self.solving = solving
        self.setting = setting
        self.candidates: list[MethodCandidate] = []
        self._listed = 0
        self._progress = progress
        self._attempts = Attempts(solving, progress)

    @property
    def best(self) -> MethodCandidate:
        """The fastest of those that were made; of equals the first."""
        return min((c for c in self.candidates if c.schedule), key=lambda c: self._time(c.cost))

    def least(self, arrivals: Arrivals) -> int:
        """Rounds that any schedule takes after the last arrival: the bound of the theorem, or more
        where a solver has exhausted what is below."""
        return max(arrivals.bound, self._attempts.exhausted.get(arrivals, 0) + 1)

    def try_lists(self, *, thoroughly: bool) -> None:
        """Lists and overlaps in the chunks of the instance.

        Without ``thoroughly`` one list is enough where none could win: other numbers will be tried.
        """
        at_bound = completion_cost_of(self.arrivals.bound, self.arrivals.chunks)
        self._try(
            self.arrivals,
            "",
            once=not thoroughly and self._time(at_bound) > self._time(self.best.cost),
        )
        # try_exact asks for fewer rounds than these.
        self._listed = self.candidates[-1].rounds

    def try_other_chunks(self, chunks_per_rank: int, *, any_number: bool) -> None:
        """Other numbers of chunks, where they might win.

        Those of the methods that are ahead, if some are; and with ``any_number`` all, in steps of a
        quarter, in order of what they take at their lower bounds, which prices wait and completion:
        with fewer chunks rounds are longer, so fewer of them fit into the wait.
        """
        n = self.arrivals.ranks
        k = self.arrivals.chunks
        numbers = {n - 1, n} if self.best.arrivals.chunks != k else set[int]()
        numbers = {number * chunks_per_rank for number in numbers}
        if any_number:
            # 1, 2, 3 ... 8, 10, 12, 15, 18 ... 293.
            numbers |= set(
                accumulate(range(24), lambda last, _: max(last + 1, last * 5 // 4), initial=1)
            )
        waits = [
            self.arrivals.with_chunks(number, self._rounds_per_round(number))
            for number in sorted(numbers - {k})
            if n * number <= LARGEST
        ]

        def at_bound(arrivals: Arrivals) -> tuple[float | Fraction, int]:
            return self._time(completion_cost_of(arrivals.bound, arrivals.chunks))

        for arrivals in sorted(waits, key=at_bound)[:MOST_NUMBERS]:
            if at_bound(arrivals) < self._time(self.best.cost):
                self._try(arrivals, f", {show.chunks(arrivals.chunks)}")
                if any_number:
                    self.try_wait_then_complete(arrivals.chunks, more=True)

    def _try(self, arrivals: Arrivals, note: str, *, once: bool = False) -> None:
        method, rounds = self._attempts.shortest(arrivals, once=once)
        self.add(method + note, arrivals, arrivals.schedule(rounds))

    def try_exact(self) -> None:
        """Ask a solver for fewer rounds than listed, from the bound up, where that is small."""
        if not can_be_asked(self.arrivals):
            return
        for rounds in range(self.least(self.arrivals), self._listed):
            self._progress(f"all schedules of {rounds} rounds after the last arrival")
            question = Question(self.arrivals, rounds)
            answer = self.solving.ask(question.model, EXACT_WORK)
            if isinstance(answer, Found):
                self.add("exact", self.arrivals, self.arrivals.schedule(question.decode(answer)))
            if not isinstance(answer, Exhausted):
                return
            self._attempts.exhausted[self.arrivals] = rounds

    def try_standard(self) -> None:
        """Ring, halving-doubling and recursive doubling, started at the last arrival."""
        for name, make in (("ring", ring), ("rhd", rhd), ("doubling", doubling)):
            standard = make(self.arrivals.ranks)
            k = standard.chunks
            self.add(
                name,
                self.arrivals.with_chunks(k, self._rounds_per_round(k)),
                started_late(standard, self.arrivals, self._rounds_per_round),
            )

    def try_wait_then_complete(self, chunks: int, *, more: bool = False) -> None:
        """The whole ReduceScatter, then the last rank's completion, where that might win.

        With ``more``, nothing is recorded where it can't: another number of chunks is there.
        """
        method = f"wait-then-complete, {show.chunks(chunks)}" if more else "wait-then-complete"
        wait = WaitThenComplete(self.arrivals, chunks, self._rounds_per_round)
        at_bound = completion_cost_of(wait.bound, wait.arrivals.chunks)
        if self._time(at_bound) >= self._time(self.best.cost):
            note = "cannot win, even at its lower bound"
        else:
            self._progress(method)
            try:
                straggler = search_straggler(
                    self.arrivals.ranks,
                    late=wait.last_rank,
                    chunks=chunks,
                    seed=self.solving.seed,
                    effort=self.solving.effort,
                    time_limit_s=self.solving.left_s,
                    solver=self.solving.solver,
                )
            except SearchTimeout:
                note = "search gave up"
            else:
                self.add(method, wait.arrivals, wait.schedule(straggler))
                return
        if not more:
            out = MethodCandidate(method, wait.arrivals, wait.bound, at_bound, None, note)
            self.candidates.append(out)

    def add(self, method: str, arrivals: Arrivals, schedule: Schedule) -> None:
        """A schedule that was made."""
        schedule = msgspec.structs.replace(
            schedule, meta={"method": method, "seed": self.solving.seed}
        )
        cost = completion_cost(schedule)
        rounds = schedule.completion_rounds
        self.candidates.append(MethodCandidate(method, arrivals, rounds, cost, schedule))

    def _time(self, cost: Cost) -> tuple[float | Fraction, int]:
        if self.setting is None:
            return cost.share, cost.messages
        setting = self.setting
        return setting.seconds(cost), cost.messages

    def _rounds_per_round(self, chunks: int) -> Fraction:
        """How many rounds of ``chunks`` chunks take as long as one round of the instance."""
        if self.setting is None:
            return Fraction(chunks, self.arrivals.chunks)
        setting = self.setting
        here, there = (
            setting.seconds(completion_cost_of(1, k)) for k in (self.arrivals.chunks, chunks)
        )
        return Fraction(here) / Fraction(there)
