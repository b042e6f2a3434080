"""All methods against growing delay: each planned for the delay it meets, and one that is not.

The latencies of all slow links are multiplied by the same factors. ``kept`` is the schedule that
``best`` (or the method asked for) makes for the first factor, run at all of them. Every schedule
is proved and measured by the verifier.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from synth.answer import Basis
from synth.pipeline.answer import PipelineAnswer
from synth.pipeline.named import Unsuited
from synth.pipeline.parsing import number
from synth.pipeline.plan import Progress, Solver, plan
from synth.pipeline.portfolio import QUICK
from synth.pipeline.problem import Problem
from verify.errors import ArgumentError
from verify.pipeline.check import check
from verify.pipeline.costs import DECIMALS
from verify.pipeline.schedule import Link, Number
from verify.pipeline.verdict import Measures

KEPT = "kept"


@dataclass(frozen=True)
class Row:
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
class Comparison:
    """Rows as they are done; method -> why it is not in them."""

    problem: Problem
    method: str
    rows: list[Row] = field(default_factory=list)
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
) -> Iterator[Comparison]:
    """Yield the comparison after each row.

    Raises:
        ArgumentError: there is no delay, or ``method`` does not suit the problem.
    """
    if not any(link.latency for link in problem.instance.links):
        raise ArgumentError("--slow", "", "is needed: no delay to compare at", "--slow 0-1:10")
    found = Comparison(problem, method)
    kept = None
    for factor in factors:
        links = tuple(
            Link(
                between=link.between,
                latency=round(link.latency * factor, DECIMALS),
                occupancy=link.occupancy,
                duplex=link.duplex,
            )
            for link in problem.instance.links
        )
        here = problem.with_links(links)
        progress(f"{method}, {factor:g} times the delay")
        asked = plan(here, method, solver=solver, progress=progress)
        kept = kept or asked
        found_here = {method: asked.measures, KEPT: _again(kept, here)}
        for name in QUICK:
            if name == method or name in found.unsuited:
                continue
            try:
                found_here[name] = plan(here, name).measures
            except Unsuited as error:
                found.unsuited[name] = error.requirement
        makespans = {name: measures.makespan for name, measures in found_here.items()}
        ticks = {name: measures.exact.makespan for name, measures in found_here.items()}
        least = min(ticks.values())
        best = frozenset(name for name in ticks if ticks[name] == least)
        found.rows.append(Row(factor, links, makespans, best, asked.bound, asked.basis))
        yield found


def _again(planned: PipelineAnswer, problem: Problem) -> Measures:
    """What a schedule takes over other links."""
    report = check(problem.schedule([list(program) for program in planned.schedule.programs]))
    assert report.measures is not None
    return report.measures
