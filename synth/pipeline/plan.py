"""A schedule for a problem by any method, proved, with what is known of the optimum.

``best`` takes the best of the quick methods; where that is at the closed-form lower bound it is
optimal and no solver is needed, else CP-SAT starts from it; then a certificate is sought, for as
long again, also where CP-SAT has left a gap. ``heuristic`` stops before the solver.
``cp-sat`` asks the solver in any case. All others are methods of their own name.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from decimal import Decimal

from latecomer.synth.answer import Basis
from latecomer.synth.pipeline.answer import CLOSED_FORM, PipelineAnswer, basis_of, makespan_of
from latecomer.synth.pipeline.evaluate import Stuck, makespan
from latecomer.synth.pipeline.portfolio import QUICK, QuickSchedule, portfolio, split
from latecomer.synth.pipeline.problem import Orders, Problem, Starts
from latecomer.synth.pipeline.timed import compute_only, with_messages
from latecomer.verify.core.schedule import Scalar
from latecomer.verify.core.verdict import Verdict
from latecomer.verify.errors import ArgumentError, SynthesisError
from latecomer.verify.pipeline.check import check
from latecomer.verify.pipeline.costs import json_number
from latecomer.verify.pipeline.schedule import Number
from latecomer.verify.pipeline.verdict import PipelineReport

METHODS = ("best", "cp-sat", "heuristic", *QUICK)
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Solver:
    """How CP-SAT is asked.

    Attributes:
        workers: threads. With more than one, what is found before the time is up can differ from
            run to run.
    """

    time_limit_s: float = 60.0
    seed: int = 0
    workers: int = field(default_factory=lambda: min(8, os.cpu_count() or 1))


@dataclass(frozen=True)
class UnprovedPrograms:
    """Programs that are not proved yet.

    Attributes:
        method, reason: where they are from, and why it is these.
        bound, proof: no schedule is shorter than so many ticks, and how that is known.
    """

    programs: Orders
    method: str
    reason: str
    bound: int
    proof: str = CLOSED_FORM
    interrupted: bool = False


def plan(
    problem: Problem,
    method: str = "best",
    *,
    solver: Solver | None = None,
    progress: Progress = lambda text: None,
) -> PipelineAnswer:
    """Make a schedule and prove it.

    Args:
        problem: what is asked.
        method: one of ``METHODS``.
        solver: how it is asked, where it is.
        progress: is told what is being done.

    Raises:
        ArgumentError: no such method, or it does not suit the problem.
        SynthesisError: what was made is not proved, which is a fault of this package.

    A KeyboardInterrupt while the solver runs ends the search; the best so far is returned.

    Examples:
        >>> from latecomer.synth.pipeline import Solver, make, plan
        >>> from latecomer.verify.pipeline import uniform
        >>> problem = make(8, uniform(4), rank_of=(0, 1, 2, 3))
        >>> for method in ("gpipe", "1f1b", "zero-bubble"):
        ...     print(method, plan(problem, method).value)
        gpipe 33
        1f1b 33
        zero-bubble 27
        >>> plan(problem, solver=Solver(time_limit_s=5)).optimal
        True
    """
    began_s = time.monotonic()
    if method not in METHODS:
        raise ArgumentError("--method", method, f"must be one of {', '.join(METHODS)}")
    solver = solver or Solver()

    tried: dict[str, int] = {}
    unsuited: dict[str, str] = {}
    if method in QUICK:
        orders = QUICK[method](problem)
        choice = UnprovedPrograms(orders, method, "asked for", problem.closed_form)
    else:
        quick = portfolio(problem)
        tried = {candidate.method: candidate.makespan for candidate in quick.candidates}
        unsuited = quick.unsuited
        choice = _best(problem, method, quick.candidates[0], tried, solver, progress)
    answer = finish(problem, choice, tried, unsuited, began_s)

    may_ask_more = method in ("best", "cp-sat") and not choice.interrupted
    if may_ask_more and answer.basis in (Basis.SOLVER, Basis.UNKNOWN):
        return _certified(answer, solver.time_limit_s, progress)
    return answer


def _best(
    problem: Problem,
    method: str,
    quickest: QuickSchedule,
    tried: dict[str, int],
    solver: Solver,
    progress: Progress,
) -> UnprovedPrograms:
    """By ``best``, ``cp-sat`` or ``heuristic``; ``quickest`` is the best of the quick methods."""
    bound = problem.closed_form
    if quickest.makespan == bound and method != "cp-sat":
        reason = "at the lower bound: no solver needed"
        return UnprovedPrograms(quickest.orders, quickest.method, reason, bound)
    if method == "heuristic":
        reason = "best of the quick methods"
        return UnprovedPrograms(quickest.orders, quickest.method, reason, bound)
    return _solved(problem, quickest, tried, solver, progress)


def _certified(answer: PipelineAnswer, time_limit_s: float, progress: Progress) -> PipelineAnswer:
    """The same by a certificate, where one is found before the time is up or Ctrl-C comes."""
    from latecomer.synth.pipeline.certify import (  # numpy takes a while to load
        NoCertificate,
        certified,
    )

    progress(f"{answer.value:g}: certificate")
    try:
        return certified(answer, time_limit_s)
    except NoCertificate as error:
        return replace(answer, reason=f"{answer.reason}; no certificate: {error}")
    except KeyboardInterrupt:
        return replace(answer, interrupted=True)


def finish(
    problem: Problem,
    choice: UnprovedPrograms,
    tried: dict[str, int],
    unsuited: dict[str, str],
    began_s: float,
) -> PipelineAnswer:
    """Prove a choice; ``tried`` are the makespans of all methods that were, in ticks.

    Raises:
        SynthesisError: it is not proved, which is a fault of this package.
    """
    report = check(problem.schedule(choice.programs))
    if report.verdict is not Verdict.PROVED or report.measures is None:
        raise SynthesisError(
            f"internal error: the schedule made by {choice.method} is not proved, so it is not "
            f"used ({report.verdict.value}: {report.counterexample})"
        )

    shown = problem.costs.shown
    bound = shown(choice.bound)
    basis, basis_reason = basis_of(choice.bound, report.measures.exact.makespan, choice.proof)
    tried.setdefault(choice.method, makespan_of(problem, report))
    best_first = sorted(tried, key=tried.__getitem__)
    return PipelineAnswer(
        problem=problem,
        schedule=problem.schedule(choice.programs, _meta(choice, report, bound)),
        report=report,
        method=choice.method,
        choice=choice.reason,
        bound=bound,
        bound_ticks=choice.bound,
        basis=basis,
        reason=basis_reason,
        proof=choice.proof,
        candidates={name: shown(tried[name]) for name in best_first},
        unsuited=unsuited,
        seconds=time.monotonic() - began_s,
        interrupted=choice.interrupted,
    )


def _solved(
    problem: Problem,
    best: QuickSchedule,
    tried: dict[str, int],
    solver: Solver,
    progress: Progress,
) -> UnprovedPrograms:
    """What CP-SAT makes of the best of the quick methods; ``tried`` gets its makespan."""
    # loading the solver takes longer than all quick methods
    from latecomer.synth.pipeline.cpsat import INTERRUPTED, solve

    shown = problem.costs.shown
    bound = problem.closed_form
    progress(f"{shown(best.makespan):g} by {best.method}, bound {shown(bound):g}")

    def tell_better(makespan_ticks: int, bound_ticks: int) -> None:
        bound_shown = shown(max(bound, bound_ticks))
        progress(f"{shown(makespan_ticks):g} by cp-sat, bound {bound_shown:g}")

    answer = solve(
        problem,
        split(best.orders),
        time_limit_s=solver.time_limit_s,
        seed=solver.seed,
        workers=solver.workers,
        better=tell_better,
    )

    programs = best.orders
    method = best.method
    length = best.makespan
    reason = f"cp-sat found nothing better ({answer.note})"
    if answer.starts is not None:
        better = _programs(problem, answer.starts, answer.makespan)
        report = check(problem.schedule(better))
        if report.verdict is Verdict.PROVED and makespan_of(problem, report) < best.makespan:
            programs = better
            method = "cp-sat"
            length = makespan_of(problem, report)
            reason = f"better than {best.method} ({shown(best.makespan):g}); {answer.note}"
            tried["cp-sat"] = length
        else:
            reason = "cp-sat found nothing better that can be written down"

    return UnprovedPrograms(
        programs=programs,
        method=method,
        reason=reason,
        bound=min(length, answer.bound),
        proof=CLOSED_FORM if answer.bound == bound else f"cp-sat, {answer.note}",
        interrupted=answer.note == INTERRUPTED,
    )


def _programs(problem: Problem, starts: Starts, length: int) -> Orders:
    """Programs as quick as the solver says: ``length`` ticks.

    Of actions that take no time, at one time, the order can be wrong: then so are the programs.
    """
    orders = compute_only(problem, starts)
    try:
        as_quick = makespan(problem, orders) <= length
    except Stuck:
        return orders
    return orders if as_quick else with_messages(problem, starts)


def _meta(choice: UnprovedPrograms, report: PipelineReport, bound: Number) -> dict[str, Scalar]:
    """What the file claims; the verifier recomputes what it can."""
    assert report.measures is not None
    exact = report.measures.exact
    claims: dict[str, Scalar] = {}
    for name in ("makespan", "lower_bound"):
        number = json_number(exact.time(getattr(exact, name)))
        if not isinstance(number, Decimal):  # a rounded one would be refuted
            claims[name] = number
    return {
        "method": choice.method,
        **claims,
        "proved_bound": bound,
        "proved_by": choice.proof,
    }
