"""One AllReduce on its way through the executor, and the observer that may watch it."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch

from runtime.plan import PhasePlan
from verify.errors import LatecomerError

SUMMABLE = frozenset(
    {
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
    }
)


@dataclass(eq=False)
class Operation:
    """An AllReduce in flight.

    Attributes:
        number: operations count from 0 on every rank, in the same order.
        key: which schedule, and who is late in it.
        tensor: the user's tensor; it holds the result when the operation is done.
        flat: the same memory as one dimension.
        plans: this rank's part, phase by phase.
        bounds: k + 1 element offsets; chunk c is ``flat[bounds[c]:bounds[c + 1]]``.
        average: divide by the number of ranks before the sum.
        arrived_s, done_s: ``time.monotonic()`` when it was submitted and when it was done.
        ready: a CUDA event after which the data may be read (CUDA only).
    """

    number: int
    key: tuple[int, tuple[int, ...]]
    tensor: torch.Tensor
    flat: torch.Tensor
    plans: tuple[PhasePlan, ...]
    bounds: tuple[int, ...]
    average: bool
    arrived_s: float
    done_s: float = 0.0
    ready: Any = None
    error: LatecomerError | None = None
    _done: threading.Event = field(default_factory=threading.Event)
    _base: torch.futures.Future[Any] = field(init=False)

    def __post_init__(self) -> None:
        on_cuda = self.flat.device.type == "cuda"
        self._base = torch.futures.Future(devices=[self.flat.device] if on_cuda else [])

    @property
    def description(self) -> str:
        """What all ranks must agree on."""
        schedule, late = self.key
        how = "average" if self.average else "sum"
        what = f"{how} of {self.flat.numel()} x {str(self.flat.dtype).removeprefix('torch.')}"
        return f"operation {self.number}: {what} by schedule {schedule}, late {list(late)}"

    def chunk(self, number: int) -> torch.Tensor:
        """The elements of one chunk (a view; empty where the tensor is too small)."""
        return self.flat[self.bounds[number] : self.bounds[number + 1]]

    def settle(self, error: LatecomerError | None = None) -> None:
        """Mark as done or failed, once."""
        self.error = error
        self.done_s = time.monotonic()
        self._done.set()
        # The future is completed with a value even on failure and raises in `future`'s callback:
        # torch loses the type of an exception set on a future of a DDP hook, and its reducer
        # crashes on one set on a future of a process group.
        self._base.set_result(None)

    def wait(self, timeout: timedelta | None = None) -> torch.Tensor:
        """Block until done and return the tensor.

        Raises:
            RankFailure: a rank is dead or silent.
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


class PeerLost(Exception):
    """A connection closed or a wait ran out of time; who is to blame is not yet known."""


class Mismatch(Exception):
    """This rank and ``peer`` submitted different things as the same operation."""

    def __init__(self, operation: int, peer: int) -> None:
        self.operation, self.peer = operation, peer
        super().__init__(f"operation {operation} is not the same on rank {peer}")


class Observer:
    """Is told what happens to operations, on the threads that do it; overrides what it needs.

    Rounds overlap: one may begin before the last has ended. An exception from an observer breaks
    this rank, which is how tests inject faults at a named place.
    """

    def step_begins(self, operation: int, phase: str, round: int) -> None:
        """The first bytes of a rank's round are about to move (CUDA: to be enqueued)."""

    def step_ends(self, operation: int, phase: str, round: int) -> None:
        """What was received in this round is in place, what was sent is on its way."""

    def done(self, operation: Operation) -> None:
        """An operation is complete (or has failed: see ``operation.error``)."""
