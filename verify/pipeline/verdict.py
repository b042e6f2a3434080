"""What is said about a pipeline schedule: evidence against it, times, memory, slack.

Verdicts, results and counterexamples are those of :mod:`latecomer.verify.core.verdict`.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Literal

import msgspec

from latecomer.verify.core.verdict import BaseReport, Counterexample, Result, Verdict, refuted
from latecomer.verify.pipeline.costs import json_number
from latecomer.verify.pipeline.schedule import Action, LocatedAction, Number, PipelineSchedule

EVIDENCE = ("property", "rank", "position", "action", "expected", "found", "actions")
"""What is printed of a counterexample in JSON; its other fields are those of collectives."""


def refuted_at(located: LocatedAction, broken: str, expected: str, found: str) -> Result:
    """A refutation at one action of a program."""
    return refuted(
        Counterexample(
            property=broken,
            rank=located.rank,
            position=located.position,
            action=str(located.action),
            expected=expected,
            found=found,
        )
    )


def missing(
    schedule: PipelineSchedule, action: Action, broken: str, expected: str, found: str
) -> Result:
    """A refutation because of an action that is not there."""
    rank = schedule.rank_of[action.stage]
    return refuted(
        Counterexample(
            property=broken, rank=rank, action=str(action), expected=expected, found=found
        )
    )


class Bar(msgspec.Struct, frozen=True):
    """Something that takes time: a compute action, or a message (its send; ``receiver`` is set).

    ``end`` of a message is its arrival.
    """

    action: str
    rank: int
    start: Number
    end: Number
    receiver: int | None = None


class LinkSlack(msgspec.Struct, frozen=True):
    """What more delay on one link does to the makespan, everything else unchanged.

    Attributes:
        between: the two ranks.
        messages: how many go over it, both directions together.
        slack: the largest extra latency that costs nothing; None if none ever costs.
        growth: (extra latency, makespan) at the corners of the piecewise linear curve.
        final_slope: by how much the makespan grows per unit of latency after the last corner.
    """

    between: tuple[int, int]
    messages: int
    slack: Number | None
    growth: tuple[tuple[Number, Number], ...]
    final_slope: int

    @property
    def name(self) -> str:
        """The link as people write it: ``1-2``."""
        return f"{self.between[0]}-{self.between[1]}"


class Exact(msgspec.Struct, frozen=True, kw_only=True):
    """What is compared: whole numbers of ticks and of half activations.

    Attributes:
        ticks: how many of them make one unit of time.
        makespan, makespan_in_order, lower_bound: in ticks.
        peak_memory: in half activations, per rank.
    """

    ticks: int
    makespan: int
    makespan_in_order: int | None
    lower_bound: int
    peak_memory: tuple[int, ...]

    def time(self, ticks: int) -> Fraction:
        """So many ticks in the unit of the instance."""
        return Fraction(ticks, self.ticks)


class Measures(msgspec.Struct, frozen=True, kw_only=True):
    """What a schedule that can run takes; all times in the unit of its instance.

    Times that are not whole are the nearest floats: to be shown, not to be compared.

    Attributes:
        exact: the numbers that decide.
        makespan: from the first start to the last end when no send holds up its sender.
        makespan_in_order: the same if each rank's messages are rendezvous on one in-order stream.
        peak_memory: activations, per rank.
        lower_bound: on the makespan of any schedule for this instance.
        critical_path: from time 0 to the makespan without a gap.
        links: one for each pair of ranks that exchanges messages.
    """

    exact: Exact
    makespan: Number
    makespan_in_order: Number | None
    peak_memory: tuple[Number, ...]
    lower_bound: Number
    critical_path: tuple[Bar, ...]
    links: tuple[LinkSlack, ...]

    @property
    def gap(self) -> float:
        """How far the makespan is above the lower bound, relative to it."""
        return relative_gap(self.exact.makespan, self.exact.lower_bound)


def relative_gap(value: int | Fraction, bound: int | Fraction) -> float:
    """How far a value is above its bound, relative to it; above 0 if the value is."""
    return float(Fraction(value) / Fraction(bound) - 1) if bound else 0.0


def gap_in_words(gap: float) -> str:
    """A gap in per cent; one that is not 0 never looks like 0.

    Examples:
        >>> from latecomer.verify.pipeline.verdict import gap_in_words
        >>> gap_in_words(0.0), gap_in_words(1e-9), gap_in_words(0.0312)
        ('0.00%', 'below 0.01%', '3.12%')
    """
    rounded = f"{gap:.2%}"
    return "below 0.01%" if gap > 0 and rounded == f"{0:.2%}" else rounded


class PipelineReport(BaseReport, msgspec.Struct, frozen=True, kw_only=True):
    """Everything ``verify`` says about one pipeline schedule.

    Attributes:
        form: ``compute_only``, or ``compute_comms`` where messages are written out.
        results: property name -> result, in the order of the checks.
        measures: None for a schedule that can't run to its end.
    """

    ranks: int
    stages: int
    microbatches: int
    form: Literal["compute_only", "compute_comms"]
    results: dict[str, Result]
    measures: Measures | None

    @property
    def optimal(self) -> bool | Literal["unknown"]:
        """True for a right schedule at the lower bound; above it, nothing is known."""
        if self.verdict is Verdict.REFUTED or self.measures is None:
            return False
        exact = self.measures.exact
        return True if exact.makespan == exact.lower_bound else "unknown"

    def to_json(self) -> dict[str, Any]:
        """The object that ``verify --json`` prints; times are exact, some of them as Decimal."""
        counterexample = self.counterexample
        evidence = None
        if counterexample is not None:
            evidence = {name: getattr(counterexample, name) for name in EVIDENCE}
        measured = _measures_json(self.measures)
        return {
            "verdict": self.verdict.value,
            "kind": "pipeline",
            "ranks": self.ranks,
            "stages": self.stages,
            "microbatches": self.microbatches,
            "form": self.form,
            "makespan": measured["makespan"],
            "makespan_in_order": measured["makespan_in_order"],
            "lower_bound": measured["lower_bound"],
            "gap": measured["gap"],
            "optimal": self.optimal,
            "peak_memory": measured["peak_memory"],
            "slack": measured["slack"],
            "sensitivity": measured["sensitivity"],
            "critical_path": measured["critical_path"],
            "properties": {name: r.verdict.value for name, r in self.results.items()},
            "notes": {name: r.note for name, r in self.results.items() if r.note},
            "counterexample": evidence,
        }


TIMES_JSON = ("makespan", "makespan_in_order", "lower_bound")
MEASURES_JSON = (*TIMES_JSON, "gap", "peak_memory", "slack", "sensitivity", "critical_path")


def _measures_json(measures: Measures | None) -> dict[str, Any]:
    """The fields of ``MEASURES_JSON``; each is None for a schedule that can't run to its end."""
    fields: dict[str, Any] = dict.fromkeys(MEASURES_JSON)
    if measures is None:
        return fields

    exact = measures.exact
    for name in TIMES_JSON:
        ticks = getattr(exact, name)
        if ticks is not None:
            fields[name] = json_number(exact.time(ticks))
    fields["gap"] = measures.gap
    fields["peak_memory"] = list(measures.peak_memory)
    fields["slack"] = {link.name: link.slack for link in measures.links}
    fields["sensitivity"] = {
        link.name: {"growth": link.growth, "final_slope": link.final_slope}
        for link in measures.links
    }
    fields["critical_path"] = msgspec.to_builtins(measures.critical_path)
    return fields
