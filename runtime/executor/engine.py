"""What moves the bytes of operations, as the executor sees it."""

from __future__ import annotations

from typing import Protocol

from latecomer.runtime.health.checks import WaitSource
from latecomer.runtime.work import CollectiveWork


class DataEngine(WaitSource, Protocol):
    """TCP's event loop, transfers over NCCL, kernels.

    An engine tells the executor which operations have ended, and once what went wrong in it. The
    watchdog asks it for whom this rank waits.
    """

    def submit(self, work: CollectiveWork) -> None:
        """Run an operation behind those before; returns before it is done."""

    def abort(self) -> None:
        """Stop at once, with what is under way, so that peers notice, too."""

    def close(self) -> None:
        """Stop when the operations under way are done, or after some seconds."""
