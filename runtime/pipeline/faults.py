"""Link delays injected on purpose, for tests and demonstrations; never active unless handed in.

The model is that of schedule files: a message holds its direction of the link for ``occupancy_s``,
others wait in line, and is there ``latency_s`` later; any number may be in that latency.

``blocking`` imitates a runtime without transport of its own, whose sends sit in line with the
compute: the sender goes on only when its message has reached the other end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from verify.errors import ArgumentError


@dataclass(frozen=True)
class LinkFault:
    """A delay on what ``sender`` sends to ``receiver``, in some steps."""

    sender: int
    receiver: int
    latency_s: float = 0.0
    occupancy_s: float = 0.0
    first_step: int = 0
    last_step: int | None = None  # included; None: all steps that follow

    def __post_init__(self) -> None:
        for name in ("latency_s", "occupancy_s"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ArgumentError(name, getattr(self, name), "must be 0 or more seconds")

    def active(self, sender: int, receiver: int, step: int) -> bool:
        """Whether it holds for a message of this step."""
        return (sender, receiver) == (self.sender, self.receiver) and (
            self.first_step <= step <= (step if self.last_step is None else self.last_step)
        )


class Faults:
    """All delays to inject, the same on every rank; several on one link add up."""

    def __init__(self, faults: Iterable[LinkFault] = (), *, blocking: bool = False) -> None:
        self._faults = tuple(faults)
        self.blocking = blocking

    def delay_s(self, sender: int, receiver: int, step: int) -> tuple[float, float]:
        """(latency, occupancy) in seconds of a message of ``step``."""
        found = [fault for fault in self._faults if fault.active(sender, receiver, step)]
        return sum(f.latency_s for f in found), sum(f.occupancy_s for f in found)


def both_ways(one: int, other: int, **delay: Any) -> tuple[LinkFault, LinkFault]:
    """The same delay, as for :class:`LinkFault`, in both directions between two ranks."""
    return LinkFault(one, other, **delay), LinkFault(other, one, **delay)


def due_s(ready_s: float, link_free_s: float, delay: tuple[float, float]) -> tuple[float, float]:
    """When a message is there that was handed over at ``ready_s``, and its link is free again."""
    latency_s, occupancy_s = delay
    free_s = max(ready_s, link_free_s) + occupancy_s
    return free_s + latency_s, free_s
