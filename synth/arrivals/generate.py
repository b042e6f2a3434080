"""Schedules for ranks that arrive at given rounds: the fastest of all methods, proved.

What is made here is proved by the verifier before anybody sees it. A question that a solver has
exhausted raises the lower bound that is reported, not the one that the verifier recomputes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from latecomer.synth.answer import Answer, Basis, basis_of, checked
from latecomer.synth.arrivals.exact import require_askable
from latecomer.synth.arrivals.instance import Arrivals
from latecomer.synth.arrivals.parity import parity_bound
from latecomer.synth.arrivals.portfolio import MethodCandidate, Portfolio
from latecomer.synth.arrivals.request import instance
from latecomer.synth.cost import Setting
from latecomer.synth.solvers.choice import SolverName, Solving
from latecomer.synth.straggler.search import Progress
from latecomer.verify.core.schedule import Schedule
from latecomer.verify.core.verdict import Report

CERTIFIED: dict[tuple[int, ...], int] = {
    (1, 0, 0, 0): 3,
    (1, 0, 1, 1): 3,
    (1, 0, 2, 2): 3,
    (2, 0, 0, 0): 4,
    (2, 0, 1, 1): 4,
    (2, 0, 2, 2): 4,
    (4, 0, 1, 1): 6,
    (4, 0, 2, 2): 6,
    (3, 0, 1, 1, 1): 5,
    (3, 0, 2, 2, 2): 5,
    (4, 0, 0, 1, 1): 6,
    (4, 0, 1, 1, 1): 6,
    (4, 0, 2, 2, 2): 6,
    (1, 0, 0, 0, 0, 0): 4,
}
"""(chunks, arrivals in order) -> the fewest rounds, for each certificate in proofs/certificates."""


@dataclass(frozen=True, kw_only=True)
class ArrivalsAnswer(Answer[Schedule, Report]):
    """A proved schedule for given arrivals, and how it compares.

    Attributes:
        arrivals: the instance, in units of the schedule's own chunks.
        candidates: all methods that were considered, in the order of trying.
        seconds: time taken.
    """

    method: str
    arrivals: Arrivals
    candidates: tuple[MethodCandidate, ...]
    seconds: float


def search(
    n: int,
    arrivals: Mapping[int, int],
    *,
    m: int | None = None,
    chunks: int | None = None,
    seed: int = 0,
    effort: float = 1.0,
    time_limit_s: float | None = None,
    solver: SolverName = "z3",
    setting: Setting | None = None,
    exact: bool = False,
    progress: Progress = lambda text: None,
) -> ArrivalsAnswer:
    """The fastest schedule found for ranks that arrive at given rounds, proved.

    Args:
        n: ranks, 2 or more.
        arrivals: for each late rank the round it arrives in, 0 or more; all others are there in
            round 0. A round is as long as one of (n - len(arrivals)) * m chunks takes.
        m: chunks per rank that is on time. Left open, it is 1; and with ``setting`` other numbers
            of chunks are tried too, the arrivals converted.
        chunks: of the whole buffer, whatever ``m`` is; then no other number is tried.
        seed: of all that is random. Equal arguments give equal schedules, on any machine.
        effort: search so many times as long, in work and not in seconds.
        time_limit_s: for everything together; with one, the result may depend on the machine.
        solver: ``z3`` or ``cp-sat``, where a solver is asked.
        setting: compare seconds in it; without it S*beta counts, then rounds.
        exact: refuse what is too large for a solver to be asked for fewer rounds until there are
            none; where ranks and chunks are few enough it is asked in any case.
        progress: is told what is being tried.

    Raises:
        ArgumentError: an argument is out of its range, too large for ``exact``, or contradicts
            another.

    Examples:
        Rank 6 comes in round 3, rank 7 in round 9:

        >>> from latecomer.synth.arrivals.generate import search
        >>> answer = search(8, {6: 3, 7: 9})  # an ArrivalsAnswer
        >>> answer.schedule.late, answer.value, answer.bound  # rounds after the last arrival
        ((6, 7), 10, 10)
    """
    start = time.monotonic()
    chunks_per_rank = 1 if m is None else m
    solving = Solving(solver, seed, effort, time_limit_s)
    given = instance(n, arrivals, chunks_per_rank, chunks)
    if exact:
        require_askable(given)

    portfolio = Portfolio(given, solving, setting=setting, progress=progress)
    any_number = chunks is None and m is None and setting is not None
    _try_all(portfolio, chunks, chunks_per_rank, any_number=any_number)

    best = portfolio.best
    assert best.schedule is not None
    report = checked(best.schedule)
    bound, basis, reason = _bound(portfolio, best, report)
    return ArrivalsAnswer(
        schedule=best.schedule,
        report=report,
        bound=bound,
        basis=basis,
        reason=reason,
        method=best.method,
        arrivals=best.arrivals,
        candidates=tuple(portfolio.candidates),
        seconds=time.monotonic() - start,
    )


def _try_all(
    portfolio: Portfolio, chunks: int | None, chunks_per_rank: int, *, any_number: bool
) -> None:
    """Try the methods on the instance, and other numbers of chunks where none is given."""
    # The standard ones come first, for they take no search: what could not win against the best
    # so far, even at its own lower bound, is not made.
    portfolio.try_standard()
    portfolio.try_lists(thoroughly=not any_number)
    portfolio.try_exact()

    if chunks is not None:
        portfolio.try_wait_then_complete(chunks)
        return
    portfolio.try_wait_then_complete((portfolio.arrivals.ranks - 1) * chunks_per_rank)
    portfolio.try_other_chunks(chunks_per_rank, any_number=any_number)


def _bound(portfolio: Portfolio, best: MethodCandidate, report: Report) -> tuple[int, Basis, str]:
    """The highest lower bound on the rounds after the last arrival, and its basis.

    The verifier's bound does not look at who comes when; the others hold for full-duplex ports.
    """
    arrivals = best.arrivals
    basis, reason = basis_of(report)
    assert best.schedule is not None
    if basis is not Basis.UNKNOWN or best.schedule.ports != "duplex":
        return report.lower_bound, basis, reason
    # A certificate is about the sorted arrivals: which rank has which does not matter.
    certified = CERTIFIED.get((arrivals.chunks, *sorted(arrivals.arrival)))
    if certified == report.completion_rounds:
        return certified, Basis.CERTIFICATE, "proofs/certificates refutes fewer rounds"
    if portfolio.least(arrivals) > arrivals.bound:
        bound = portfolio.least(arrivals)
        basis = Basis.SOLVER
        reason = "all schedules of fewer rounds were searched"
    elif parity_bound(arrivals) > arrivals.bound:
        bound = parity_bound(arrivals)
        basis = Basis.PAPER
        reason = "what the first full sums are added up from is not ready so early in enough places"
    else:
        bound = arrivals.bound
        basis = Basis.THEOREM
        reason = "so many transfers do not fit into fewer rounds"
    if bound < report.completion_rounds:
        return bound, Basis.UNKNOWN, "the lower bound may be out of reach"
    return bound, basis, reason
