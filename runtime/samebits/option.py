"""The option ``bits``: whether sums have the same bits whoever is late."""

from __future__ import annotations

import os
from typing import Literal, cast, get_args

from latecomer.verify.errors import ArgumentError

Bits = Literal["any", "same"]
"""``any``: what the order of the additions gives; ``same``: what the contributions alone give."""


def resolved(bits: Bits | None) -> Bits:
    """``bits``, or else LATECOMER_BITS, or else ``any``; ArgumentError if it is neither of both."""
    name = "bits" if bits is not None else "LATECOMER_BITS"
    value = bits if bits is not None else os.environ.get("LATECOMER_BITS") or "any"
    if value not in get_args(Bits):
        raise ArgumentError(name, value, f"must be one of {', '.join(get_args(Bits))}")
    return cast(Bits, value)
