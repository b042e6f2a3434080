"""What ``runtime.watch`` can watch: the reducers and engines of this process, all alike."""

from __future__ import annotations

from typing import Protocol

from runtime.telemetry.records import Rank
from runtime.torch_versions import Store

LIVE: list[Source] = []
"""Those that are not closed."""


class Source(Protocol):
    """Something that runs operations on a group of ranks and can tell of them."""

    rank: int
    size: int
    store: Store

    def begin(self, rounds: range) -> None:
        """Remember from now on; of ``rounds``, counted from here, also the rounds."""

    def end(self) -> Rank:
        """Stop; what was remembered, operations counted from the beginning."""


class Watchable(Protocol):
    """Has a source: a reducer, an engine."""

    source: Source
