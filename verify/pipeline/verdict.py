"""What is said about a pipeline schedule: evidence against it, times, memory, slack.

Verdicts, results and counterexamples are those of :mod:`verify.core.verdict`.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Literal

import msgspec

from verify.core.verdict import BaseReport, Counterexample, Result, Verdict, refuted
from verify.pipeline.costs import json_number
from verify.pipeline.schedule import Action, Number, PipelineSchedule, Place

EVIDENCE = ("property", "rank", "position", "action", "expected", "found", "actions")
"""What is printed of a counterexample in JSON; its other fields are those of collectives."""


def refuted_at(place: Place, broken: str, expected: str, found: str) -> Result:
    """A refutation at one action of a program."""
    rank, position, action = place
    return refuted(
        Counterexample(
            property=broken,
            rank=rank,
            position=position,
            action=str(action),
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
        >>> from verify.pipeline.verdict import gap_in_words
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
        found = self.measures
        wrong = self.counterexample
        times: dict[str, Any] = dict.fromkeys(("makespan", "makespan_in_order", "lower_bound"))
        if found is not None:
            for name in times:
                ticks = getattr(found.exact, name)
                if ticks is not None:
                    times[name] = json_number(found.exact.time(ticks))
        return {
            "verdict": self.verdict.value,
            "kind": "pipeline",
            "ranks": self.ranks,
            "stages": self.stages,
            "microbatches": self.microbatches,
            "form": self.form,
            **times,
            "gap": found and found.gap,
            "optimal": self.optimal,
            "peak_memory": found and list(found.peak_memory),
            "slack": found and {link.name: link.slack for link in found.links},
            "sensitivity": found
            and {
                link.name: {"growth": link.growth, "final_slope": link.final_slope}
                for link in found.links
            },
            "critical_path": found and msgspec.to_builtins(found.critical_path),
            "properties": {name: r.verdict.value for name, r in self.results.items()},
            "notes": {name: r.note for name, r in self.results.items() if r.note},
            "counterexample": wrong and {name: getattr(wrong, name) for name in EVIDENCE},
        }
