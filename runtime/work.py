"""An AllReduce in flight, as its caller holds it: wait for it, or take a future of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch

from runtime.torch_versions import Work
from verify.errors import LatecomerError


class AllReduceWork:
    """A tensor that is being reduced.

    Attributes:
        number: operations count from 0 on every rank, in the same order.
        tensor: the caller's; it holds the result when the operation is done.
        flat: the same memory as one dimension.
        average: not the sum.
        arrived_s, done_s: ``time.monotonic()`` when it was submitted and when it was done.
        error: why it failed, if it did.
    """

    def __init__(self, number: int, tensor: torch.Tensor, average: bool, arrived_s: float) -> None:
        self.number, self.tensor, self.average = number, tensor, average
        self.flat = tensor.detach().view(-1)
        self.arrived_s, self.done_s = arrived_s, 0.0
        self.error: LatecomerError | None = None
        self._done = threading.Event()
        on_cuda = tensor.device.type == "cuda"
        self._base: torch.futures.Future[Any] = torch.futures.Future(
            devices=[tensor.device] if on_cuda else []
        )

    @property
    def is_done(self) -> bool:
        """Whether the result is there, or has failed."""
        return self._done.is_set()

    def settle(self, error: LatecomerError | None = None) -> None:
        """Mark as done or failed, once."""
        self.error = error
        self.done_s = time.monotonic()
        self._done.set()
        # The future is completed with a value even on failure and raises in `future`'s callback:
        # torch loses the type of an exception set on a future of a DDP hook, and its reducer
        # crashes on one set on a future of a process group.
        self._base.set_result(None)

    def then(self, call: Callable[[LatecomerError | None], None]) -> None:
        """Call ``call`` with :attr:`error` when it is done; on the thread that settles it."""
        self._base.add_done_callback(lambda _: call(self.error))

    def wait(self, timeout: timedelta | None = None) -> torch.Tensor:
        """Block until done and return the tensor.

        Raises:
            RankFailure, LossExceeded: why it failed.
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


class PendingWork(Work):
    """An operation as torch wants to see it."""

    def __init__(self, pending: AllReduceWork) -> None:
        super().__init__()
        self._pending = pending

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Block until done."""
        self._pending.wait(timeout)
        return True

    def synchronize(self) -> None:
        """Block until done."""
        self._pending.wait()

    def is_completed(self) -> bool:
        """Whether the result is there, or has failed."""
        return self._pending.is_done

    def is_success(self) -> bool:
        """Whether the result is there."""
        return self._pending.is_done and self._pending.error is None

    def exception(self) -> LatecomerError | None:
        """Why it failed, if it did."""
        return self._pending.error

    def result(self) -> list[torch.Tensor]:
        """The list of tensors, once they are done."""
        return [self._pending.wait()]

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A future of the list of tensors."""
        return self._pending.future(as_list=True)
