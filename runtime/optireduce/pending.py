"""An AllReduce in flight, as its caller holds it: wait for it, or take a future of it.

Like :class:`runtime.Operation`, without a schedule.
"""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import torch

from verify.errors import LatecomerError


class Pending:
    """A tensor that is being reduced.

    Attributes:
        number: operations count from 0 on every rank, in the same order.
        tensor: the caller's; it holds the result when the operation is done.
        flat: the same memory as one dimension.
        average: not the sum.
        arrived_s: ``time.monotonic()`` when it was submitted.
    """

    def __init__(self, number: int, tensor: torch.Tensor, average: bool, now_s: float) -> None:
        self.number, self.tensor, self.average = number, tensor, average
        self.flat = tensor.detach().view(-1)
        self.arrived_s = now_s
        self.error: LatecomerError | None = None
        self._done = threading.Event()
        self._base: torch.futures.Future[Any] = torch.futures.Future()

    def settle(self, error: LatecomerError | None = None) -> None:
        """Mark as done or failed, once."""
        self.error = error
        self._done.set()
        # With a value even on failure: torch loses the type of an exception set on a DDP hook's
        # future, and its reducer crashes on one set on a process group's. `future` raises it.
        self._base.set_result(None)

    def wait(self, timeout: timedelta | None = None) -> torch.Tensor:
        """Block until done and return the tensor.

        Raises:
            RankFailure, LossExceeded: why the engine ended.
            TimeoutError: not done within ``timeout`` (the operation goes on).
        """
        if not self._done.wait(None if not timeout else timeout.total_seconds()):
            raise TimeoutError(f"operation {self.number} is not done after {timeout}")
        if self.error is not None:
            raise self.error
        return self.tensor

    def future(self, *, as_list: bool = False) -> torch.futures.Future[Any]:
        """A future of the tensor (or of ``[tensor]``) that raises what :meth:`wait` raises."""

        def result(_: torch.futures.Future[Any]) -> Any:
            if self.error is not None:
                raise self.error
            return [self.tensor] if as_list else self.tensor

        return self._base.then(result)
