"""Kernels for the operations that they can carry, transfers for the others: one engine outside.

Which of the two runs an operation follows from what all ranks know of it, so all take the same: its
dtype, its schedule, and that a native one has no schedule at all. Each operation says what ran it
(``CollectiveWork.by``). Both engines enqueue in the order in which operations are submitted.
"""

from __future__ import annotations

from collections.abc import Callable

from latecomer.runtime.device.launcher import KernelEngine
from latecomer.runtime.executor.nccl.engine import TRANSFERS, DeviceEngine
from latecomer.runtime.health.diagnosis import WaitFor
from latecomer.runtime.work import CollectiveWork


class CombinedEngine:
    """An engine that hands each operation to ``kernels`` or to ``transfers``.

    ``unfit`` says why an operation with a program is not for kernels; nothing if it is.
    ``transfers`` has to know when ``kernels`` is idle: nothing of either may be in flight where a
    graph is captured.
    """

    def __init__(
        self,
        kernels: KernelEngine,
        transfers: DeviceEngine,
        unfit: Callable[[CollectiveWork], str],
    ) -> None:
        self._kernels = kernels
        self._transfers = transfers
        self._unfit = unfit

    @property
    def moved_s(self) -> float:
        """When an operation last went on here."""
        return max(self._transfers.moved_s, self._kernels.moved_s)

    def submit(self, work: CollectiveWork) -> None:
        """Enqueue an operation; ArgumentError where a graph is captured that can't hold it."""
        if work.program is None:
            self._transfers.submit(work)
        elif reason := self._unfit(work):
            work.by = f"{TRANSFERS}: {reason}"
            self._transfers.submit(work)
        else:
            self._kernels.submit(work)

    def waiting(self) -> tuple[WaitFor, float] | None:
        """For whom the oldest kernel waits."""
        return self._kernels.waiting()

    def abort(self) -> None:
        """Stop both at once."""
        self._kernels.abort()
        self._transfers.abort()

    def close(self) -> None:
        """Stop both when what is under way is done, or after some seconds."""
        self._kernels.close()
        self._transfers.close()
