"""What is said about a pipeline schedule: results per property, times, memory, slack.

The three values and their meaning are those of :mod:`verify.core.verdict`; the evidence differs: a
rank, a position in its program, and the actions that matter.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from verify.core.verdict import Verdict, overall
from verify.pipeline.schedule import Action, Number


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """Where a schedule breaks a property.

    Attributes:
        property: the property that is broken.
        rank, position: whose program, and where in it (from 0); None where that has no meaning.
        action: the action at fault, in the notation of the file.
        expected, found: in words.
        actions: the few actions that matter, each with who waits for it and why where that is
            the point.
    """

    property: str
    rank: int | None = None
    position: int | None = None
    action: str | None = None
    expected: str
    found: str
    actions: tuple[str, ...] = ()


class Finding(msgspec.Struct, frozen=True):
    """The verdict on one property, with a fault exactly when it is refuted."""

    verdict: Verdict
    fault: Fault | None = None
    note: str = ""

    def __post_init__(self) -> None:
        assert (self.verdict is Verdict.REFUTED) == (self.fault is not None)


PROVED = Finding(Verdict.PROVED)


def refuted(fault: Fault) -> Finding:
    """A refutation with its evidence."""
    return Finding(Verdict.REFUTED, fault)


def refuted_at(
    broken: str, rank: int, position: int, action: Action, expected: str, found: str
) -> Finding:
    """A refutation at one action of a program."""
    return refuted(
        Fault(
            property=broken,
            rank=rank,
            position=position,
            action=str(action),
            expected=expected,
            found=found,
        )
    )


def unknown(reason: str) -> Finding:
    """Undecided, and why."""
    return Finding(Verdict.UNKNOWN, note=reason)


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


class Measures(msgspec.Struct, frozen=True, kw_only=True):
    """What a schedule that can run takes; all times in the unit of its situation.

    Attributes:
        makespan: from the first start to the last end when no send holds up its sender.
        makespan_in_order: the same if each rank's messages are rendezvous on one in-order stream.
        peak_memory: activations, per rank.
        lower_bound: on the makespan of any schedule for this situation.
        critical_path: from time 0 to the makespan without a gap.
        links: one for each pair of ranks that exchanges messages.
    """

    makespan: Number
    makespan_in_order: Number | None
    peak_memory: tuple[Number, ...]
    lower_bound: Number
    critical_path: tuple[Bar, ...]
    links: tuple[LinkSlack, ...]

    @property
    def gap(self) -> float:
        """How far the makespan is above the lower bound, relative to it."""
        return self.makespan / self.lower_bound - 1 if self.lower_bound else 0.0


class PipelineReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything ``verify`` says about one pipeline schedule.

    Attributes:
        form: ``compute_only``, or ``compute_comms`` where messages are written out.
        results: property name -> finding, in the order of the checks.
        measures: None for a schedule that can't run to its end.
    """

    ranks: int
    stages: int
    microbatches: int
    form: Literal["compute_only", "compute_comms"]
    results: dict[str, Finding]
    measures: Measures | None

    @property
    def verdict(self) -> Verdict:
        """The verdict over all properties."""
        return overall([finding.verdict for finding in self.results.values()])

    @property
    def fault(self) -> Fault | None:
        """The fault of the first refuted property, if any."""
        return next((f.fault for f in self.results.values() if f.fault is not None), None)

    @property
    def optimal(self) -> bool | Literal["unknown"]:
        """True for a right schedule at the lower bound; above it, nothing is known."""
        if self.verdict is Verdict.REFUTED or self.measures is None:
            return False
        return True if self.measures.makespan == self.measures.lower_bound else "unknown"

    def to_json(self) -> dict[str, Any]:
        """The object that ``verify --json`` prints."""
        found = self.measures
        return {
            "verdict": self.verdict.value,
            "kind": "pipeline",
            "ranks": self.ranks,
            "stages": self.stages,
            "microbatches": self.microbatches,
            "form": self.form,
            "makespan": found and found.makespan,
            "makespan_in_order": found and found.makespan_in_order,
            "lower_bound": found and found.lower_bound,
            "gap": found and found.gap,
            "optimal": self.optimal,
            "peak_memory": found and list(found.peak_memory),
            "slack": found and {_name(link): link.slack for link in found.links},
            "sensitivity": found
            and {
                _name(link): {"growth": link.growth, "final_slope": link.final_slope}
                for link in found.links
            },
            "critical_path": found and msgspec.to_builtins(found.critical_path),
            "properties": {name: f.verdict.value for name, f in self.results.items()},
            "notes": {name: f.note for name, f in self.results.items() if f.note},
            "counterexample": msgspec.to_builtins(self.fault),
        }


def _name(link: LinkSlack) -> str:
    return f"{link.between[0]}-{link.between[1]}"
