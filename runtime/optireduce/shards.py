"""Shards of a tensor, and the mean of what arrived of one.

The divisor is that of each datagram's range by itself: the mean over the contributions that came,
the own one always among them. Its weights add up to one, so if losses do not depend on values, and
the ranks' gradients have the same expectation (data dealt out at random), so has the result.
Additions go in the order of ranks, so that without loss the result does not depend on timing.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from runtime.optireduce.udp.datagram import Bytes


class Shards:
    """How a tensor of ``numel`` elements is divided among ``size`` ranks.

    Attributes:
        bounds: size + 1 element offsets; rank r owns ``flat[bounds[r]:bounds[r + 1]]``.
    """

    def __init__(self, flat: torch.Tensor, size: int, payload: int) -> None:
        self.flat, self.size = flat, size
        self.bounds = [flat.numel() * r // size for r in range(size + 1)]
        self.each = payload // flat.element_size()
        self._bytes = flat.view(torch.uint8).numpy()
        self._narrow = np.dtype(f"f{flat.element_size()}")
        self._wide = np.float64 if flat.dtype is torch.float64 else np.float32

    def shard(self, rank: int) -> torch.Tensor:
        """The elements that ``rank`` owns (a view)."""
        return self.flat[self.bounds[rank] : self.bounds[rank + 1]]

    def run(self, rank: int, first: int, count: int) -> torch.Tensor:
        """The elements of ``count`` datagrams of a shard, from number ``first`` on (a view)."""
        return self.shard(rank)[first * self.each : (first + count) * self.each]

    def bytes(self, rank: int) -> Bytes:
        """The same as bytes (a view)."""
        width = self.flat.element_size()
        return self._bytes[self.bounds[rank] * width : self.bounds[rank + 1] * width]

    def combine(
        self,
        rank: int,
        first: int,
        scratch: Mapping[int, Bytes],
        arrived: Mapping[int, np.ndarray],
        average: bool,
    ) -> torch.Tensor:
        """The mean of what arrived of a run of datagrams of the own shard, or ``size`` times it.

        In at least float32, added up in the order of ranks.

        Args:
            rank: the own; its contribution is in the tensor.
            first: number of the run's first datagram.
            scratch: per peer, uint8 [datagrams, payload], what it sent; gaps are set to zero.
            arrived: per peer, bool [datagrams].
            average: the mean; else an estimate of the sum (the sum itself if all arrived).
        """
        width = self.flat.element_size()
        count = max(len(one) for one in arrived.values())
        own = self.bytes(rank)[first * self.each * width : (first + count) * self.each * width]
        total: np.ndarray | None = None
        complete = True
        for sender in range(self.size):
            if sender == rank:
                term = self._widened(own)
            else:
                if not arrived[sender].all():
                    complete, scratch[sender][~arrived[sender]] = False, 0
                term = self._widened(scratch[sender].reshape(-1)[: len(own)])
            if total is None:
                total = term.astype(self._wide)
            else:
                total += term
        assert total is not None
        if complete:
            if average:
                total /= self._wide(self.size)
            return torch.from_numpy(total)
        # an element depends on what came of it alone: not on its neighbours' losses
        divisors = 1 + sum(one.astype(np.int64) for one in arrived.values())
        if average:
            total /= np.repeat(divisors, self.each)[: len(total)].astype(self._wide)
        else:
            total *= np.repeat(self.size / divisors, self.each)[: len(total)].astype(self._wide)
        return torch.from_numpy(total)

    def _widened(self, raw: Bytes) -> np.ndarray:
        """The numbers in ``raw``; bfloat16, which numpy has not, as float32."""
        if self.flat.dtype is torch.bfloat16:
            return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        return raw.view(self._narrow)

    def scale_missing(self, rank: int, arrived: np.ndarray) -> None:
        """Of the shard of ``rank``, what has not arrived is the own contribution: times ``size``.

        So it stands for the sum there; for the average it stands as it is.
        """
        shard = self.shard(rank)
        for number in np.flatnonzero(~arrived):
            shard[int(number) * self.each : (int(number) + 1) * self.each] *= self.size
