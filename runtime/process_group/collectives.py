"""What a process group of ours does, on every torch: all-reduce as configured, the rest natively.

In some modes reduce-scatters and all-gathers of one tensor are ours, too (``half``).

Every collective enters Gloo through torch's own binding, which releases the GIL. Nothing else may:
Gloo's worker threads free tensors with a lock held, which takes the GIL, so that a call that waits
for that lock with the GIL held, as torch's base class makes it for a Python group, deadlocks.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from latecomer.runtime.at_exit import close_at_exit, has_closed
from latecomer.runtime.collective import ALL_REDUCE, Collective
from latecomer.runtime.executor.nccl.groups import nccl
from latecomer.runtime.health.native_work import NativeWaits, NativeWork
from latecomer.runtime.host import host
from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.runtime.process_group import reductions
from latecomer.runtime.process_group.starting import CLOSE_S, AllReduceEngine, Starting
from latecomer.runtime.torch_versions import (
    PrefixStore,
    Store,
    Work,
    count_operations,
    own_connection,
)
from latecomer.runtime.work import SUMMABLE, PendingWork, unsummable
from latecomer.verify.errors import LatecomerError
from latecomer.verify.halves import Half

logger = logging.getLogger("latecomer")
GLOO = dist.ProcessGroup.BackendType.GLOO
NCCL = dist.ProcessGroup.BackendType.NCCL
HALVES: dict[str, Half] = {
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_single_coalesced": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "_allgather_base": "all_gather",
    "all_gather_single": "all_gather",
    "all_gather_single_coalesced": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
}
"""By torch's names, of any version from 2.11 on: of one tensor, or of several."""
LAST_START_S = 30.0
"""How long the end of a program waits for a start that is under way. Measuring takes seconds: one
that was given up after five came back from torch too late, and aborted the process."""


