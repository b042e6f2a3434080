"""The process group backend ``latecomer``: all_reduce by a mode or a schedule, the rest native.

    import runtime
    runtime.configure(mode="auto")                    # or LATECOMER_MODE (_LATE, _PROFILE)
    runtime.configure("schedule.json", late=7)        # or LATECOMER_SCHEDULE and LATECOMER_LATE
    dist.init_process_group(backend="latecomer")

Every collective but ``allreduce`` runs through an inner Gloo (CPU) or NCCL (CUDA) backend. An
``allreduce`` goes by the mode or schedule when the operation is SUM or AVG on one tensor of a dtype
that can be carried, and the group has as many ranks as the schedule (a mode makes its own); what
goes elsewhere is counted in ``LatecomerGroup.paths`` and reported once per reason in the log
``latecomer``.
"""

from __future__ import annotations

import logging
from collections import Counter
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllreduceOptions, PrefixStore, Store, Work

from runtime import modes
from runtime.configuration import Scheduled, configuration
from runtime.executor import Executor
from runtime.operation import SUMMABLE
from runtime.optireduce.group import OptiReduceGroup
from runtime.optireduce.options import Options
from runtime.pending import PendingWork
from runtime.reducer import Reducer
from runtime.verified import Late, Verified
from verify.errors import ArgumentError

BACKEND = "latecomer"
logger = logging.getLogger(BACKEND)


class LatecomerGroup(dist.ProcessGroup):
    """A process group whose allreduce runs in a mode or by a verified schedule.

    Attributes:
        paths: how many allreduces went which way (``schedule``, ``mode auto``, ..., or the reason
            why not).
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        timeout: timedelta,
        found: Scheduled | modes.Chosen,
    ) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]  # the stub knows one form only
        self.paths: Counter[str] = Counter()
        self._chosen = found if isinstance(found, modes.Chosen) else None
        self._verified: Verified | None = None
        self._late: tuple[int, ...] = ()
        if not isinstance(found, modes.Chosen):
            self._verified, self._late = found
        self._store, self._timeout = store, timeout
        self._executors: dict[str, Executor] = {}
        self._reducer: Reducer | None = None
        self._add_inner(
            "cpu",
            dist.ProcessGroup.BackendType.GLOO,
            dist.ProcessGroupGloo(PrefixStore("gloo", store), rank, size, timeout),
        )
        if torch.cuda.is_available():
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = timeout
            self._add_inner(
                "cuda",
                dist.ProcessGroup.BackendType.NCCL,
                dist.ProcessGroupNCCL(PrefixStore("nccl", store), rank, size, options),
            )

    def getBackendName(self) -> str:
        """The name under which torch knows the group."""
        return BACKEND

    def allreduce(  # type: ignore[override]  # the form that torch itself calls
        self, tensors: list[torch.Tensor], opts: AllreduceOptions | None = None
    ) -> Work:
        """Sum (or average) ``tensors[0]`` over the group, in place.

        Raises:
            RankFailure: the executor has given up a rank (or the work's ``wait`` raises it).
        """
        opts = AllreduceOptions() if opts is None else opts
        reason = self._unfit(tensors, opts)
        self._count(reason or self._usual)
        if reason:
            return super().allreduce(tensors, opts)
        average = _name(opts.reduceOp) == "AVG"
        runs = self.reducer if self._chosen else self._executor(tensors[0].device)
        return PendingWork(runs.submit(tensors[0], average=average))

    @property
    def reducer(self) -> Reducer:
        """What decides, in a mode; made with the first allreduce (collective)."""
        assert self._chosen is not None
        if self._reducer is None:
            self._reducer = Reducer(
                PrefixStore("latecomer/mode", self._store),
                self.rank(),
                self.size(),
                options=self._chosen.options,
                profile=self._chosen.profile,
                timeout_s=self._timeout.total_seconds(),
            )
        return self._reducer

    @property
    def late(self) -> tuple[int, ...]:
        """The late ranks in order of arrival; set them between steps, to the same everywhere."""
        return self._late

    @late.setter
    def late(self, late: Late) -> None:
        if self._verified is None:
            raise ArgumentError("late", late, "can't be set in a mode")
        self._late = self._verified.late_ranks(late)
        for executor in self._executors.values():
            executor.late = self._late

    def shutdown(self) -> None:
        """Release threads and connections (``destroy_process_group`` calls it)."""
        for executor in self._executors.values():
            executor.close()
        self._executors.clear()
        if self._reducer is not None:
            self._reducer.close()
        super().shutdown()

    def _add_inner(self, device: str, kind: Any, inner: Any) -> None:
        inner._set_sequence_number_for_group()
        if device == "cpu":
            self._set_default_backend(kind)
        self._register_backend(torch.device(device), kind, inner)

    def _unfit(self, tensors: list[torch.Tensor], opts: AllreduceOptions) -> str:
        """Why this allreduce can't go by the mode or schedule; empty if it can."""
        if self._verified is not None and self._verified.schedule.ranks != self.size():
            return f"{self.size()} ranks, the schedule is for {self._verified.schedule.ranks}"
        if self._chosen is not None:
            if any(rank >= self.size() for rank in self._chosen.options.late):
                return f"{self.size()} ranks, without {self._chosen.options.late}"
            if tensors[0].device.type != "cpu":
                return f"mode on {tensors[0].device.type}"
        if _name(opts.reduceOp) not in ("SUM", "AVG"):
            return f"operation {_name(opts.reduceOp)}"
        if len(tensors) != 1:
            return f"{len(tensors)} tensors at once"
        tensor = tensors[0]
        if tensor.dtype not in SUMMABLE or tensor.is_sparse or not tensor.is_contiguous():
            return f"{tensor.dtype}, {tensor.layout}, contiguous {tensor.is_contiguous()}"
        return ""

    @property
    def _usual(self) -> str:
        return f"mode {self._chosen.options.mode}" if self._chosen else "schedule"

    def _count(self, path: str) -> None:
        self.paths[path] += 1
        if self.paths[path] == 1:
            name = self._verified.name if self._verified else path
            how = f"by {name}" if path == self._usual else f"natively: {path}"
            logger.info("rank %d: allreduce goes %s", self.rank(), how)

    def _executor(self, device: torch.device) -> Executor:
        assert self._verified is not None
        if device.type not in self._executors:
            self._executors[device.type] = Executor(
                self._verified,
                PrefixStore(f"latecomer/{device.type}", self._store),
                self.rank(),
                self.size(),
                device=device,
                late=self._late,
                timeout_s=self._timeout.total_seconds(),
            )
        return self._executors[device.type]


def _name(operation: Any) -> str:
    """The name of a reduce operation (torch prints only its address)."""
    known = dist.ReduceOp.RedOpType.__members__.items()
    return next((name for name, value in known if operation == value), "unknown")


def _create(
    store: Store, rank: int, size: int, timeout: timedelta
) -> LatecomerGroup | OptiReduceGroup:
    found = configuration()
    if isinstance(found, Options):
        return OptiReduceGroup(store, rank, size, timeout, found)
    return LatecomerGroup(store, rank, size, timeout, found)


dist.Backend.register_backend(BACKEND, _create, devices=["cpu", "cuda"])
