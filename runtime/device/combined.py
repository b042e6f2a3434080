"""Kernels for the operations that they can carry, transfers for the others: one engine outside.

Which of the two runs an operation follows from what all ranks know of it, so all take the same: its
dtype, its schedule, and that a native one has no schedule at all. Each operation says what ran it
(``AllReduceWork.by``). Both engines enqueue in the order in which operations are submitted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from runtime.device.launcher import KernelEngine
from runtime.executor.nccl.engine import DeviceEngine
from runtime.health.diagnosis import WaitFor
from runtime.work import AllReduceWork


class CombinedEngine(DeviceEngine):
    """A DeviceEngine that hands most of its operations to ``kernels``.

    ``unfit`` says why an operation with a program is not for them; nothing if it is.
    """

    def __init__(
        self, kernels: KernelEngine, unfit: Callable[[AllReduceWork], str], *transfers: Any
    ) -> None:
        self._kernels = kernels
        self._unfit = unfit
        super().__init__(*transfers)
        kernels.arrived = self._arrived

    @property
    def moved_s(self) -> float:
        """When an operation last went on here."""
        return max(super().moved_s, self._kernels.moved_s)

    @property
    def idle(self) -> bool:
        """Whether no event is being looked at."""
        return super().idle and self._kernels.idle

    def submit(self, work: AllReduceWork) -> None:
        """Enqueue an operation; ArgumentError where a graph is captured that can't hold it."""
        if work.program is None:
            super().submit(work)
        elif reason := self._unfit(work):
            work.by = f"{self.transfers}: {reason}"
            super().submit(work)
        else:
            self._kernels.submit(work)

    def waiting(self) -> tuple[WaitFor, float] | None:
        """For whom the oldest kernel waits."""
        return self._kernels.waiting()

    def abort(self) -> None:
        """Stop both at once."""
        self._kernels.abort()
        super().abort()

    def close(self) -> None:
        """Stop both when what is under way is done, or after some seconds."""
        self._kernels.close()
        super().close()

    def _arrived(self, operation: int, at_s: float) -> None:
        """To whom :attr:`arrived` tells it by now."""
        self.arrived(operation, at_s)
