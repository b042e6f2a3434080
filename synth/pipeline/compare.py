"""All methods against growing delay: each planned for the delay it meets, and one that is not.

The latencies of all slow links are multiplied by the same factors. ``kept`` is the schedule that
``best`` (or the method asked for) makes for the first factor, run at all of them. Every schedule
is proved and measured by the verifier.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from latecomer.synth.answer import Basis
from latecomer.synth.pipeline.answer import PipelineAnswer
from latecomer.synth.pipeline.named import Unsuited
from latecomer.synth.pipeline.parsing import number
from latecomer.synth.pipeline.plan import Progress, Solver, plan
from latecomer.synth.pipeline.portfolio import QUICK
from latecomer.synth.pipeline.problem import Problem
from latecomer.verify.errors import ArgumentError
from latecomer.verify.pipeline.check import check
from latecomer.verify.pipeline.costs import DECIMALS
from latecomer.verify.pipeline.schedule import Link, Number
from latecomer.verify.pipeline.verdict import Measures

KEPT = "kept"


@dataclass(frozen=True)
class FactorRow:
    """Makespans at one factor of the delays.

    Attributes:
        makespans: method -> makespan; ``kept`` and the method asked for included.
        best: the methods with the least, compared exactly.
        bound: no schedule is shorter.
    """

    factor: Number
    links: tuple[Link, ...]
    makespans: dict[str, Number]
    best: frozenset[str]
    bound: Number
    basis: Basis


@dataclass
class DelayComparison:
    """Rows as they are done; method -> why it is not in them."""

    problem: Problem
    method: str
    rows: list[FactorRow] = field(default_factory=list)
    unsuited: dict[str, str] = field(default_factory=dict)

    @property
    def columns(self) -> list[str]:
        """The methods of the rows, the one asked for first."""
        first = [self.method, KEPT]
        return first + [name for name in self.rows[0].makespans if name not in first]


def parse_factors(name: str, text: str) -> list[Number]:
    """Numbers of 0 or more, growing.

    Raises:
        ArgumentError: they are not.
    """
    factors = [number(name, part) for part in text.split(",")]
    if factors != sorted(set(factors)):
        raise ArgumentError(name, text, "must grow", "For example: 0,0.5,1,2")
    return factors


def compare(
    problem: Problem,
    factors: Sequence[Number],
    method: str,
    solver: Solver,
    progress: Progress,
) -> Iterator[DelayComparison]:
    """Yield the comparison after each row.

    Raises:
        ArgumentError: there is no delay, or ``method`` does not suit the problem.
    """
    if not any(link.latency for link in problem.instance.links):
        raise ArgumentError("--slow", "", "is needed: no delay to compare at", "--slow 0-1:10")

    comparison = DelayComparison(problem, method)
    kept: PipelineAnswer | None = None
    for factor in factors:
        links = _scaled(problem.instance.links, factor)
        scaled_problem = problem.with_links(links)
        progress(f"{method}, {factor:g} times the delay")
        planned = plan(scaled_problem, method, solver=solver, progress=progress)
        if kept is None:
            kept = planned

        measures = {method: planned.measures, KEPT: _measured_again(kept, scaled_problem)}
        for name in QUICK:
            if name == method or name in comparison.unsuited:
                continue
            try:
                measures[name] = plan(scaled_problem, name).measures
            except Unsuited as error:
                comparison.unsuited[name] = error.requirement

        # In ticks, which are exact: different times may look alike as floats.
        ticks = {name: measured.exact.makespan for name, measured in measures.items()}
        least_ticks = min(ticks.values())
        row = FactorRow(
            factor=factor,
            links=links,
            makespans={name: measured.makespan for name, measured in measures.items()},
            best=frozenset(name for name in ticks if ticks[name] == least_ticks),
            bound=planned.bound,
            basis=planned.basis,
        )
        comparison.rows.append(row)
        yield comparison


def _scaled(links: Sequence[Link], factor: Number) -> tuple[Link, ...]:
    """The links with so many times their latency, rounded to the decimals a file may have."""
    return tuple(
        Link(
            between=link.between,
            latency=round(link.latency * factor, DECIMALS),
            occupancy=link.occupancy,
            duplex=link.duplex,
        )
        for link in links
    )


def _measured_again(planned: PipelineAnswer, problem: Problem) -> Measures:
    """What a schedule takes over other links."""
    report = check(problem.schedule([list(program) for program in planned.schedule.programs]))
    assert report.measures is not None
    return report.measures
