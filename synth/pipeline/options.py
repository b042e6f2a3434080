"""Options of ``synth pipeline`` as people type them: durations, links, limits.

durations   8, or one per stage: 8,8,9,10
links       LINK:LATENCY[:OCCUPANCY[:half]], several with commas. LINK is two ranks as 6-7, or
            ``all``; later entries win. LATENCY may be a range as 0..30.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from verify.errors import ArgumentError
from verify.pipeline.costs import exact
from verify.pipeline.schedule import Duplex, Link, Number

_NUMBER = re.compile(r"[0-9]{1,15}(\.[0-9]{1,15})?", re.ASCII)
EXAMPLE = "For example: 6-7:30 or 2-3:12:4:half"


class Delay(NamedTuple):
    """What was said of a link; ``least`` is below ``most`` where a range was given."""

    least: Number
    most: Number
    occupancy: Number
    duplex: Duplex


Pair = tuple[int, int]


def number(name: str, text: str) -> Number:
    """A number of 0 or more; ArgumentError if it is none."""
    if _NUMBER.fullmatch(text.strip()) is None:
        raise ArgumentError(name, text, "must be a number, 0 or more")
    value = float(text)
    return int(value) if value == int(value) else value


def one_or_each(name: str, text: str, count: int, of: str) -> tuple[Number, ...]:
    """One number for all, or a list with one for each.

    Raises:
        ArgumentError: no numbers, or another count.
    """
    values = [number(name, part) for part in text.split(",")]
    if len(values) == 1:
        return tuple(values * count)
    if len(values) != count:
        raise ArgumentError(
            name, text, f"must be one number, or {count}: one per {of} (it has {len(values)})"
        )
    return tuple(values)


def parse_durations(typed: dict[str, str | None], stages: int) -> list[tuple[Number, ...]]:
    """Per option its durations, one per stage; each is 1 where none is given.

    Raises:
        ArgumentError: no numbers, another count, or some durations without the others.
    """
    given = [option for option, text in typed.items() if text is not None]
    for option, text in typed.items():
        if text is None and given:
            raise ArgumentError(
                option, None, f"is missing beside {given[0]}", f"Give {', '.join(typed)}, or none"
            )
    return [
        one_or_each(option, "1" if text is None else text, stages, "stage")
        for option, text in typed.items()
    ]


def pairs(rank_of: Sequence[int]) -> list[Pair]:
    """The links there are, lower rank first."""
    both = pairwise(rank_of)
    return sorted({(min(a, b), max(a, b)) for a, b in both if a != b})


def parse_links(name: str, texts: Sequence[str], rank_of: Sequence[int]) -> dict[Pair, Delay]:
    """What is said of each link.

    Raises:
        ArgumentError: not of the form, or there is no such link.
    """
    there = pairs(rank_of)
    found: dict[Pair, Delay] = {}
    for text in (part.strip() for given in texts for part in given.split(",")):
        where, *rest = text.split(":")
        if not 1 <= len(rest) <= 3:
            raise ArgumentError(name, text, "must be LINK:LATENCY[:OCCUPANCY[:half]]", EXAMPLE)
        least, _, most = rest[0].partition("..")
        low = number(name, least)
        high = number(name, most or least)
        if high < low:
            raise ArgumentError(name, text, "must be a range from less to more")
        if rest[2:] not in ([], ["half"], ["full"]):
            raise ArgumentError(name, text, "must end in half or full", EXAMPLE)
        occupancy = number(name, rest[1]) if rest[1:] else 0
        duplex: Duplex = "half" if rest[2:] == ["half"] else "full"
        for pair in there if where == "all" else [_pair(name, text, where, there)]:
            found[pair] = Delay(low, high, occupancy, duplex)
    return found


def _pair(name: str, text: str, where: str, there: list[Pair]) -> Pair:
    match = re.fullmatch(r"([0-9]{1,5})-([0-9]{1,5})", where, re.ASCII)
    if match is None:
        raise ArgumentError(name, text, "must begin with a link as 6-7, or all", EXAMPLE)
    one, other = sorted((int(match[1]), int(match[2])))
    if (one, other) not in there:
        known = ", ".join(f"{a}-{b}" for a, b in there) or "none"
        raise ArgumentError(name, text, f"there is no link {where}; the links are: {known}")
    return one, other


def links(delays: dict[Pair, Delay], *, least: bool = False) -> tuple[Link, ...]:
    """The links of an instance, at the upper (or the lower) end of all ranges."""
    return tuple(
        Link(
            between=pair,
            latency=delay.least if least else delay.most,
            occupancy=delay.occupancy,
            duplex=delay.duplex,
        )
        for pair, delay in sorted(delays.items())
    )


def parse_scenarios(
    name: str, texts: Sequence[str], base: dict[Pair, Delay], rank_of: Sequence[int]
) -> list[tuple[str, dict[Pair, Delay], Fraction]]:
    """(text, delays, weight) of each scenario: its links as in ``--slow`` or ``none``, ``@WEIGHT``.

    Raises:
        ArgumentError: not of the form, a range, no weight above 0, or two scenarios alike.
    """
    found: list[tuple[str, dict[Pair, Delay], Fraction]] = []
    for text in texts:
        where, _, weight = text.partition("@")
        delays = {} if where == "none" else parse_links(name, [where], rank_of)
        if any(delay.least < delay.most for delay in delays.values()):
            raise ArgumentError(name, text, "can't have a range", "Give both ends as scenarios")
        heavy = exact(number(name, weight)) if weight else Fraction(1)
        if not heavy:
            raise ArgumentError(name, text, "must have a weight above 0")
        if any(text == other for other, _, _ in found):
            raise ArgumentError(name, text, "is there twice", "Give it the weight of both")
        found.append((text, base | delays, heavy))
    return found
