"""Which datagrams of an operation did not arrive: the record from which its result can be audited.

It is made only where it is asked for (``LossStats.missing``): by the self-test and the tests.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from runtime.optireduce.udp.reassembly import StageReceiver


class Missing(msgspec.Struct, frozen=True):
    """What did not arrive of one operation on one rank: numbers of datagrams."""

    contributions: dict[int, list[int]] = {}  # of the own shard (first stage), by sender
    results: dict[int, list[int]] = {}  # of its owner's shard (second stage), by owner
    due: int = 0  # in both stages

    @property
    def lost(self) -> int:
        """How many there are."""
        return sum(map(len, (*self.contributions.values(), *self.results.values())))


def missing(stages: Sequence[StageReceiver]) -> Missing:
    """The record of an operation that is over, from the receivers of its two stages."""
    contributions, results = (_missing_by_sender(stage) for stage in stages)
    due = sum(stage.due for stage in stages)
    return Missing(contributions, results, due)


def _missing_by_sender(stage: StageReceiver) -> dict[int, list[int]]:
    """The numbers of the datagrams that did not arrive, of each sender that has such."""
    return {
        rank: np.flatnonzero(~sender.arrived).tolist()
        for rank, sender in stage.senders.items()
        if not sender.complete
    }
