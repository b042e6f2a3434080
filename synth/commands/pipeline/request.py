"""What the options of ``synth pipeline`` ask for: a problem, scenarios of delays, a solver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from latecomer.synth.commands.pipeline.options import (
    PipelineOptions,
    refuse_method,
    refuse_with_ranges,
)
from latecomer.synth.pipeline.compare import parse_factors
from latecomer.synth.pipeline.parsing import (
    DelaysOfLinks,
    links_of_instance,
    one_or_each,
    parse_durations,
    parse_links,
    parse_scenarios,
)
from latecomer.synth.pipeline.plan import Solver
from latecomer.synth.pipeline.problem import Problem, make, place
from latecomer.synth.pipeline.robust import Objective, Scenario
from latecomer.synth.solvers.choice import require_search
from latecomer.verify.errors import ArgumentError
from latecomer.verify.pipeline.schedule import Instance, Number

MOST_WORKERS = 256


@dataclass(frozen=True)
class Request:
    """What is searched.

    Attributes:
        problem: at the upper end of all ranges.
        scenarios: delays that may be met; empty where one schedule for ``problem`` is asked.
        objective: of the scenarios.
        factors: for a comparison so many times the delays; empty where there is none.
    """

    problem: Problem
    scenarios: Sequence[Scenario]
    objective: Objective
    method: str
    solver: Solver
    factors: Sequence[Number]


def read_request(options: PipelineOptions) -> Request:
    """Parse what was typed; ArgumentError for what can't be asked."""
    solver = _read_solver(options)

    rank_of = place(options.stages, options.virtual, options.placement)
    delays = parse_links("--slow", options.slow, rank_of)
    instance = _read_instance(options, delays)
    problem = make(options.microbatches, instance, rank_of)

    scenarios = _read_scenarios(options, problem, delays)
    refuse_method(options, several_scenarios=bool(scenarios))

    factors: list[Number] = []
    if options.compare:
        factors = parse_factors("--factors", options.factors)

    return Request(
        problem=problem,
        scenarios=scenarios,
        objective=options.robust,
        method=options.method,
        solver=solver,
        factors=factors,
    )


def _read_solver(options: PipelineOptions) -> Solver:
    require_search(options.seed, options.time_limit_s, "cp-sat")
    if options.workers is None:
        return Solver(options.time_limit_s, options.seed)

    if not 1 <= options.workers <= MOST_WORKERS:
        raise ArgumentError("--workers", options.workers, f"must be in 1..{MOST_WORKERS}")
    return Solver(options.time_limit_s, options.seed, options.workers)


def _read_instance(options: PipelineOptions, delays: DelaysOfLinks) -> Instance:
    typed_durations = {
        "--forward": options.forward,
        "--backward": options.backward,
        "--weight": options.weight,
    }
    forward, backward, weight = parse_durations(typed_durations, options.stages)

    memory = None
    if options.memory is not None:
        ranks = options.stages // options.virtual
        memory = one_or_each("--memory", options.memory, ranks, "rank")

    return Instance(
        forward=forward,
        backward=backward,
        weight=weight,
        links=links_of_instance(delays),
        memory=memory,
    )


def _read_scenarios(
    options: PipelineOptions, problem: Problem, delays: DelaysOfLinks
) -> list[Scenario]:
    """Those of ``--scenario``, or the two ends of the ranges of ``--slow``."""
    typed_scenarios = parse_scenarios("--scenario", options.scenario, delays, problem.rank_of)

    if any(delay.least < delay.most for delay in delays.values()):
        refuse_with_ranges(options)
        lowest = problem.with_links(links_of_instance(delays, least=True))
        return [Scenario("lowest delays", lowest), Scenario("highest delays", problem)]

    scenarios = []
    for typed in typed_scenarios:
        links = links_of_instance(typed.delays)
        scenarios.append(Scenario(typed.text, problem.with_links(links), typed.weight))
    return scenarios
