"""The process group backend ``latecomer``: all_reduce by a verified schedule, the rest native.

    import runtime
    runtime.configure("schedule.json", late=7)        # or LATECOMER_SCHEDULE and LATECOMER_LATE
    dist.init_process_group(backend="latecomer")

Every collective but ``allreduce`` runs through an inner Gloo (CPU) or NCCL (CUDA) backend. An
``allreduce`` goes by the schedule when the group has as many ranks and the operation is SUM or
AVG on one tensor of a dtype that can be carried; what goes elsewhere is counted in
``LatecomerGroup.paths`` and reported once per reason in the log ``latecomer``.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from datetime import timedelta
from typing import Any, Literal, overload

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllreduceOptions, PrefixStore, Store, Work

from runtime.executor import Executor
from runtime.operation import SUMMABLE, Operation
from runtime.optireduce.group import OptiReduceGroup
from runtime.optireduce.options import Options
from runtime.verified import Late, Verified, load
from verify.errors import ArgumentError
from verify.schedule import Schedule

BACKEND = "latecomer"
logger = logging.getLogger(BACKEND)

_configured: tuple[Verified, tuple[int, ...]] | None = None
_optireduce: Options | None = None


@overload
def configure(
    schedule: str | os.PathLike[str] | Schedule | Verified, *, late: Late = None
) -> Verified: ...


@overload
def configure(*, algorithm: Literal["optireduce"], options: Options | None = None) -> Options: ...


def configure(
    schedule: str | os.PathLike[str] | Schedule | Verified | None = None,
    *,
    late: Late = None,
    algorithm: Literal["schedule", "optireduce"] = "schedule",
    options: Options | None = None,
) -> Verified | Options:
    """Choose the schedule of process groups made from now on with ``backend="latecomer"``.

    Args:
        schedule: a file, or an object; it is verified here.
        late: the late rank, or several in the order of their arrival; default: as the schedule
            says.
        algorithm: ``optireduce`` needs no schedule, ``options`` are its own; also by
            LATECOMER_ALGORITHM=optireduce.

    Raises:
        FormatError, ScheduleRefused: see :func:`runtime.load`.
        ArgumentError: a bad ``late``, or no schedule.
    """
    global _configured, _optireduce  # noqa: PLW0603  (init_process_group has no way to pass it)
    if algorithm == "optireduce":
        _optireduce = options or Options()
        return _optireduce
    if schedule is None:
        raise ArgumentError("schedule", schedule, "must be a file or a schedule")
    _optireduce = None
    verified = load(schedule)
    _configured = verified, verified.late_ranks(late)
    return verified


def _configuration() -> tuple[Verified, tuple[int, ...]]:
    if _configured is not None:
        return _configured
    path = os.environ.get("LATECOMER_SCHEDULE")
    if not path:
        raise ArgumentError(
            "LATECOMER_SCHEDULE",
            path,
            "the backend needs a schedule",
            "Set it to a file made with `synth generate`, or call runtime.configure() first",
        )
    verified, late = load(path), os.environ.get("LATECOMER_LATE")
    if not late:
        return verified, verified.late
    numbers = late.split(",")
    if not all(number.strip().isdecimal() for number in numbers):
        raise ArgumentError(
            "LATECOMER_LATE", late, "must be a rank, or several, separated by commas"
        )
    return verified, verified.late_ranks([int(number) for number in numbers])


class _Work(Work):
    """An operation as torch's C++ code wants to see it."""

    def __init__(self, operation: Operation) -> None:
        super().__init__()
        self._operation = operation

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        self._operation.wait(timeout)
        return True

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        return self._operation.future(as_list=True)


class LatecomerGroup(dist.ProcessGroup):
    """A process group whose allreduce runs a verified schedule.

    Attributes:
        paths: how many allreduces went which way (``schedule``, or the reason why not).
    """

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]  # the stub knows one form only
        self.paths: Counter[str] = Counter()
        self._verified, self._late = _configuration()
        self._store, self._timeout = store, timeout
        self._executors: dict[str, Executor] = {}
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
        self._count(reason or "schedule")
        if reason:
            return super().allreduce(tensors, opts)
        average = _name(opts.reduceOp) == "AVG"
        operation = self._executor(tensors[0].device).submit(tensors[0], average=average)
        return _Work(operation)

    @property
    def late(self) -> tuple[int, ...]:
        """The late ranks in order of arrival; set them between steps, to the same everywhere."""
        return self._late

    @late.setter
    def late(self, late: Late) -> None:
        self._late = self._verified.late_ranks(late)
        for executor in self._executors.values():
            executor.late = self._late

    def shutdown(self) -> None:
        """Release threads and connections (``destroy_process_group`` calls it)."""
        for executor in self._executors.values():
            executor.close()
        self._executors.clear()
        super().shutdown()

    def _add_inner(self, device: str, kind: Any, inner: Any) -> None:
        inner._set_sequence_number_for_group()
        if device == "cpu":
            self._set_default_backend(kind)
        self._register_backend(torch.device(device), kind, inner)

    def _unfit(self, tensors: list[torch.Tensor], opts: AllreduceOptions) -> str:
        """Why this allreduce can't go by the schedule; empty if it can."""
        if self._verified.schedule.ranks != self.size():
            return f"{self.size()} ranks, the schedule is for {self._verified.schedule.ranks}"
        if _name(opts.reduceOp) not in ("SUM", "AVG"):
            return f"operation {_name(opts.reduceOp)}"
        if len(tensors) != 1:
            return f"{len(tensors)} tensors at once"
        tensor = tensors[0]
        if tensor.dtype not in SUMMABLE or tensor.is_sparse or not tensor.is_contiguous():
            return f"{tensor.dtype}, {tensor.layout}, contiguous {tensor.is_contiguous()}"
        return ""

    def _count(self, path: str) -> None:
        self.paths[path] += 1
        if self.paths[path] == 1:
            how = f"by {self._verified.name}" if path == "schedule" else f"natively: {path}"
            logger.info("rank %d: allreduce goes %s", self.rank(), how)

    def _executor(self, device: torch.device) -> Executor:
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
    algorithm = os.environ.get("LATECOMER_ALGORITHM", "schedule")
    if algorithm not in ("schedule", "optireduce"):
        raise ArgumentError("LATECOMER_ALGORITHM", algorithm, "must be schedule or optireduce")
    if _optireduce or (algorithm == "optireduce" and not _configured):
        return OptiReduceGroup(store, rank, size, timeout, _optireduce or Options())
    return LatecomerGroup(store, rank, size, timeout)


dist.Backend.register_backend(BACKEND, _create, devices=["cpu", "cuda"])
