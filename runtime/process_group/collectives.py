"""What a process group of ours does, on every torch: all-reduce its own way, the rest natively.

``native`` is a plain process group over Gloo (and NCCL, where there is CUDA). Every collective goes
to it through torch's own binding, which releases the GIL. Nothing else may enter Gloo: its worker
threads free tensors with a lock held, which takes the GIL, so that a call that waits for that lock
with the GIL held, as torch's base class makes it for a Python process group, deadlocks.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from runtime.executor.operation import SUMMABLE
from runtime.health.native_work import NativeWaits, NativeWork
from runtime.process_group import reductions
from runtime.process_group.starting import Engine, Starting
from runtime.torch_versions import PrefixStore, Store, Work, count_operations, own_connection
from runtime.work import PendingWork

logger = logging.getLogger("latecomer")
GLOO, NCCL = dist.ProcessGroup.BackendType.GLOO, dist.ProcessGroup.BackendType.NCCL


class Collectives:
    """The collectives of one group; subclasses say which all-reduces are theirs, and run them.

    Args:
        store: of the group.
        rank, size: place in the group.
        timeout: of each operation.

    Attributes:
        path: the name of the subclass's own way.
        paths: how many all-reduces went which way: :attr:`path`, or why natively.
        native: runs everything else.
        backends: the native ones by device type, each with the type under which torch knows it.
        waits: for native collectives.
    """

    path = ""
    dtypes = SUMMABLE

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta) -> None:
        self.store, self.rank, self.size = store, rank, size
        self.paths: Counter[str] = Counter()
        self.native: Any = dist.ProcessGroup(store, rank, size)  # Any: its stub is incomplete
        self.backends: dict[str, tuple[Any, Any]] = {}
        gloo: Any = dist.ProcessGroupGloo(PrefixStore("gloo", store), rank, size, timeout)
        self._add("cpu", GLOO, gloo)
        if torch.cuda.is_available():
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = timeout
            nccl = dist.ProcessGroupNCCL(PrefixStore("nccl", store), rank, size, options)
            self._add("cuda", NCCL, nccl)
        self._gloo = gloo
        self.waits = NativeWaits(gloo, rank, size)
        self._engines: dict[str, Starting[Any]] = {}
        self._lock = threading.Lock()

    # -- for subclasses

    def unfit(self, device: torch.device) -> str:
        """Why an all-reduce of one suitable tensor can't go the subclass's way; empty if it can."""
        raise NotImplementedError

    def start(self, store: Store, device: torch.device) -> Engine:
        """Make what runs the subclass's all-reduces on ``device`` (collective).

        Args:
            store: as the group's, over a connection of its own: a wait on a store holds up
                everything else on the same connection.
            device: of the tensors.
        """
        raise NotImplementedError

    def options(self) -> dict[str, Any]:
        """What the engine's ``submit`` takes beyond the tensor."""
        return {}

    def child(self, store: Store, rank: int, size: int, timeout: timedelta) -> Collectives:
        """The collectives of a smaller group."""
        raise NotImplementedError

    # -- for process groups

    @property
    def timeout(self) -> timedelta:
        """The time limit of an operation; Gloo's is the one that counts."""
        limit: timedelta = self._gloo.options._timeout
        return limit

    def call(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Work | None:
        """Run collective ``name`` of torch's ProcessGroup.

        Returns:
            Its work; nothing where the native backend has none (NCCL between the calls of a
            coalesced one).

        Raises:
            RankFailure: the group has failed before.
            RuntimeError: as the native backend says.
        """
        if name == "allreduce" and (pending := self._allreduce(args, kwargs)) is not None:
            return pending
        if name == "allreduce_coalesced":
            self._count("several tensors at once")
        finish = None
        if name in reductions.INPUTS:
            made = reductions.by_sum(name, args, kwargs, self.rank, self.size)
            if made is not None:
                (args, kwargs), finish = made
        try:
            work = getattr(self.native, name)(*args, **kwargs)
        except RuntimeError as error:
            self.waits.blame(error)
            raise
        return None if work is None else NativeWork(work, self.waits, finish)

    def monitored_barrier(self, timeout: timedelta | None, wait_all_ranks: bool) -> None:
        """As Gloo's: a barrier that names the ranks that did not come."""
        self.native.monitored_barrier(timeout, wait_all_ranks)

    def set_timeout(self, timeout: timedelta) -> None:
        """Change the time limit of operations from now on."""
        self.native.set_timeout(timeout)
        self._apply(timeout)

    def split(
        self, store: Store, ranks: Sequence[int], timeout: timedelta | None
    ) -> Collectives | None:
        """The collectives of some of this group's ranks; nothing on the others."""
        if self.rank not in ranks:
            return None
        return self.child(store, list(ranks).index(self.rank), len(ranks), timeout or self.timeout)

    def engine(self, device: torch.device | str = "cpu") -> Any:
        """What runs the subclass's all-reduces on ``device``; started now if it was not before.

        Raises:
            LatecomerError: why it could not start.
        """
        return self._starting(torch.device(device)).engine

    def running(self) -> list[Any]:
        """The engines that run now."""
        return [e for s in list(self._engines.values()) if (e := s.ready) is not None]

    def shutdown(self) -> None:
        """Release threads and connections."""
        for starting in self._engines.values():
            starting.close()
        self._engines.clear()
        self.native.shutdown()

    # -- all-reduce

    def _allreduce(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Work | None:
        """Start it the subclass's way, if it fits."""
        given: Any = args[0] if args else kwargs.get("tensors", kwargs.get("tensor"))
        tensors = [given] if isinstance(given, torch.Tensor) else list(given)
        operation = reductions.name(reductions.operation(args[1:], kwargs))
        reason = self._reason(tensors, operation)
        self._count(reason or self.path)
        if reason:
            return None
        tensor = tensors[0]
        self._apply(self.timeout)
        starting = self._starting(tensor.device)
        if tensor.device.type == "cuda":
            _ = starting.engine  # what is submitted from another thread would miss this stream
        average = operation == "AVG"
        return PendingWork(starting.submit(tensor, average=average, **self.options()))

    def _reason(self, tensors: list[torch.Tensor], operation: str) -> str:
        if self.size < 2:
            return "a group of one"
        if operation not in ("SUM", "AVG"):
            return f"operation {operation}"
        if len(tensors) != 1:
            return f"{len(tensors)} tensors at once"
        tensor = tensors[0]
        if tensor.layout is not torch.strided:
            return f"layout {tensor.layout}"
        if tensor.dtype not in self.dtypes:
            return f"dtype {tensor.dtype}"
        if not tensor.is_contiguous():
            return "not contiguous"
        if operation == "AVG" and not tensor.dtype.is_floating_point:
            return f"the average of {tensor.dtype}"
        return self.unfit(tensor.device)

    def _count(self, path: str) -> None:
        self.paths[path] += 1
        if self.paths[path] == 1:
            how = f"by {path}" if path == self.path else f"natively: {path}"
            logger.info("rank %d: allreduce goes %s", self.rank, how)

    def _starting(self, device: torch.device) -> Starting[Any]:
        with self._lock:
            if device.type not in self._engines:
                self._engines[device.type] = Starting(lambda: self._started(device))
            return self._engines[device.type]

    def _started(self, device: torch.device) -> Engine:
        on_device = torch.cuda.device(device) if device.type == "cuda" else nullcontext()
        with on_device:
            engine = self.start(own_connection(self.store), device)
        self.waits.detector = engine
        return engine

    def _apply(self, timeout: timedelta) -> None:
        """Let engines have the group's time limit, which torch may have changed in Gloo itself."""
        for engine in self.running():
            if engine.timeout_s != timeout.total_seconds():
                engine.timeout_s = timeout.total_seconds()

    def _add(self, device: str, kind: Any, backend: Any) -> None:
        count_operations(backend)
        if device == "cpu":
            self.native._set_default_backend(kind)
        self.native._register_backend(torch.device(device), kind, backend)
        self.backends[device] = kind, backend
