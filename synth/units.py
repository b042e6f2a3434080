"""Quantities as people type them: ``1GiB``, ``3us``, ``450GB/s``; and seconds and bytes as text.

Binary prefixes (KiB, MiB, GiB) are powers of 1024, decimal ones (kB, MB, GB) powers of 1000.
A lone ``b`` is refused for sizes: it is read as bit by some and as byte by others. In bandwidths it
is a bit, as on every network card (``100Gbps``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction

from latecomer.verify.errors import ArgumentError

BYTES = {
    "B": Fraction(1),
    "kB": Fraction(10**3),
    "MB": Fraction(10**6),
    "GB": Fraction(10**9),
    "KiB": Fraction(2**10),
    "MiB": Fraction(2**20),
    "GiB": Fraction(2**30),
}
SECONDS = {
    "ns": Fraction(1, 10**9),
    "us": Fraction(1, 10**6),
    "ms": Fraction(1, 10**3),
    "s": Fraction(1),
}
BYTES_PER_SECOND = {
    "B/s": Fraction(1),
    "kB/s": Fraction(10**3),
    "MB/s": Fraction(10**6),
    "GB/s": Fraction(10**9),
    "Mbit/s": Fraction(10**6, 8),
    "Gbit/s": Fraction(10**9, 8),
    "Tbit/s": Fraction(10**12, 8),
}
OTHER_SPELLINGS = {
    "Mbps": "Mbit/s",
    "Gbps": "Gbit/s",
    "Tbps": "Tbit/s",
    "Mb/s": "Mbit/s",
    "Gb/s": "Gbit/s",
    "Tb/s": "Tbit/s",
    "GBps": "GB/s",
    "MBps": "MB/s",
}
"""How vendors write bandwidths: with these the ``b`` is a bit, and nobody reads it otherwise."""

_QUANTITY = re.compile(r"\s*(-?[0-9]{1,30}(?:\.[0-9]{1,30})?)\s*([A-Za-z/]+)\s*", re.ASCII)


def parse_bytes(name: str, text: str) -> int:
    """A positive whole number of bytes.

    Args:
        name: the option, for the error message.
        text: for example ``1GiB``.

    Raises:
        ArgumentError: no such quantity, zero, or not a whole number of bytes.
    """
    value = _positive(name, text, _parse(name, text, BYTES, "1GiB"))
    if value.denominator != 1:
        raise ArgumentError(name, text, "must be a whole number of bytes")
    return int(value)


def parse_seconds(name: str, text: str) -> float:
    """A duration of zero or more, in seconds; ArgumentError as in :func:`parse_bytes`."""
    return float(_parse(name, text, SECONDS, "3us"))


def parse_bandwidth(name: str, text: str) -> float:
    """A positive bandwidth, in bytes per second; ArgumentError as in :func:`parse_bytes`."""
    return float(_positive(name, text, _parse(name, text, BYTES_PER_SECOND, "450GB/s")))


def _parse(name: str, text: str, units: Mapping[str, Fraction], example: str) -> Fraction:
    match = _QUANTITY.fullmatch(text)
    unit = "" if match is None else OTHER_SPELLINGS.get(match[2], match[2])
    if match is None or unit not in units:
        unit_names = ", ".join(units)
        raise ArgumentError(
            name, text, f"must be a number and a unit ({unit_names})", f"For example: {example}"
        )
    value = Fraction(match[1]) * units[unit]
    if value < 0:
        raise ArgumentError(name, text, "must not be negative")
    return value


def _positive(name: str, text: str, value: Fraction) -> Fraction:
    if value <= 0:
        raise ArgumentError(name, text, "must be positive")
    return value


def format_seconds(seconds: float) -> str:
    """Four significant digits in the largest unit that keeps the number at 1 or above."""
    for unit in ("s", "ms", "us"):
        if seconds >= SECONDS[unit]:
            return f"{seconds / float(SECONDS[unit]):.4g} {unit}"
    return f"{seconds / float(SECONDS['ns']):.4g} ns"


def format_bytes(number: int) -> str:
    """Exact: the largest binary unit that divides it, else bytes."""
    for unit in ("GiB", "MiB", "KiB"):
        if number % int(BYTES[unit]) == 0:
            return f"{number // int(BYTES[unit])} {unit}"
    return f"{number} B"


def format_bandwidth(bytes_per_second: float) -> str:
    """Four significant digits in the largest decimal unit of bytes that keeps it at 1 or above."""
    for unit in ("GB/s", "MB/s", "kB/s"):
        if bytes_per_second >= BYTES_PER_SECOND[unit]:
            return f"{bytes_per_second / float(BYTES_PER_SECOND[unit]):.4g} {unit}"
    return f"{bytes_per_second:.4g} B/s"
