"""Reads what people type for ``synth pipeline``: durations, links, limits.

durations   8, or one per stage: 8,8,9,10
links       LINK:LATENCY[:OCCUPANCY[:half]], several with commas. LINK is two ranks as 6-7, or
            ``all``; later entries win. LATENCY may be a range as 0..30.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from latecomer.synth.pipeline.problem import linked_ranks
from latecomer.verify.errors import ArgumentError
from latecomer.verify.pipeline.costs import exact
from latecomer.verify.pipeline.schedule import Duplex, Link, Number

_NUMBER = re.compile(r"[0-9]{1,15}(\.[0-9]{1,15})?", re.ASCII)
EXAMPLE = "For example: 6-7:30 or 2-3:12:4:half"


class Delay(NamedTuple):
    """What was said of a link; ``least`` is below ``most`` where a range was given."""

    least: Number
    most: Number
    occupancy: Number
    duplex: Duplex


Pair = tuple[int, int]
"""The two ranks of a link, the lower one first."""

DelaysOfLinks = dict[Pair, Delay]


class TypedScenario(NamedTuple):
    """One ``--scenario`` as it was typed, and what it says of every link."""

    text: str
    delays: DelaysOfLinks
    weight: Fraction


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

    Args:
        typed: option -> what was typed for it, or None.
        stages: of the pipeline.

    Raises:
        ArgumentError: no numbers, another count, or some durations without the others.
    """
    typed_options = [option for option, text in typed.items() if text is not None]
    for option, text in typed.items():
        if text is None and typed_options:
            raise ArgumentError(
                option,
                None,
                f"is missing beside {typed_options[0]}",
                f"Give {', '.join(typed)}, or none",
            )

    durations = []
    for option, text in typed.items():
        durations.append(one_or_each(option, "1" if text is None else text, stages, "stage"))
    return durations


def parse_links(name: str, texts: Sequence[str], rank_of: Sequence[int]) -> DelaysOfLinks:
    """What is said of each link; of a link named twice the later text holds.

    Raises:
        ArgumentError: not of the form, or there is no such link.
    """
    all_links = linked_ranks(rank_of)
    delays: DelaysOfLinks = {}
    for texts_of_links in texts:
        for part in texts_of_links.split(","):
            text = part.strip()
            link, *fields = text.split(":")
            delay = _parse_delay(name, text, fields)
            named_links = all_links if link == "all" else [_parse_link(name, text, link, all_links)]
            for pair in named_links:
                delays[pair] = delay
    return delays


def _parse_delay(name: str, text: str, fields: list[str]) -> Delay:
    """``LATENCY[:OCCUPANCY[:half]]``, split into its fields; ``text`` is for messages."""
    if not 1 <= len(fields) <= 3:
        raise ArgumentError(name, text, "must be LINK:LATENCY[:OCCUPANCY[:half]]", EXAMPLE)

    lower_end, _, upper_end = fields[0].partition("..")
    least = number(name, lower_end)
    most = number(name, upper_end or lower_end)
    if most < least:
        raise ArgumentError(name, text, "must be a range from less to more")

    if fields[2:] not in ([], ["half"], ["full"]):
        raise ArgumentError(name, text, "must end in half or full", EXAMPLE)
    occupancy = number(name, fields[1]) if fields[1:] else 0
    duplex: Duplex = "half" if fields[2:] == ["half"] else "full"
    return Delay(least, most, occupancy, duplex)


def _parse_link(name: str, text: str, link: str, all_links: list[Pair]) -> Pair:
    match = re.fullmatch(r"([0-9]{1,5})-([0-9]{1,5})", link, re.ASCII)
    if match is None:
        raise ArgumentError(name, text, "must begin with a link as 6-7, or all", EXAMPLE)

    lower_rank, higher_rank = sorted((int(match[1]), int(match[2])))
    if (lower_rank, higher_rank) not in all_links:
        links_in_words = ", ".join(f"{a}-{b}" for a, b in all_links) or "none"
        raise ArgumentError(name, text, f"there is no link {link}; the links are: {links_in_words}")
    return lower_rank, higher_rank


def links_of_instance(delays: DelaysOfLinks, *, least: bool = False) -> tuple[Link, ...]:
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
    name: str, texts: Sequence[str], base: DelaysOfLinks, rank_of: Sequence[int]
) -> list[TypedScenario]:
    """Each scenario: its links as in ``--slow`` or ``none``, then ``@WEIGHT`` or nothing.

    Args:
        name: the option, for messages.
        texts: as typed.
        base: the delays of the links that a scenario does not name.
        rank_of: per stage its rank.

    Raises:
        ArgumentError: not of the form, a range, no weight above 0, or two scenarios alike.
    """
    scenarios: list[TypedScenario] = []
    for text in texts:
        links, _, typed_weight = text.partition("@")
        delays = {} if links == "none" else parse_links(name, [links], rank_of)
        if any(delay.least < delay.most for delay in delays.values()):
            raise ArgumentError(name, text, "can't have a range", "Give both ends as scenarios")

        weight = exact(number(name, typed_weight)) if typed_weight else Fraction(1)
        if not weight:
            raise ArgumentError(name, text, "must have a weight above 0")

        if any(text == earlier.text for earlier in scenarios):
            raise ArgumentError(name, text, "is there twice", "Give it the weight of both")
        scenarios.append(TypedScenario(text, base | delays, weight))
    return scenarios
