"""Which datagrams of an operation did not arrive, and what its result must be because of that.

A record is made only where somebody asks for it (``Ledger.missing``): the self-test and the tests.
With the records of all ranks the result is known to the last bit, lost datagrams or not: loss is no
excuse for a wrong sum, and no sum is called wrong because of a loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import torch

from runtime.optireduce.udp.reassembly import StageReceiver


class Missing(msgspec.Struct, frozen=True):
    """What did not arrive of one operation on one rank.

    Attributes:
        contributions: by sender, numbers of the datagrams of the own shard (first stage).
        results: by owner, numbers of the datagrams of its shard (second stage).
        due: datagrams in both stages.
    """

    contributions: dict[int, list[int]] = {}
    results: dict[int, list[int]] = {}
    due: int = 0

    @property
    def lost(self) -> int:
        """How many there are."""
        return sum(map(len, (*self.contributions.values(), *self.results.values())))


def missing(stages: Sequence[StageReceiver]) -> Missing:
    """The record of an operation that is over."""
    first, second = stages
    return Missing(_numbers(first), _numbers(second), first.due + second.due)


def expected(
    inputs: Sequence[torch.Tensor],
    told: Sequence[Missing],
    rank: int,
    *,
    average: bool,
    payload: int,
) -> torch.Tensor:
    """The result on ``rank``, to the last bit.

    Args:
        inputs: of each rank, floating point, one dimension.
        told: the record of each rank.
        average: not the sum.
        payload: bytes of the tensor in a datagram.

    Returns:
        Where the owner's result came back: the contributions that the owner got, added in the
        order of ranks in at least float32, divided by their number (and, for the sum, times the
        ranks). Where it did not: this rank's own contribution (for the sum, times the ranks).
    """
    size, numel, dtype = len(inputs), inputs[0].numel(), inputs[0].dtype
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    came = torch.ones(size, numel, dtype=torch.bool)
    back = torch.ones(numel, dtype=torch.bool)
    for owner in range(size):
        start, stop = numel * owner // size, numel * (owner + 1) // size
        each = payload // dtype.itemsize
        for sender, numbers in told[owner].contributions.items():
            _clear(came[sender, start:stop], numbers, each)
        _clear(back[start:stop], told[rank].results.get(owner, []), each)
    total = torch.zeros(numel, dtype=wide)
    for sender, one in enumerate(inputs):
        total += torch.where(came[sender], one.to(wide), 0)
    count = came.sum(0)
    total = total / count if average else total * (size / count.double()).to(wide)
    own = inputs[rank] if average else inputs[rank] * size
    return torch.where(back, total.to(dtype), own)


def _numbers(stage: StageReceiver) -> dict[int, list[int]]:
    senders: Mapping[int, np.ndarray] = {r: s.arrived for r, s in stage.senders.items()}
    return {r: np.flatnonzero(~there).tolist() for r, there in senders.items() if not there.all()}


def _clear(shard: torch.Tensor, numbers: Sequence[int], each: int) -> None:
    for number in numbers:
        shard[number * each : (number + 1) * each] = False
