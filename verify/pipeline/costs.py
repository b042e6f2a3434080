"""A situation in whole numbers: every time as so many ticks, every limit in half activations.

Times are numbers with at most ``DECIMALS`` decimals, so all of them are whole multiples of one
power of ten, the tick. Everything is computed in ticks, hence exactly; ``Costs.shown`` goes back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from verify.pipeline.schedule import Action, Number, Situation

DECIMALS = 9
LARGEST = 10**12
HALVES = {"F": 2, "I": -1, "W": -1, "B": -2}
"""Half activations that an action takes; what it gives back is free at its end."""


def exact(value: Number) -> Fraction:
    """The number as it is typed: 0.1 is one tenth."""
    return Fraction(repr(value))


def fault(situation: Situation, stages: int, ranks: int) -> str | None:
    """What is wrong with a situation for so many stages and ranks; None if nothing is."""
    for name in ("forward", "backward", "weight", "fused"):
        values = getattr(situation, name)
        if values is None and name == "fused":
            continue
        if len(values) != stages:
            return f"{name} has {len(values)} durations for {stages} stages"
        for stage, value in enumerate(values):
            if problem := _number_fault(value):
                return f"{name}[{stage}] is {value}, {problem}"
    seen = set()
    for position, link in enumerate(situation.links):
        place, pair = f"links[{position}]", tuple(sorted(link.between))
        if link.between[0] == link.between[1] or not 0 <= pair[0] <= pair[1] < ranks:
            return f"{place}.between is {list(link.between)}, must be two ranks of 0..{ranks - 1}"
        if pair in seen:
            return f"{place} is a second link between {pair[0]} and {pair[1]}"
        seen.add(pair)
        for name, value in (("latency", link.latency), ("occupancy", link.occupancy)):
            if problem := _number_fault(value):
                return f"{place}.{name} is {value}, {problem}"
    if situation.memory is not None:
        if len(situation.memory) != ranks:
            return f"memory has {len(situation.memory)} limits for {ranks} ranks"
        for rank, limit in enumerate(situation.memory):
            if _number_fault(limit) or exact(limit) * 2 % 1:
                return f"memory[{rank}] is {limit}, must be a multiple of 0.5, 0 or more"
    return None


def _number_fault(value: Number) -> str | None:
    if not 0 <= value <= LARGEST:
        return f"must be in 0..{LARGEST:g}"
    if (exact(value) * 10**DECIMALS) % 1:
        return f"must have at most {DECIMALS} decimals"
    return None


@dataclass(frozen=True)
class Costs:
    """Durations per stage and links per pair of ranks, in ticks; memory limits in halves.

    Attributes:
        ticks: how many ticks make one unit of time.
        links: (lower rank, higher rank) -> (latency, occupancy, whether half duplex).
    """

    ticks: int
    forward: tuple[int, ...]
    backward: tuple[int, ...]
    weight: tuple[int, ...]
    fused: tuple[int, ...]
    links: dict[tuple[int, int], tuple[int, int, bool]]
    memory: tuple[int, ...] | None

    @classmethod
    def of(cls, situation: Situation) -> Costs:
        """The costs of a situation in which ``fault`` finds none."""
        times = [
            *situation.forward,
            *situation.backward,
            *situation.weight,
            *(situation.fused or ()),
            *(time for link in situation.links for time in (link.latency, link.occupancy)),
        ]
        ticks = math.lcm(*(exact(time).denominator for time in times))

        def whole(values: tuple[Number, ...]) -> tuple[int, ...]:
            return tuple(int(exact(value) * ticks) for value in values)

        backward, weight = whole(situation.backward), whole(situation.weight)
        links = {}
        for link in situation.links:
            low, high = sorted(link.between)
            latency, occupancy = whole((link.latency, link.occupancy))
            links[low, high] = (latency, occupancy, link.duplex == "half")
        return cls(
            ticks=ticks,
            forward=whole(situation.forward),
            backward=backward,
            weight=weight,
            fused=tuple(i + w for i, w in zip(backward, weight, strict=True))
            if situation.fused is None
            else whole(situation.fused),
            links=links,
            memory=None
            if situation.memory is None
            else tuple(int(2 * exact(limit)) for limit in situation.memory),
        )

    def duration(self, action: Action) -> int:
        """How long a compute action takes, in ticks."""
        return self.durations_of(action.kind)[action.stage]

    def durations_of(self, kind: str) -> tuple[int, ...]:
        """The durations of one kind of compute action, per stage."""
        return {"F": self.forward, "I": self.backward, "W": self.weight, "B": self.fused}[kind]

    def link(self, one: int, other: int) -> tuple[int, int, bool]:
        """(latency, occupancy, half duplex) between two ranks."""
        return self.links.get((min(one, other), max(one, other)), (0, 0, False))

    def shown(self, ticks: int | Fraction) -> Number:
        """A time in the unit of the situation: whole, or the nearest float."""
        value = Fraction(ticks) / self.ticks
        return int(value) if value.denominator == 1 else float(value)
