"""Schedules for ranks that arrive at given rounds: the fastest of all methods, proved.

What is made here is proved by the verifier before anybody sees it. A question that a solver has
exhausted raises the lower bound that is reported, not the one that the verifier recomputes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from synth.arrivals.exact import require_askable
from synth.arrivals.instance import Arrivals
from synth.arrivals.portfolio import Candidate, Portfolio
from synth.arrivals.request import instance
from synth.checked import checked
from synth.limits import require_search
from synth.solvers import SolverName
from synth.straggler.choose import Setting
from synth.straggler.search import Progress
from verify.core.schedule import Schedule
from verify.core.verdict import Report


@dataclass(frozen=True)
class Arranged:
    """A proved schedule for given arrivals, and how it compares.

    Attributes:
        arrivals: the instance, in units of the schedule's own chunks.
        lower_bound: no right schedule of so many chunks has fewer rounds after the last arrival.
        reason: why there are none.
        candidates: all methods that were considered, in the order of trying.
        seconds: time taken.
    """

    schedule: Schedule
    report: Report
    method: str
    arrivals: Arrivals
    lower_bound: int
    reason: str
    candidates: tuple[Candidate, ...]
    seconds: float

    @property
    def gap(self) -> int:
        """Rounds after the last arrival above the lower bound."""
        return self.report.completion_rounds - self.lower_bound

    @property
    def verdict(self) -> str:
        """Whether so many rounds are the fewest for so many chunks."""
        if self.gap:
            return f"gap {self.gap}: optimality unknown"
        return f"optimal for so many chunks ({self.reason})"


def search(
    n: int,
    arrivals: Mapping[int, int],
    *,
    m: int | None = None,
    seed: int = 0,
    time_limit_s: float = 60.0,
    solver: SolverName = "cp-sat",
    setting: Setting | None = None,
    exact: bool = False,
    progress: Progress = lambda text: None,
) -> Arranged:
    """The fastest schedule found for ranks that arrive at given rounds, proved.

    Args:
        n: ranks, 2 or more.
        arrivals: for each late rank the round it arrives in, 0 or more; all others are there in
            round 0. A round is as long as one of (n - len(arrivals)) * m chunks takes.
        m: chunks per rank that is on time. Left open, it is 1; and with ``setting`` up to eight
            times as many chunks are tried too, the arrivals converted.
        seed: of all that is random. Equal arguments give equal schedules, unless something that
            ran out of time in one run just finished in another.
        time_limit_s: for everything together.
        solver: ``cp-sat`` or ``z3``, where a solver is asked.
        setting: compare seconds in it; without it S*beta counts, then rounds.
        exact: refuse what is too large for a solver to be asked for fewer rounds until there are
            none; where ranks and chunks are few enough it is asked in any case.
        progress: is told what is being tried.

    Raises:
        ArgumentError: an argument is out of its range, too large for ``exact``, or contradicts
            another.
    """
    start, unit = time.monotonic(), 1 if m is None else m
    require_search(seed, time_limit_s, solver)
    given = instance(n, arrivals, unit)
    if exact:
        require_askable(given)
    portfolio = Portfolio(
        given,
        setting=setting,
        seed=seed,
        solver=solver,
        time_limit_s=time_limit_s,
        progress=progress,
    )
    portfolio.try_lists()
    portfolio.try_exact()
    portfolio.try_standard()
    portfolio.try_wait_then_complete(unit)
    portfolio.try_other_chunks(unit, any_number=m is None and setting is not None)
    best = portfolio.best
    assert best.schedule is not None
    report = checked(best.schedule)
    lower_bound, reason = _bound(portfolio, best, report)
    return Arranged(
        best.schedule,
        report,
        best.method,
        best.arrivals,
        lower_bound,
        reason,
        tuple(portfolio.candidates),
        time.monotonic() - start,
    )


def _bound(portfolio: Portfolio, best: Candidate, report: Report) -> tuple[int, str]:
    arrivals = best.arrivals
    if best.schedule is not None and best.schedule.ports != "duplex":
        return report.lower_bound, "the verifier's bound for these ports"
    if arrivals == portfolio.arrivals and portfolio.least > arrivals.bound:
        return portfolio.least, "all schedules of fewer rounds were searched"
    if arrivals.bound == arrivals.dissemination_bound:
        return arrivals.bound, "what the last rank knows has to spread"
    return arrivals.bound, "so many transfers do not fit into fewer rounds"
