"""The library's own collectives: Gloo's on the CPU, on a device by the executor's engine.

Gloo has a group of its own, in which operations overlap, as under plain DDP. A thread waits for
them; when one fails (a peer died) its owner is told, and finds out who failed.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch

from latecomer.runtime.executor.executor import Executor
from latecomer.runtime.health.diagnosis import WaitFor
from latecomer.runtime.health.native_work import close_connections, reason
from latecomer.runtime.host import SimpleQueue, host
from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.runtime.torch_versions import AllreduceOptions
from latecomer.runtime.work import (
    ON_HOST,
    AllGatherWork,
    AllReduceWork,
    CollectiveWork,
    ReduceScatterWork,
)


class NativeAllReduce:
    """Collectives by Gloo; ``failed`` is told of the first that fails, with which all later do."""

    def __init__(
        self,
        group: StoreExchange,
        ended: Callable[[CollectiveWork], None],
        failed: Callable[[str], None],
    ) -> None:
        self._rank = group.rank
        self._size = group.world_size
        self._ended = ended
        self._failed = failed
        timeout = timedelta(seconds=group.timeout_s)
        # Any: its stub is incomplete
        self._gloo: Any = host.gloo(group.store, self._rank, self._size, timeout)
        self._queue: SimpleQueue[tuple[CollectiveWork, Any] | None] = host.SimpleQueue()
        self._closing = False
        self._waiting: tuple[WaitFor, float] | None = None
        self.moved_s = host.monotonic()
        self._thread = host.Thread(target=self._run, name="latecomer-native", daemon=True)
        self._thread.start()

    def start(self, work: CollectiveWork) -> None:
        """Start an operation; divides at once where it is an average."""
        try:
            self._queue.put((work, self._started(work)))
        except RuntimeError as error:
            self._lost(work, error)

    def _started(self, work: CollectiveWork) -> Any:
        """Gloo's handle of it."""
        if isinstance(work, AllGatherWork):
            return self._gloo._allgather_base(work.flat, work.given.detach().view(-1))
        if isinstance(work, ReduceScatterWork):
            given = work.flat / self._size if work.average else work.flat
            return self._gloo._reduce_scatter_base(work.tensor.detach().view(-1), given)
        if work.average:
            work.flat.div_(self._size)
        return self._gloo.allreduce([work.flat], AllreduceOptions())

    def run(self, flat: torch.Tensor) -> None:
        """The sum of ``flat``, in place, before any operation has been started."""
        self._gloo.allreduce([flat], AllreduceOptions()).wait()

    def waiting(self) -> tuple[WaitFor, float] | None:
        """What this rank waits for, and since when; a ring waits for the rank before."""
        return self._waiting

    def abort(self) -> None:
        """End every wait, here and on the peers: closes all connections."""
        gloo = self._gloo
        if gloo is not None:
            close_connections(gloo, self._rank, self._size)

    def set_timeout(self, timeout_s: float) -> None:
        """Change Gloo's own time limit from now on."""
        self._gloo._set_default_timeout(timedelta(seconds=timeout_s))

    def close(self, timeout_s: float) -> None:
        """Release the group, when the operations in flight are done, or after ``timeout_s``."""
        self._queue.put(None)
        self._thread.join(timeout_s)
        if self._thread.is_alive():  # the group itself would wait for its own time-out
            self._closing = True
            self.abort()
            self._thread.join(timeout_s)
        self._gloo = None

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            work, native = item
            peer = (self._rank - 1) % self._size
            self._waiting = WaitFor(work.number, _name(work), 0, peer), host.monotonic()
            try:
                native.wait()
            except RuntimeError as error:
                self._lost(work, error)
                return
            self._waiting = None
            self.moved_s = host.monotonic()
            self._ended(work)

    def _lost(self, work: CollectiveWork, error: RuntimeError) -> None:
        if not self._closing:
            self._failed(
                f"rank {self._rank} lost the {_name(work)} of operation {work.number}: "
                f"{reason(error)}"
            )


def _name(work: CollectiveWork) -> str:
    """What it is, in words."""
    return work.collective.replace("_", "-")


def native_way(
    executor: Executor, group: StoreExchange, ended: Callable[[CollectiveWork], None]
) -> NativeAllReduce | NativeOnDevice:
    """What runs the library's own all-reduce: the device's engine, or else Gloo (collective)."""
    if executor.streams is not None:
        return NativeOnDevice(executor)
    native = NativeAllReduce(group, ended, executor.watchdog.fail)
    executor.watchdog.add(native)
    executor.watchdog.on_trouble(native.abort)
    return native


class NativeOnDevice:
    """The library's own all-reduce, by the engine of a device; as :class:`NativeAllReduce`."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def start(self, work: CollectiveWork) -> None:
        """Start an open operation, unless it has failed."""
        if self._executor.failure is None:
            self._executor.hand_over(work)

    def run(self, flat: torch.Tensor) -> None:
        """The sum of ``flat``, in place."""
        work = self._executor.open(AllReduceWork, flat, average=False)
        self.start(work)
        work.wait(ON_HOST)

    def set_timeout(self, timeout_s: float) -> None:
        """The watchdog's is the only one."""

    def close(self, timeout_s: float) -> None:
        """The executor releases its engine."""