class Collectives:
    """The collectives of one group; subclasses run the all-reduces that are theirs.

    A subclass may run reduce-scatters and all-gathers, too: it overrides :meth:`half`.
    """

    dtypes = SUMMABLE
    path: str  # the name of what the subclass does

    def __init__(self, group: StoreExchange, chosen: Any) -> None:
        store = group.store
        rank = group.rank
        size = group.world_size
        timeout = timedelta(seconds=group.timeout_s)
        self.store = store
        self.rank = rank
        self.size = size
        self.chosen = chosen
        self.paths: Counter[str] = Counter()  # of what could be ours, or why it went natively
        self.native: Any = dist.ProcessGroup(store, rank, size)  # Any: its stub is incomplete
        self._gloo: Any = host.gloo(PrefixStore("gloo", store), rank, size, timeout)
        group.all_gather("connected")  # who destroys it now ends nobody's connecting
        self.backends: dict[str, tuple[Any, Any]] = {"cpu": (GLOO, self._gloo)}  # by device type
        if torch.cuda.is_available():
            self.backends["cuda"] = NCCL, nccl(PrefixStore("nccl", store), rank, size, timeout)
        self.native._set_default_backend(GLOO)
        for device, (kind, backend) in self.backends.items():
            count_operations(backend)
            self.native._register_backend(torch.device(device), kind, backend)
        self.waits = NativeWaits(self._gloo, rank, size)
        self._unfit: dict[torch.device, str] = {}  # what `unfit` has said
        self._engines: dict[str, Starting] = {}
        self._lock = host.Lock()
        close_at_exit(self)

    def unfit(self, device: torch.device) -> str:
        """Why all-reduces on ``device`` can't go the subclass's way; empty if they can.

        Asked once for each device: it is the same for all suitable tensors.
        """
        raise NotImplementedError

    def start(self, device: torch.device, group: StoreExchange) -> AllReduceEngine:
        """Make what runs the subclass's all-reduces on ``device`` (collective)."""
        raise NotImplementedError

    def half(self, half: Half, args: Sequence[Any], kwargs: dict[str, Any]) -> Work | None:
        """Start it the subclass's way, if it fits; arguments as torch's: output, input, options."""
        return None

    def options(self) -> dict[str, Any]:
        """What the engine's ``submit`` takes beyond the tensor."""
        return {}

    @property
    def timeout(self) -> timedelta:
        """The time limit of an operation; Gloo's is the one that counts."""
        limit: timedelta = self._gloo.options._timeout
        return limit

    def call(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Work | None:
        """Run collective ``name`` of torch's ProcessGroup; NCCL has no work within a coalesced one.

        RankFailure is raised if the group has failed before, else what the native backend raises.
        """
        if name == "allreduce" and (pending := self._allreduce(args, kwargs)) is not None:
            return pending
        if name in HALVES and (pending := self.half(HALVES[name], args, kwargs)) is not None:
            return pending
        if name == "allreduce_coalesced":
            self.count(ALL_REDUCE, "several tensors at once")
        (args, kwargs), finish = reductions.by_sum(name, args, kwargs, self.rank, self.size)
        try:
            work = getattr(self.native, name)(*args, **kwargs)
        except RuntimeError as error:
            self.waits.diagnose(error)
            raise
        return None if work is None else NativeWork(work, self.waits, finish)

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
        timeout_s = (timeout or self.timeout).total_seconds()
        rank = list(ranks).index(self.rank)
        return type(self)(StoreExchange(store, rank, len(ranks), timeout_s), self.chosen)

    def among(self, group: StoreExchange) -> Collectives:
        """The same for other ranks, this one among them (collective among those)."""
        return type(self)(group, self.chosen)

    @property
    def failure(self) -> LatecomerError | None:
        """Why all-reduces that are the subclass's fail, if they do."""
        for starting in list(self._engines.values()):
            engine = starting.ready
            if engine is not None and engine.failure is not None:
                return engine.failure
        return None

    def engine(self, device: torch.device | str = "cpu") -> Any:
        """What runs the subclass's all-reduces on ``device``; started now if it was not before."""
        return self.starting(torch.device(device)).engine

    def shutdown(self) -> None:
        """Release threads and connections."""
        self._close(CLOSE_S)
        self.waits.close()
        self.native.shutdown()

    def close(self, *, at_once: bool = False) -> None:
        """At the end of the program: release our all-reduces; ``at_once``: without waiting.

        A start under way is in torch, on a thread that can't be ended: it has longer here, where
        one that comes back later would abort the process (:mod:`latecomer.runtime.at_exit`).
        """
        self._close(0.0 if at_once else LAST_START_S, at_once=at_once)

    def _close(self, start_s: float, *, at_once: bool = False) -> None:
        has_closed(self)
        for starting in self._engines.values():
            starting.close(start_s, at_once=at_once)
        self._engines.clear()

    def _allreduce(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Work | None:
        """Start it the subclass's way, if it fits."""
        argument: Any = args[0] if args else kwargs.get("tensors", kwargs.get("tensor"))
        tensors = [argument] if isinstance(argument, torch.Tensor) else list(argument)
        operation = reductions.name(reductions.operation(args[1:], kwargs))
        reason = self._reason(tensors, operation)
        self.count(ALL_REDUCE, reason)
        if reason:
            return None
        tensor = tensors[0]
        starting = self.starting(tensor.device)
        if tensor.device.type == "cuda":
            _ = starting.engine  # what is submitted from another thread would miss this stream
        engine = starting.ready or starting
        average = operation == "AVG"
        return PendingWork(engine.submit(tensor, average=average, **self.options()))

    def _reason(self, tensors: list[torch.Tensor], operation: str) -> str:
        if len(tensors) != 1:
            return f"{len(tensors)} tensors at once"
        return self.reason(tensors[0], operation)

    def reason(self, tensor: torch.Tensor, operation: str) -> str:
        """Why a tensor can't go the subclass's way; empty if it can."""
        if self.size < 2:
            return "a group of one"
        if operation not in ("SUM", "AVG"):
            return f"operation {operation}"
        reason, _ = unsummable(tensor, operation == "AVG", self.dtypes)
        if reason:
            return reason
        device = tensor.device
        if device not in self._unfit:
            self._unfit[device] = self.unfit(device)
        return self._unfit[device]

    def count(self, collective: Collective, reason: str) -> None:
        """One more operation goes the subclass's way or, with a ``reason``, natively."""
        path = reason or self.path
        if collective != ALL_REDUCE:
            path = f"{collective}: {path}"
        self.paths[path] += 1
        if self.paths[path] == 1:
            how = f"natively: {reason}" if reason else f"by {self.path}"
            logger.info("rank %d: %s goes %s", self.rank, collective, how)

    def starting(self, device: torch.device) -> Starting:
        """The engine for ``device`` on its way; started now if it was not before (collective)."""
        self._apply(self.timeout)
        with self._lock:
            if device.type not in self._engines:
                self._engines[device.type] = Starting(lambda: self._started(device))
            return self._engines[device.type]

    def _started(self, device: torch.device) -> AllReduceEngine:
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            connection = own_connection(self.store)  # a wait holds up all else on the same one
            store = PrefixStore(f"latecomer/{device.type}", connection)
            timeout_s = self.timeout.total_seconds()
            engine = self.start(device, StoreExchange(store, self.rank, self.size, timeout_s))
        self.waits.detector = engine
        close_at_exit(self)  # again: it closes the engine, and so comes before it
        return engine

    def _apply(self, timeout: timedelta) -> None:
        """Let engines have the group's time limit, which torch may have changed in Gloo itself."""
        for starting in list(self._engines.values()):
            if (engine := starting.ready) and engine.timeout_s != timeout.total_seconds():
                engine.timeout_s = timeout.total_seconds()
