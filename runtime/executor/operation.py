"""One AllReduce on its way through the executor, and the observer that may watch it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from runtime.executor.program import PhasePlan
from runtime.work import AllReduceWork

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
class Operation(AllReduceWork):
    """An AllReduce in flight.

    Attributes:
        number: operations count from 0 on every rank, in the same order.
        key: which schedule, and who is late in it.
        tensor: the user's tensor; it holds the result when the operation is done.
        plans: this rank's part, phase by phase.
        bounds: k + 1 element offsets; chunk c is ``flat[bounds[c]:bounds[c + 1]]``.
        average: divide by the number of ranks before the sum.
        arrived_s: ``time.monotonic()`` when it was submitted.
        ready: a CUDA event after which the data may be read (CUDA only).
    """

    number: int
    key: tuple[int, tuple[int, ...]]
    tensor: torch.Tensor
    plans: tuple[PhasePlan, ...]
    bounds: tuple[int, ...]
    average: bool
    arrived_s: float
    ready: Any = None

    def __post_init__(self) -> None:
        super().__init__(self.number, self.tensor, self.average, self.arrived_s)

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
