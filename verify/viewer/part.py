"""FROM-TO: which part of something large a page shows; both ends are in it."""

from __future__ import annotations

import re
from typing import NamedTuple

from verify.errors import ArgumentError


class Part(NamedTuple):
    """Numbers ``low`` .. ``high - 1``; ``text`` is what the user typed, for ``option``."""

    low: int
    high: int
    text: str
    option: str

    def within(self, size: int, what: str) -> tuple[int, int]:
        """The part as a range of so many; ArgumentError if it is not in 0 .. size-1."""
        if self.high > size:
            raise ArgumentError(self.option, self.text, f"must be {what} of 0 .. {size - 1}")
        return self.low, self.high


def parse_part(text: str, option: str = "--html-part") -> Part:
    """The part that ``16-31`` (or ``16``) says.

    Raises:
        ArgumentError: it says none.
    """
    found = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", text, re.ASCII)
    low, high = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
    if low > high:
        raise ArgumentError(option, text, "must be FROM-TO, as for example 16-31")
    return Part(low, high + 1, text, option)
