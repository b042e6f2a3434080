"""OptiReduce under ``init_process_group``: all_reduce over UBT, every other collective over Gloo.

    runtime.configure(algorithm="optireduce")        # or LATECOMER_ALGORITHM=optireduce
    dist.init_process_group(backend="latecomer")

An ``all_reduce`` goes by OptiReduce when it is SUM or AVG of one dense floating point tensor on the
CPU; what goes by Gloo instead is counted in ``OptiReduceGroup.paths`` and logged once per reason.
Each ``all_reduce`` is a step of its own.
"""

from __future__ import annotations

import logging
from collections import Counter
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllreduceOptions, PrefixStore, Store, Work

from runtime.optireduce.engine import Engine
from runtime.optireduce.hadamard import FLOATS
from runtime.optireduce.options import Options
from runtime.pending import PendingWork

logger = logging.getLogger("latecomer")
OPERATIONS = ("SUM", "AVG")


class OptiReduceGroup(dist.ProcessGroup):
    """A process group whose allreduce runs over UBT.

    Attributes:
        paths: how many allreduces went which way (``optireduce``, or the reason why not).
        engine: behind them; made at the first.
    """

    def __init__(
        self, store: Store, rank: int, size: int, timeout: timedelta, options: Options
    ) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]  # the stub knows one form only
        self.paths: Counter[str] = Counter()
        self.engine: Engine | None = None
        self._store, self._timeout, self._options = store, timeout, options
        inner: Any = dist.ProcessGroupGloo(PrefixStore("gloo", store), rank, size, timeout)
        inner._set_sequence_number_for_group()
        self._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        self._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, inner)

    def getBackendName(self) -> str:
        """The name under which torch knows the group."""
        return "latecomer"

    def allreduce(  # type: ignore[override]  # the form that torch itself calls
        self, tensors: list[torch.Tensor], opts: AllreduceOptions | None = None
    ) -> Work:
        """Sum (or average) ``tensors[0]`` over the group, in place.

        Raises:
            RankFailure, LossExceeded: the engine has failed (or the work's ``wait`` raises it).
        """
        opts = AllreduceOptions() if opts is None else opts
        operation = _name(opts.reduceOp)
        reason = _unfit(tensors, operation, self.size())
        self._count(reason or "optireduce")
        if reason:
            return super().allreduce(tensors, opts)
        if self.engine is None:
            self.engine = Engine(
                PrefixStore("latecomer/optireduce", self._store),
                self.rank(),
                self.size(),
                options=self._options,
                timeout_s=self._timeout.total_seconds(),
            )
        return PendingWork(self.engine.submit(tensors[0], average=operation == "AVG"))

    def shutdown(self) -> None:
        """Release threads and connections (``destroy_process_group`` calls it)."""
        if self.engine is not None:
            self.engine.close()
            self.engine = None
        super().shutdown()

    def _count(self, path: str) -> None:
        self.paths[path] += 1
        if self.paths[path] == 1:
            how = "by OptiReduce" if path == "optireduce" else f"natively: {path}"
            logger.info("rank %d: allreduce goes %s", self.rank(), how)


def _unfit(tensors: list[torch.Tensor], operation: str, size: int) -> str:
    """Why this allreduce can't go by OptiReduce; empty if it can."""
    if size < 2:
        return "a group of one"
    if operation not in OPERATIONS:
        return f"operation {operation}"
    if len(tensors) != 1:
        return f"{len(tensors)} tensors at once"
    tensor = tensors[0]
    if tensor.dtype not in FLOATS or tensor.is_sparse or not tensor.is_contiguous():
        return f"{tensor.dtype}, {tensor.layout}, contiguous {tensor.is_contiguous()}"
    return "" if tensor.device.type == "cpu" else f"device {tensor.device}"


def _name(operation: Any) -> str:
    """The name of a reduce operation (torch prints only its address)."""
    known = dist.ReduceOp.RedOpType.__members__.items()
    return next((name for name, value in known if operation == value), "unknown")
