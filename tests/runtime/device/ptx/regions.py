"""Who has which bytes of global memory, and who may do what with them."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

GAP = 256  # bytes between two regions that belong to nobody
CONSTANT = ("rows", "bases")  # no kernel stores into these


class Wrong(Exception):
    """What a right kernel does not do."""


@dataclass(frozen=True)
class Region:
    """Bytes of one rank: ``rows``, ``bases``, ``own`` (the user's tensor), ``symmetric``.

    Kernels store into the last two only. Other ranks reach the last one only.
    """

    rank: int
    what: str
    start: int
    size: int
    launch: int = 0


class Regions:
    """All regions; their addresses ascend."""

    def __init__(self, regions: list[Region]) -> None:
        self.all = regions
        self._starts = [region.start for region in regions]

    def at(self, address: int) -> Region | None:
        """The region that begins last before an address, or at it."""
        number = bisect_right(self._starts, address) - 1
        return self.all[number] if number >= 0 else None

    def require(self, rank: int, low: int, high: int, is_store: bool) -> Region:
        """The region in which bytes low .. high - 1 lie; Wrong if a rank must not touch them."""
        region = self.at(low)
        if region is None or high > region.start + region.size:
            raise Wrong(f"an access of bytes {low}..{high - 1}, which nobody has")
        if region.what != "symmetric" and region.rank != rank:
            raise Wrong(f"rank {rank} accesses {region.what} of rank {region.rank}")
        if is_store and region.what in CONSTANT:
            raise Wrong(f"rank {rank} stores into {region.what}")
        return region
