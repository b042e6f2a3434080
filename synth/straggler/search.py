"""Which methods for a completion are tried in which order, and how much work each may take.

    search       questions to a solver (see ``completion``): exact, for small n; balanced owners
    closed form  at the bound for every n with duplex ports, for powers of two with matching ports;
                 its own few owners
    greedy       minimum-cost flows; balanced owners, duplex ports
    pairing      maximum-weight matchings; balanced owners, matching ports

A short question to the solver comes first where the instance is small, for balanced owners are
what a library's ReduceScatter leaves; then the closed form. Where owners have to be balanced, or
the closed form does not fit the ports, greedy or pairing follows, and then longer questions. The
first schedule at the lower bound ends the search: it is optimal. Otherwise the best one comes with
an honest gap. When a method gives way to the next is decided by work, not by a clock, so equal
arguments give equal schedules on any machine; only a time limit that the user sets changes that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from latecomer.synth.solvers.choice import Solving
from latecomer.synth.solvers.model import Exhausted, Found, Outcome, Undecided
from latecomer.synth.straggler.closed_form import ClosedForm
from latecomer.synth.straggler.completion import CompletionQuestion, Form
from latecomer.synth.straggler.instance import Instance, Owners, PortModel
from latecomer.synth.straggler.reduce_scatter import rotation, tournament
from latecomer.verify.core.schedule import Round
from latecomer.verify.errors import SearchTimeout

if TYPE_CHECKING:
    from latecomer.synth.straggler.greedy import Greedy
    from latecomer.synth.straggler.pairing import Pairing

SMALL = 2**10
"""Ranks times chunks up to which the solver is asked before anything else."""

LARGEST_SEARCH = 2**14
"""Ranks times chunks: a question beyond it could fill the memory, which no time limit bounds."""

# In units of about a second each (latecomer.synth.solvers.choice). The first question is short,
# since where it finds nothing the closed form mostly follows, which is at the bound.
QUICK_WORK = 2.0
STAGED_WORK = 4.0
WHOLE_WORK = 8.0
"""What the first question, a staged one after it, and a cyclic or general one may take."""

QUICK_TRIES = 4
"""How many numbers of rounds, from the bound upwards, are tried in the staged form."""

TRIES = 12
"""Seeds that greedy or pairing is given, where the instance is small enough (SIZE_OF_TRIES)."""

Ending = Literal["found", "exhausted", "undecided"]
ENDINGS: dict[type[Outcome], Ending] = {
    Found: "found",
    Exhausted: "exhausted",
    Undecided: "undecided",
}
Constructive = Literal["greedy", "pairing"]
CONSTRUCTIVE: dict[PortModel, Constructive] = {"duplex": "greedy", "matching": "pairing"}
# Pairing gets far less: networkx finds its matchings in Python, OR-tools the flows of greedy in
# C++.
SIZE_OF_TRIES: dict[Constructive, int] = {"greedy": 2**28, "pairing": 2**21}
"""All tries together may have so many times ranks * ranks * chunks, about half a minute's worth."""

Method = Literal[Form, "closed form", Constructive]
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Attempt:
    """One method that was tried: for so many completion rounds (greedy: that many came out)."""

    rounds: int
    method: Method
    owners: Owners
    result: Ending
    seconds: float


@dataclass(frozen=True)
class Result:
    """A completion, the waiting phase that prepares it, and the attempt that found it."""

    rounds: Sequence[Round]
    waiting: Sequence[Round]
    attempt: Attempt


def _maker(method: Constructive) -> type[Greedy] | type[Pairing]:
    """The class; imported only when it is needed, for it needs a large library."""
    if method == "greedy":
        from latecomer.synth.straggler.greedy import Greedy

        return Greedy
    from latecomer.synth.straggler.pairing import Pairing

    return Pairing


