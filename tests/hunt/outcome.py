"""What an oracle says of a program, in the same words for all kinds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Outcome:
    """What happens in some interleaving at some size.

    Attributes:
        hangs, wrong: at which size and placement, in words; empty: nowhere.
        fault: the program does what no executor defines (beyond a buffer, messages of two sizes).
        races: some pair of accesses comes in any order.
        decided: every interleaving was looked at, at every size.
    """

    hangs: str = ""
    wrong: str = ""
    fault: str = ""
    races: str = ""
    decided: bool = True

    @property
    def right(self) -> bool:
        """Every execution ends with right sums."""
        return self.decided and not (self.hangs or self.wrong or self.fault)

    @property
    def broken(self) -> bool:
        """Some execution hangs, or ends with wrong sums."""
        return bool(self.hangs or self.wrong or self.fault)
