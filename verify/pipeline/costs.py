"""An instance in whole numbers: every time as so many ticks, every limit in half activations.

Times are numbers with at most ``DECIMALS`` decimals, so all of them are whole multiples of one
power of ten, the tick. Everything is computed and compared in ticks, hence exactly.

``Costs.shown`` goes back to the unit of the instance. It gives the nearest float, so that two times
may look alike which are not: nothing is decided by what it gives.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import chain
from operator import add

from latecomer.verify.pipeline.schedule import Action, Instance, Number

DECIMALS = 9
"""Of a time, at most (docs/reference/format.md)."""
LARGEST = 10**12
"""The longest time, in the unit of the instance."""
HALVES = {"F": 2, "I": -1, "W": -1, "B": -2}
"""Half activations that an action takes; what it gives back is free at its end."""


def exact(value: Number) -> Fraction:
    """The number as it is typed: 0.1 is one tenth."""
    return Fraction(repr(value))


def written(value: Fraction) -> str:
    """A time in full: as a decimal number, or as a fraction where it is none of so many decimals.

    Examples:
        >>> from fractions import Fraction
        >>> from latecomer.verify.pipeline.costs import written
        >>> written(Fraction(6 * 10**21 + 1, 10**9)), written(Fraction(1, 3))
        ('6000000000000.000000001', '1/3')
    """
    scaled = value * 10**DECIMALS
    if scaled.denominator != 1:
        return str(value)
    units, decimals = divmod(scaled.numerator, 10**DECIMALS)
    return f"{units}.{decimals:0{DECIMALS}d}".rstrip("0").rstrip(".")


def told_apart(*values: Fraction) -> list[str]:
    """Times of 0 or more as short texts; in full where different ones would look alike.

    Examples:
        >>> from fractions import Fraction
        >>> from latecomer.verify.pipeline.costs import told_apart
        >>> told_apart(Fraction(1, 3), Fraction(2))
        ['0.333333', '2']
        >>> told_apart(Fraction(1000001), Fraction(1000002))
        ['1000001', '1000002']
    """
    short = [f"{float(value):g}" for value in values]
    if len(set(short)) == len(set(values)):
        return short
    return [written(value) for value in values]


def json_number(value: Fraction) -> Number | Decimal:
    """A time as a number for JSON, exactly: a Decimal where a float is not enough."""
    if value.denominator == 1:
        return int(value)
    nearest = float(value)
    if exact(nearest) == value:
        return nearest
    return Decimal(written(value))


def fault(instance: Instance, stages: int, ranks: int) -> str | None:
    """What is wrong with an instance for so many stages and ranks; None if nothing is."""
    return next(_faults(instance, stages, ranks), None)


def _faults(instance: Instance, stages: int, ranks: int) -> Iterator[str]:
    for name in ("forward", "backward", "weight", "fused"):
        durations = getattr(instance, name)
        if durations is None and name == "fused":
            continue
        if len(durations) != stages:
            yield f"{name} has {len(durations)} durations for {stages} stages"
        for stage, duration in enumerate(durations):
            yield from _time_faults(f"{name}[{stage}]", duration)

    linked_pairs = set()
    for position, link in enumerate(instance.links):
        field = f"links[{position}]"
        pair = tuple(sorted(link.between))
        if link.between[0] == link.between[1] or not 0 <= pair[0] <= pair[1] < ranks:
            yield f"{field}.between is {list(link.between)}, must be two ranks of 0..{ranks - 1}"
        if pair in linked_pairs:
            yield f"{field} is a second link between {pair[0]} and {pair[1]}"
        linked_pairs.add(pair)
        yield from _time_faults(f"{field}.latency", link.latency)
        yield from _time_faults(f"{field}.occupancy", link.occupancy)

    limits = instance.memory
    if limits is not None and len(limits) != ranks:
        yield f"memory has {len(limits)} limits for {ranks} ranks"
    for rank, limit in enumerate(limits or ()):
        if any(_time_faults("", limit)) or exact(limit) * 2 % 1:
            yield f"memory[{rank}] is {limit}, must be a multiple of 0.5, 0 or more"


def _time_faults(name: str, value: Number) -> Iterator[str]:
    if not 0 <= value <= LARGEST:
        yield f"{name} is {value}, must be in 0..{LARGEST:g}"
    elif exact(value) * 10**DECIMALS % 1:
        yield f"{name} is {value}, must have at most {DECIMALS} decimals"


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
    def of(cls, instance: Instance) -> Costs:
        """The costs of an instance in which ``fault`` finds none."""
        durations = [instance.forward, instance.backward, instance.weight, instance.fused or ()]
        delays = [(link.latency, link.occupancy) for link in instance.links]
        times = [*chain(*durations), *chain(*delays)]
        ticks = math.lcm(*(exact(time).denominator for time in times))

        def in_ticks(values: tuple[Number, ...]) -> tuple[int, ...]:
            return tuple(int(exact(value) * ticks) for value in values)

        forward, backward, weight, fused = map(in_ticks, durations)
        links = {}
        for link, delay in zip(instance.links, delays, strict=True):
            low, high = sorted(link.between)
            latency, occupancy = in_ticks(delay)
            links[low, high] = (latency, occupancy, link.duplex == "half")

        memory = None
        if instance.memory is not None:
            memory = tuple(int(2 * exact(limit)) for limit in instance.memory)
        return cls(
            ticks=ticks,
            forward=forward,
            backward=backward,
            weight=weight,
            fused=fused or tuple(map(add, backward, weight)),
            links=links,
            memory=memory,
        )

    def duration(self, action: Action) -> int:
        """How long a compute action takes, in ticks."""
        by_kind = {"F": self.forward, "I": self.backward, "W": self.weight, "B": self.fused}
        return by_kind[action.kind][action.stage]

    def link(self, rank: int, other_rank: int) -> tuple[int, int, bool]:
        """(latency, occupancy, half duplex) between two ranks, in ticks."""
        pair = (min(rank, other_rank), max(rank, other_rank))
        return self.links.get(pair, (0, 0, False))

    def shown(self, ticks: int | Fraction) -> Number:
        """A time in the unit of the instance: whole, or the nearest float."""
        value = Fraction(ticks) / self.ticks
        return int(value) if value.denominator == 1 else float(value)
