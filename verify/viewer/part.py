"""FROM-TO: which part of something large a page shows; both ends are in it."""

from __future__ import annotations

import re
from typing import NamedTuple

from latecomer.verify.errors import ArgumentError


class Part(NamedTuple):
    """Numbers ``low`` .. ``high - 1``; ``text`` is what the user typed, for ``option``."""

    low: int
    high: int
    text: str
    option: str

    def within(self, count: int, noun: str) -> tuple[int, int]:
        """The part as a range of so many; ArgumentError if it is not in 0 .. count-1."""
        if self.high > count:
            raise ArgumentError(self.option, self.text, f"must be {noun} of 0 .. {count - 1}")
        return self.low, self.high


def parse_part(text: str, option: str = "--html-part") -> Part:
    """The part that ``16-31`` (or ``16``) says.

    Raises:
        ArgumentError: it says none.
    """
    numbers = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", text, re.ASCII)
    if numbers is not None:
        first = int(numbers[1])
        last = int(numbers[2] or numbers[1])
        if first <= last:
            return Part(low=first, high=last + 1, text=text, option=option)
    raise ArgumentError(option, text, "must be FROM-TO, as for example 16-31")
