"""The library's own all-reduce, in a Gloo group of its own, as one of the ways an operation runs.

Operations start in the order in which they are given and may overlap, as under plain DDP. A thread
waits for them; when one fails (a peer died) it says so and the owner finds out who is to blame.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from runtime.health.diagnosis import WaitFor
from runtime.health.native_work import close_connections, reason
from runtime.torch_versions import AllreduceOptions, Store

PHASE = "all-reduce"


class Native:
    """All-reduces by Gloo.

    Args:
        store: for connecting, under a prefix of its own.
        timeout_s: Gloo's own time limit of one operation.
        failed: is told when an operation has failed, once; all later ones have failed, too.
    """

    def __init__(
        self, store: Store, rank: int, size: int, timeout_s: float, failed: Callable[[str], None]
    ) -> None:
        self._rank, self._size = rank, size
        self._failed = failed
        # Any: the stubs give backends no collectives
        self._group: Any = dist.ProcessGroupGloo(store, rank, size, timedelta(seconds=timeout_s))
        self._queue: queue.SimpleQueue[tuple[int, Any, Callable[[], None]] | None] = (
            queue.SimpleQueue()
        )
        self._closing = False
        self._waiting: tuple[WaitFor, float] | None = None
        self.moved_s = time.monotonic()
        self._thread = threading.Thread(target=self._wait, name="latecomer-native", daemon=True)
        self._thread.start()

    def start(self, number: int, flat: torch.Tensor, ended: Callable[[], None]) -> None:
        """Start the sum of ``flat``, in place; ``ended`` is called when it is there.

        Args:
            number: of the operation, for messages.
        """
        try:
            work = self._group.allreduce([flat], AllreduceOptions())
        except RuntimeError as error:
            self._lost(number, error)
            return
        self._queue.put((number, work, ended))

    def run(self, flat: torch.Tensor) -> None:
        """The sum of ``flat``, in place, before any operation has been started."""
        self._group.allreduce([flat], AllreduceOptions()).wait()

    def waiting(self) -> tuple[WaitFor, float] | None:
        """What this rank waits for, and since when; a ring waits for the rank before."""
        return self._waiting

    def abort(self) -> None:
        """End every wait, here and on the peers: closes all connections."""
        if (group := self._group) is not None:
            close_connections(group, self._rank, self._size)

    def set_timeout(self, timeout_s: float) -> None:
        """Change Gloo's own time limit from now on."""
        self._group._set_default_timeout(timedelta(seconds=timeout_s))

    def close(self, timeout_s: float) -> None:
        """Release the group, when the operations in flight are done, or after ``timeout_s``."""
        self._queue.put(None)
        self._thread.join(timeout_s)
        if self._thread.is_alive():  # the group itself would wait for its own time-out
            self._closing = True
            self.abort()
            self._thread.join(timeout_s)
        self._group = None

    def _wait(self) -> None:
        while (item := self._queue.get()) is not None:
            number, work, ended = item
            peer = (self._rank - 1) % self._size
            self._waiting = WaitFor(number, PHASE, 0, peer), time.monotonic()
            try:
                work.wait()
            except RuntimeError as error:
                self._lost(number, error)
                return
            self._waiting, self.moved_s = None, time.monotonic()
            ended()

    def _lost(self, number: int, error: RuntimeError) -> None:
        if not self._closing:
            text = f"rank {self._rank} lost the all-reduce of operation {number}: {reason(error)}"
            self._failed(text)