class Search:
    """All attempts at one instance; ``attempts`` records them."""

    def __init__(
        self, instance: Instance, owners: Owners, solving: Solving, progress: Progress
    ) -> None:
        self.instance = instance
        self.owners = owners
        self.solving = solving
        self.progress = progress
        self.attempts: list[Attempt] = []
        self.best: Result | None = None
        self._size = instance.ranks * instance.chunks

    def run(self) -> Result | None:
        """The shortest completion found, if any."""
        for attempt in self._methods():
            attempt()
            if self.best is not None and len(self.best.rounds) == self.instance.bound:
                break
        return self.best

    def _methods(self) -> Iterator[Callable[[], object]]:
        instance = self.instance
        bound = instance.bound
        balanced = self.owners != "free"
        free = self.owners != "balanced"
        if balanced and self._size <= SMALL:
            yield lambda: self._search(bound, "staged", QUICK_WORK)
        if free and (instance.ports == "duplex" or instance.ranks == 2**instance.fewest_hops):
            yield self._closed_form
        if balanced:
            yield self._construct
        if balanced and self._size <= LARGEST_SEARCH:
            yield self._search_on

    def _record(
        self, attempt: Attempt, rounds: Sequence[Round], waiting: Sequence[Round] | None = None
    ) -> None:
        """Note how it ended; ``waiting`` is a balanced ReduceScatter where nothing is given."""
        self.attempts.append(attempt)
        better = self.best is None or len(rounds) < len(self.best.rounds)
        if attempt.result == "found" and better:
            if waiting is None:
                partition = rotation if self.instance.ports == "duplex" else tournament
                waiting = partition(self.instance.helpers, self.instance.chunks)
            self.best = Result(rounds, waiting, attempt)

    def _say(self, what: str) -> None:
        best = f"; best so far {len(self.best.rounds)} rounds" if self.best else ""
        self.progress(
            f"n = {self.instance.ranks}, {self.instance.chunks} chunks: {what} "
            f"(lower bound {self.instance.bound} rounds{best})"
        )

    # -- constructions -------------------------------------------------------------------------

    def _closed_form(self) -> None:
        start = time.monotonic()
        form = ClosedForm(self.instance)
        rounds = form.completion()
        waiting = form.waiting()
        took = time.monotonic() - start
        self._record(Attempt(len(rounds), "closed form", "free", "found", took), rounds, waiting)

    def _construct(self) -> None:
        """Several seeds, fewer for large instances, until one reaches the bound."""
        method = CONSTRUCTIVE[self.instance.ports]
        tries = self.solving.effort * SIZE_OF_TRIES[method] / (self._size * self.instance.ranks)
        for number in range(max(1, min(TRIES, int(tries)))):
            # While there is nothing the first try has its time, even where loading the solver has
            # taken all there was.
            if self.best is not None and self.solving.over:
                return
            self._say(f"{method}, try {number + 1}")
            start = time.monotonic()
            result: Ending = "found"
            try:
                maker = _maker(method)(self.instance, self.solving.seed + number)
                rounds = maker.run(self.solving.until)
            except SearchTimeout:
                result = "undecided"
                rounds = ()
            took = time.monotonic() - start
            count = len(rounds) or self.instance.bound
            self._record(Attempt(count, method, "balanced", result, took), rounds)
            if len(rounds) == self.instance.bound:
                return

    # -- search --------------------------------------------------------------------------------

    def _search_on(self) -> None:
        """Longer questions, for anything shorter than what there is."""
        quick_counts = range(self.instance.bound, self.instance.bound + QUICK_TRIES)
        for rounds in quick_counts:
            if not self._good_enough(rounds):
                self._search(rounds, "staged", STAGED_WORK)
        for rounds in quick_counts:
            if self._good_enough(rounds):
                break
            # The general form is the larger question, so it is put only where the smaller one has
            # been exhausted; that proves nothing of schedules that do not repeat.
            if self._search(rounds, "cyclic", WHOLE_WORK) == "exhausted":
                self._search(rounds, "general", WHOLE_WORK)

    def _good_enough(self, rounds: int) -> bool:
        shorter = self.best is None or len(self.best.rounds) > rounds
        return not shorter or self.solving.over

    def _search(self, rounds: int, form: Form, work: float) -> Ending:
        """Put one question to the solver."""
        self._say(f"{self.solving.solver}, {form} form, {rounds} rounds")
        start = time.monotonic()
        question = CompletionQuestion(self.instance, rounds, form)
        answer = self._ask(question, work)
        took = time.monotonic() - start
        result = ENDINGS[type(answer)]
        found = question.decode(answer) if isinstance(answer, Found) else ()
        self._record(Attempt(rounds, form, "balanced", result, took), found)
        return result

    def _ask(self, question: CompletionQuestion, work: float) -> Outcome:
        if question.form == "staged":
            head = self.solving.ask(question.head(), work)
            if not isinstance(head, Found):
                return head
            question.fix_head(head)
            rest = self.solving.ask(question.model, work)
            # Other repeating rounds may be completed where these can not, so nothing is exhausted.
            if isinstance(rest, Exhausted):
                return Undecided("the repeating rounds that were found can't be completed")
            return rest
        return self.solving.ask(question.model, work)
