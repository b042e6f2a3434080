"""What is decided for one operation, and what a series of operations is run under."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

NATIVE = -1
"""The candidate that stands for the library's own all-reduce."""


class Decision(msgspec.Struct, frozen=True, array_like=True):
    """How one operation runs: the same on all ranks.

    Attributes:
        candidate: index of the schedule, or ``NATIVE``.
        late: the ranks that take the late ranks' places, in the expected order of their arrival.
        reason: why.
    """

    candidate: int
    late: tuple[int, ...]
    reason: str


@dataclass(frozen=True)
class Later:
    """No decision yet: ask again at ``at_s``, or when something has changed."""

    at_s: float


class Epoch(msgspec.Struct, frozen=True, array_like=True):
    """What all operations from ``first`` on are run under, until the next plan's first.

    Attributes:
        version: plans are numbered; numbers of plans that failed are not used again.
        first: the first operation it holds for.
        coordinator: the rank that hears of arrivals, decides, and makes the next plan.
        late, delay_s: who is predicted to be late, and by how much (mode predict).
        quiet: every operation runs natively and nobody asks; arrivals are reported now and then
            (mode auto, while nobody is late).
        reason: why.
    """

    version: int
    first: int
    coordinator: int
    late: tuple[int, ...] = ()
    delay_s: float = 0.0
    reason: str = ""
    quiet: bool = False
