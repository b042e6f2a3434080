"""What ``synth pipeline`` does once its options are read: check them, search, write, print."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import typer

from synth.commands.options import (
    INTERRUPTED,
    encoded,
    nothing_written_if_interrupted,
    require_writable,
    searching,
)
from synth.pipeline import curves, show
from synth.pipeline.answer import PipelineAnswer
from synth.pipeline.compare import Comparison, compare, parse_factors
from synth.pipeline.options import (
    links,
    one_or_each,
    parse_durations,
    parse_links,
    parse_scenarios,
)
from synth.pipeline.plan import METHODS, Solver, plan
from synth.pipeline.problem import Placement, Problem, make, place
from synth.pipeline.robust import Objective, Scenario, robust
from synth.solvers.choice import require_search
from verify.errors import ArgumentError, SynthesisError
from verify.output import store, write_atomically
from verify.pipeline import lowered, timeline, write, write_csv
from verify.pipeline.picture import Sheet, svg, trace
from verify.pipeline.schedule import Instance

CsvForm = Literal["compute_only", "compute_comms"]
MOST_WORKERS = 256


@dataclass(frozen=True)
class Request:
    """The options that say what is asked, as they were typed; ``factors`` with --compare only."""

    stages: int
    microbatches: int
    durations: dict[str, str | None]
    memory: str | None
    virtual: int
    placement: Placement
    slow: list[str]
    scenario: list[str]
    robust: Objective
    method: str
    time_limit_s: float
    seed: int
    workers: int | None
    factors: str | None


@dataclass(frozen=True)
class Targets:
    """The options that say what is written and printed."""

    output: Path
    csv: Path | None
    csv_form: CsvForm
    picture: Path | None
    certificate: Path | None
    json: bool
    quiet: bool


def carry_out(request: Request, targets: Targets) -> None:
    """Do all of it; ArgumentError before anything is searched or written."""
    _require_targets(request, targets)
    solver = _solver(request)
    problem, scenarios = _problems(request)
    if request.method not in METHODS:
        raise ArgumentError("--method", request.method, f"must be one of {', '.join(METHODS)}")
    if request.factors is not None:
        return _compare(request, targets, problem, solver)
    with nothing_written_if_interrupted(), searching(targets.quiet) as progress:
        if scenarios:
            found = robust(scenarios, request.robust, solver=solver, progress=progress)
            planned = found.planned
        else:
            planned = plan(problem, request.method, solver=solver, progress=progress)
        if targets.certificate is not None and not planned.certificate:
            planned = _certified(planned, solver)
    written = _write(planned, targets)
    if planned.interrupted:
        print("interrupted: this is the best so far", file=sys.stderr)
    if targets.quiet:
        return None
    if scenarios:
        as_json = show.robust_json(found, written)
        as_text = show.robust_text(found, written)
    else:
        as_json = show.as_json(planned, written)
        as_text = show.text(planned, written)
    print(encoded(as_json) if targets.json else as_text)
    return None


def _require_targets(request: Request, targets: Targets) -> None:
    if request.factors is None:
        require_writable(targets.output)
    elif targets.csv is not None:
        raise ArgumentError("--csv", str(targets.csv), "is not for --compare: nothing is planned")
    more = {
        "--csv": targets.csv,
        "--picture": targets.picture,
        "--certificate": targets.certificate,
    }
    for option, path in more.items():
        if path is not None:
            require_writable(path, option)
    kinds = [".svg"] if request.factors is not None else [".svg", ".json"]
    if targets.picture is not None and targets.picture.suffix not in kinds:
        raise ArgumentError("--picture", str(targets.picture), f"must end in {' or '.join(kinds)}")


def _solver(request: Request) -> Solver:
    require_search(request.seed, request.time_limit_s, "cp-sat")
    if request.workers is None:
        return Solver(request.time_limit_s, request.seed)
    if not 1 <= request.workers <= MOST_WORKERS:
        raise ArgumentError("--workers", request.workers, f"must be in 1..{MOST_WORKERS}")
    return Solver(request.time_limit_s, request.seed, request.workers)


def _problems(request: Request) -> tuple[Problem, list[Scenario]]:
    """What is asked, at the upper end of all ranges; and the scenarios, if there are any."""
    rank_of = place(request.stages, request.virtual, request.placement)
    delays = parse_links("--slow", request.slow, rank_of)
    ranks = request.stages // request.virtual
    forward, backward, weight = parse_durations(request.durations, request.stages)
    memory = None
    if request.memory is not None:
        memory = one_or_each("--memory", request.memory, ranks, "rank")
    instance = Instance(
        forward=forward,
        backward=backward,
        weight=weight,
        links=links(delays),
        memory=memory,
    )
    problem = make(request.microbatches, instance, rank_of)
    ranges = any(delay.least < delay.most for delay in delays.values())
    named = parse_scenarios("--scenario", request.scenario, delays, rank_of)
    if ranges and (named or request.factors is not None):
        beside = "--scenario" if named else "--compare"
        raise ArgumentError("--slow", ",".join(request.slow), f"can't have a range with {beside}")
    if ranges and request.robust == "mean":
        raise ArgumentError("--robust", "mean", "needs --scenario: a range has no weights")
    scenarios = [Scenario(t, problem.with_links(links(over)), w) for t, over, w in named]
    if ranges:
        lowest = problem.with_links(links(delays, least=True))
        scenarios = [Scenario("lowest delays", lowest), Scenario("highest delays", problem)]
    if scenarios and request.method != "best":
        raise ArgumentError("--method", request.method, "must be best for several scenarios")
    return problem, scenarios


def _certified(planned: PipelineAnswer, solver: Solver) -> PipelineAnswer:
    """With a certificate also where the schedule is at the closed form; SynthesisError without."""
    from synth.pipeline.certify import NoCertificate, certified

    try:
        return certified(planned, solver.time_limit_s)
    except NoCertificate as error:
        raise SynthesisError(f"no certificate: {error}") from None


def _compare(request: Request, targets: Targets, problem: Problem, solver: Solver) -> None:
    if request.scenario:
        raise ArgumentError("--scenario", request.scenario, "is not for --compare")
    assert request.factors is not None
    factors = parse_factors("--factors", request.factors)
    found: Comparison | None = None
    interrupted = False
    try:
        with searching(targets.quiet) as progress:
            for so_far in compare(problem, factors, request.method, solver, progress):
                found = so_far
    except KeyboardInterrupt:
        interrupted = True
    if found is not None:
        _show_comparison(found, targets)
    if interrupted:
        print("interrupted: the rows above are what was done", file=sys.stderr)
        raise typer.Exit(INTERRUPTED)


def _show_comparison(found: Comparison, targets: Targets) -> None:
    if targets.picture is not None:
        drawn = curves.svg(found, show.comparison_title(found))
        write_atomically(targets.picture, drawn.encode())
    if targets.quiet:
        return
    if targets.json:
        print(encoded(show.comparison_json(found)))
        return
    from rich.console import Console

    console = Console() if sys.stdout.isatty() else Console(width=160)
    console.print(show.comparison_table(found))
    print(f"kept: what {found.method} makes for the first row, run in all of them")
    for why in found.unsuited.values():
        print(f"not there: {why}")
    if targets.picture is not None:
        print(f"drawn: {targets.picture}")


def _write(planned: PipelineAnswer, targets: Targets) -> list[str]:
    """Write everything asked for; the names of the files."""
    schedule = planned.schedule
    written = [str(targets.output)]
    write(schedule, targets.output)
    if targets.csv is not None:
        if targets.csv_form == "compute_comms" or schedule.has_messages:
            write_csv(lowered(schedule, planned.problem.costs), targets.csv, "compute_comms")
            written.append(f"{targets.csv} (compute_comms)")
        else:
            write_csv(schedule, targets.csv, "compute_only")
            written.append(f"{targets.csv} (compute_only)")
    if targets.certificate is not None:
        store("".join(f"{line}\n" for line in planned.certificate).encode(), targets.certificate)
        written.append(str(targets.certificate))
    if targets.picture is not None:
        write_atomically(targets.picture, _drawn([planned], targets.picture).encode())
        written.append(str(targets.picture))
    return written


def _drawn(plans: Sequence[PipelineAnswer], picture: Path) -> str:
    sheets = [
        Sheet(
            f"{planned.method}, makespan {planned.measures.makespan:g}", timeline(planned.schedule)
        )
        for planned in plans
    ]
    return svg(sheets) if picture.suffix == ".svg" else trace(sheets)
