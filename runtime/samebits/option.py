"""The option ``bits``: whether sums have the same bits whoever is late."""

from __future__ import annotations

import os
from typing import Literal, cast, get_args

from latecomer.runtime.samebits.blocks import MOST_CONTRIBUTIONS
from latecomer.verify.errors import ArgumentError

Bits = Literal["any", "same"]
"""``any``: what the order of the additions gives; ``same``: what the contributions alone give."""


def require_contributions(contributions: int) -> None:
    """ArgumentError for a number of contributions that leaves too few bits."""
    if not 1 <= contributions <= MOST_CONTRIBUTIONS:
        requirement = f"must be in 1..{MOST_CONTRIBUTIONS} where bits = 'same'"
        raise ArgumentError("contributions", contributions, requirement)


def resolved(bits: Bits | None) -> Bits:
    """``bits``, or else LATECOMER_BITS, or else ``any``; ArgumentError if it is neither of both."""
    name = "bits" if bits is not None else "LATECOMER_BITS"
    value = bits if bits is not None else os.environ.get("LATECOMER_BITS") or "any"
    if value not in get_args(Bits):
        raise ArgumentError(name, value, f"must be one of {', '.join(get_args(Bits))}")
    return cast(Bits, value)
