"""The report of ``verify --loss``: the harm of each single loss, and the worst of at most F."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from latecomer.verify.core.verdict import LocatedTransfer, Verdict

MOST_LISTED = 20_000
"""With more transfers than this the report has no list of them one by one."""


class EntryBlock(msgspec.Struct, frozen=True):
    """Entries of one chunk: these contributions at these ranks, all combinations."""

    chunk: int
    ranks: tuple[int, ...]
    contributions: tuple[int, ...]


class Single(msgspec.Struct, frozen=True):
    """One lost transfer and its harm; ``entries`` is how many are missing."""

    lost: LocatedTransfer
    entries: int
    missing: tuple[EntryBlock, ...]
    twice: tuple[EntryBlock, ...]
    differ: bool


class LossKind(msgspec.Struct, frozen=True, kw_only=True):
    """The harm of single losses over all transfers of one phase with the same op.

    Attributes:
        transfers: how many there are.
        least, mean, most: entries that the loss of one of them leaves missing.
        ranks, contributions: at most so many ranks miss something, and so many contributions.
        twice: how many of the transfers make something be counted twice.
        differ: how many of them make ranks end with different sums.
    """

    phase: str
    op: str
    transfers: int
    least: int
    mean: float
    most: int
    ranks: int
    contributions: int
    twice: int
    differ: int


class WorstCase(msgspec.Struct, frozen=True, kw_only=True):
    """The most entries that can be missing: found with these losses, and never above ``bound``."""

    entries: int
    bound: int
    lost: tuple[LocatedTransfer, ...]
    missing: tuple[EntryBlock, ...]

    @property
    def exact(self) -> bool:
        """Whether nothing worse is possible."""
        return self.entries == self.bound


class Answer(msgspec.Struct, frozen=True):
    """Whether something can happen, with losses that make it happen, or the reason why not."""

    possible: bool | Literal["unknown"]
    lost: tuple[LocatedTransfer, ...] = ()
    why: str = ""


class LossReport(msgspec.Struct, frozen=True, kw_only=True):
    """What at most ``at_most`` lost transfers do to a right schedule.

    Attributes:
        transfers: in the schedule; entries: (rank, chunk, contribution), n * k * n.
        kinds: single losses, by phase and op.
        each: single losses, one by one; ``None`` with more than ``MOST_LISTED`` transfers.
        mean_way: transfers that an entry comes by, on average. If a transfer is lost with
            probability p, at most ``mean_way`` * p of all entries are missing on average.
        worst: the most entries that can be missing.
        twice: can a contribution be counted twice?
        differ: can ranks end with different sums?
    """

    at_most: int
    transfers: int
    entries: int
    kinds: tuple[LossKind, ...]
    each: tuple[Single, ...] | None
    mean_way: float
    worst: WorstCase
    twice: Answer
    differ: Answer

    @property
    def verdict(self) -> Verdict:
        """``PROVED`` where all questions are answered, else ``UNKNOWN``."""
        open_ = "unknown" in (self.twice.possible, self.differ.possible) or not self.worst.exact
        return Verdict.UNKNOWN if open_ else Verdict.PROVED

    def to_json(self) -> dict[str, Any]:
        """The object ``loss`` of ``verify --loss --json``."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        plain["verdict"] = self.verdict.value
        plain["worst"]["exact"] = self.worst.exact
        return plain
