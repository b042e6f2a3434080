"""An engine whose sums of floats have the same bits, for all-reduces through the backend."""

from __future__ import annotations

from typing import Any

import torch

from latecomer.runtime.process_group.starting import AllReduceEngine
from latecomer.runtime.samebits.contributions import Contributions
from latecomer.runtime.samebits.conversion import DTYPES
from latecomer.runtime.samebits.summing import SameBits
from latecomer.runtime.samebits.unnamed import UnnamedTensors
from latecomer.runtime.work import CollectiveWork
from latecomer.verify.errors import LatecomerError


class SameBitsEngine:
    """Runs all-reduces of floats as those of integers by ``engine``, and all others as they are."""

    def __init__(self, engine: AllReduceEngine, sums: SameBits) -> None:
        self.engine = engine
        self.sums = sums
        self._tensors = UnnamedTensors(sums.contributions)

    @property
    def failure(self) -> LatecomerError | None:
        """Why operations fail, if they do."""
        return self.engine.failure

    @property
    def timeout_s(self) -> float:
        """How long a rank may keep others waiting."""
        return self.engine.timeout_s

    @timeout_s.setter
    def timeout_s(self, timeout_s: float) -> None:
        self.engine.timeout_s = timeout_s

    def find_silent(self, noticed: str) -> LatecomerError | None:
        """Ask all ranks for a sign of life; the failure that names those that give none."""
        return self.engine.find_silent(noticed)

    def submit(self, tensor: torch.Tensor, *, average: bool, **options: Any) -> CollectiveWork:
        """As the engine's; raises as :meth:`SameBits.submit`."""

        def start(integers: torch.Tensor) -> CollectiveWork:
            return self.engine.submit(integers, average=False, **options)

        if tensor.dtype not in DTYPES or tensor.numel() == 0:
            return self.sums.pass_on(tensor, start)
        given = Contributions(tensor.detach().view(-1), (tensor.numel(),))
        exponents = self._tensors.next(tensor)
        return self.sums.submit(given, [exponents], start, average=average)

    def close(self, *, at_once: bool = False) -> None:
        """Release threads and connections; ``at_once``: without waiting for operations."""
        self.sums.close(at_once=at_once)
        self.engine.close(at_once=at_once)
