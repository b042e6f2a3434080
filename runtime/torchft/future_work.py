"""An all-reduce as torchft wants to see it: whatever becomes of it stands in its future.

torchft binds what comes after an all-reduce to the future once ``wait()`` has returned, and up to
0.2.0 a ``wait()`` that raises ends a survivor. So ``wait()`` waits until the future is complete,
and says by its value whether the sum is there; the error is the future's, with its own type.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import torch
from torch.futures import Future

from latecomer.runtime.host import host
from latecomer.runtime.torch_versions import Work
from latecomer.runtime.work import CollectiveWork
from latecomer.verify.errors import LatecomerError

NO_LIMIT = timedelta(0)


class FutureWork(Work):
    """The handle of one all-reduce.

    Args:
        tensor: the caller's, which holds the sum in the end.
        named: what becomes of an error on its way to the caller.
    """

    def __init__(
        self, tensor: torch.Tensor, named: Callable[[LatecomerError], LatecomerError]
    ) -> None:
        super().__init__()
        self._tensor = tensor
        self._named = named
        self._error: LatecomerError | None = None
        self._is_complete = host.Event()  # the future is
        self._future: Future[list[torch.Tensor]] = Future()

    def follow(self, work: CollectiveWork) -> None:
        """Complete the future as soon as ``work`` is done, or has failed."""
        work.then(self.settle)

    def settle(self, error: LatecomerError | None) -> None:
        """Complete the future, once."""
        try:
            if error is None:
                self._future.set_result([self._tensor])
            else:
                self._error = self._named(error)
                self._future.set_exception(self._error)  # type: ignore[arg-type]
        finally:  # what was bound to the future may raise, which must leave nobody waiting
            self._is_complete.set()

    def wait(self, timeout: timedelta | None = NO_LIMIT) -> bool:
        """Block until the future is complete; whether the sum is there.

        It does not raise what the future does. TimeoutError: not done within ``timeout`` (the
        all-reduce goes on).
        """
        limit_s = timeout.total_seconds() if timeout else None
        if not self._is_complete.wait(limit_s):
            raise TimeoutError(f"the all-reduce is not done after {timeout}")
        return self._error is None

    def synchronize(self) -> None:
        """As :meth:`wait`; also what ``block_current_stream`` does, since tensors are the CPU's."""
        self.wait()

    block_current_stream = synchronize

    def is_completed(self) -> bool:
        """Whether the sum is there, or the all-reduce has failed."""
        return self._is_complete.is_set()

    def is_success(self) -> bool:
        """Whether the sum is there."""
        return self.is_completed() and self._error is None

    def exception(self) -> LatecomerError | None:
        """Why it failed, if it did."""
        return self._error

    def result(self) -> list[torch.Tensor]:
        """The list of tensors, once they are there; raises why they are not."""
        self.wait()
        if self._error is not None:
            raise self._error
        return [self._tensor]

    def get_future(self) -> Future[list[torch.Tensor]]:
        """A future of the list of tensors, which raises the error with its type."""
        return self._future
