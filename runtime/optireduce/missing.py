"""Which datagrams of an operation did not arrive: the record from which its result can be audited.

It is made only where it is asked for (``LossStats.missing``): by the self-test and the tests.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from latecomer.runtime.optireduce.udp.bucket import Bucket


class Missing(msgspec.Struct, frozen=True):
    """What did not arrive of one operation on one rank: numbers of datagrams."""

    contributions: dict[int, list[int]] = {}  # of the own shard (first stage), by sender
    results: dict[int, list[int]] = {}  # of its owner's shard (second stage), by owner
    due: int = 0  # in both stages

    @property
    def lost(self) -> int:
        """How many there are."""
        return sum(map(len, (*self.contributions.values(), *self.results.values())))


def missing(bucket: Bucket) -> Missing:
    """The record of an operation that is over."""
    arrived_contributions, arrived_results = bucket.arrived
    return Missing(
        contributions=_missing_by_sender(arrived_contributions),
        results=_missing_by_sender(arrived_results),
        due=sum(stage.due for stage in bucket.stages),
    )


def _missing_by_sender(arrived: Mapping[int, np.ndarray]) -> dict[int, list[int]]:
    """The numbers of the datagrams that did not arrive, of each sender that has such."""
    return {
        sender: np.flatnonzero(~datagrams).tolist()
        for sender, datagrams in arrived.items()
        if not datagrams.all()
    }
