"""The schedule that ``synth pipeline`` is asked for, or its comparison of all methods."""

from __future__ import annotations

from dataclasses import dataclass

from latecomer.synth.commands.pipeline.request import Request
from latecomer.synth.pipeline.answer import PipelineAnswer
from latecomer.synth.pipeline.compare import DelayComparison, compare
from latecomer.synth.pipeline.plan import Progress, Solver, plan
from latecomer.synth.pipeline.robust import Robust, robust
from latecomer.verify.errors import SynthesisError


@dataclass(frozen=True)
class SearchResult:
    """The schedule that is written; ``robust`` where it is for several scenarios."""

    planned: PipelineAnswer
    robust: Robust | None


@dataclass(frozen=True)
class ComparisonResult:
    """The rows that were done, None if there are none; whether Ctrl-C ended it."""

    comparison: DelayComparison | None
    interrupted: bool


def search(request: Request, progress: Progress, *, with_certificate: bool) -> SearchResult:
    """Search the schedule.

    Raises:
        SynthesisError: none was made, or there is no certificate where one is asked for.
    """
    for_scenarios: Robust | None = None
    if request.scenarios:
        for_scenarios = robust(
            request.scenarios, request.objective, solver=request.solver, progress=progress
        )
        planned = for_scenarios.planned
    else:
        planned = plan(request.problem, request.method, solver=request.solver, progress=progress)

    if with_certificate and not planned.certificate:
        planned = _certified(planned, request.solver)
    return SearchResult(planned, for_scenarios)


def _certified(planned: PipelineAnswer, solver: Solver) -> PipelineAnswer:
    """With a certificate also where the schedule is at the closed form; SynthesisError without."""
    from latecomer.synth.pipeline.certify import (  # numpy takes a while to load
        NoCertificate,
        certified,
    )

    try:
        return certified(planned, solver.time_limit_s)
    except NoCertificate as error:
        raise SynthesisError(f"no certificate: {error}") from None


def search_comparison(request: Request, progress: Progress) -> ComparisonResult:
    """Compare all methods; Ctrl-C ends it, and the rows that were done remain."""
    comparison: DelayComparison | None = None
    rows = compare(request.problem, request.factors, request.method, request.solver, progress)
    try:
        for comparison_so_far in rows:
            comparison = comparison_so_far
    except KeyboardInterrupt:
        return ComparisonResult(comparison, interrupted=True)
    return ComparisonResult(comparison, interrupted=False)
