"""How a view's replicas average what they contribute to a bucket: as floats, or as integers."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch

from latecomer.runtime.elastic.gradients import Bucket
from latecomer.runtime.health.native_work import reason
from latecomer.runtime.health.watchdog import Watchdog
from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.runtime.policy.dispatcher import AllReduceDispatcher
from latecomer.runtime.policy.engines import ModeEngine
from latecomer.runtime.samebits.contributions import Contributions, TensorExponents
from latecomer.runtime.samebits.repetition import NativeRepetition, Repetition, RepetitionAlone
from latecomer.runtime.samebits.summing import SameBits
from latecomer.runtime.work import CollectiveWork
from latecomer.verify.errors import RankFailure


class Sums(Protocol):
    """Starts the all-reduces of a view; on all ranks in the same order."""

    def average(
        self, bucket: Bucket, kept: list[torch.Tensor], result: torch.Tensor
    ) -> CollectiveWork:
        """Start the average of all ranks' contributions, of which this one has ``kept``."""

    def total(self, tensor: torch.Tensor) -> CollectiveWork:
        """Start the sum of integers, in place."""

    def close(self) -> None:
        """Release what is not the engine's."""


class FloatSums:
    """As DDP sums: each contribution is divided first."""

    def __init__(self, engine: ModeEngine, contributions: int) -> None:
        self._engine = engine
        self._contributions = contributions

    def average(
        self, bucket: Bucket, kept: list[torch.Tensor], result: torch.Tensor
    ) -> CollectiveWork:
        """See :class:`Sums`."""
        result.zero_()
        for contribution in kept:
            result.add_(contribution, alpha=1.0 / self._contributions)
        return self._engine.submit(result)

    def total(self, tensor: torch.Tensor) -> CollectiveWork:
        """See :class:`Sums`."""
        return self._engine.submit(tensor)

    def close(self) -> None:
        """There is nothing."""


class Exponents:
    """Those of some buckets' parameters, which outlive views (``latecomer.runtime.samebits``)."""

    def __init__(self, contributions: int, buckets: list[Bucket]) -> None:
        self.contributions = contributions
        self._buckets = buckets
        self._by_name: dict[str, TensorExponents] = {}

    def of(self, bucket: Bucket) -> list[TensorExponents]:
        """Those of a bucket's parameters."""
        found = []
        for name, elements in zip(bucket.names, bucket.sizes, strict=True):
            if name not in self._by_name:
                self._by_name[name] = TensorExponents(elements, bucket.dtype, self.contributions)
            found.append(self._by_name[name])
        return found

    def as_tensor(self) -> torch.Tensor:
        """The exponents of all blocks, copied."""
        values = [exponents.values for bucket in self._buckets for exponents in self.of(bucket)]
        return torch.from_numpy(np.concatenate([np.empty(0, np.int32), *values]))

    def load_tensor(self, values: torch.Tensor) -> None:
        """Go on with these, whatever sums had been under way."""
        self._by_name = {}
        left = values.cpu().numpy().copy()
        for bucket in self._buckets:
            for exponents in self.of(bucket):
                blocks = len(exponents.values)
                exponents.values = left[:blocks]
                left = left[blocks:]
        assert len(left) == 0


def _repetition(group: StoreExchange, watchdog: Watchdog) -> NativeRepetition:
    """The group for sums that are done again (collective); RankFailure if it can't be connected."""
    try:
        return NativeRepetition(group, watchdog)
    except RuntimeError as error:  # Gloo's, which names no rank
        text = f"rank {group.rank} could not connect for repeated sums: {reason(error)}"
        raise RankFailure([], text) from None


class SameBitsSums:
    """As integers, so that the bits depend on the contributions alone (collective).

    RankFailure is raised if a rank is lost meanwhile.
    """

    def __init__(
        self, engine: ModeEngine, group: StoreExchange, exponents: Exponents, device: torch.device
    ) -> None:
        self._engine = engine
        self._exponents = exponents
        repetition: Repetition = RepetitionAlone()
        watchdog = None
        if isinstance(engine, AllReduceDispatcher):
            watchdog = engine.executor.watchdog
            repetition = _repetition(group.under("repetition"), watchdog)
        self._sums = SameBits(exponents.contributions, device, repetition, watchdog)

    def average(
        self, bucket: Bucket, kept: list[torch.Tensor], result: torch.Tensor
    ) -> CollectiveWork:
        """See :class:`Sums`; a rank without a contribution adds zeros, and counts none."""
        if kept:
            result.copy_(kept[0])
        else:
            result.zero_()
        others: dict[int, list[torch.Tensor]] = {}
        for contribution in kept[1:]:
            for tensor, part in enumerate(torch.split(contribution, list(bucket.sizes))):
                others.setdefault(tensor, []).append(part)
        given = Contributions(result, bucket.sizes, len(kept), others)
        exponents = self._exponents.of(bucket)
        return self._sums.submit(given, exponents, self._engine.submit, average=True)

    def total(self, tensor: torch.Tensor) -> CollectiveWork:
        """See :class:`Sums`."""
        return self._sums.pass_on(tensor, self._engine.submit)

    def close(self) -> None:
        """End the thread."""
        self._sums.close(at_once=True)
