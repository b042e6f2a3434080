"""The methods to all-reduce that the self-test checks and times: ours, NCCL's, and PyTorch's.

Ours run a schedule: ``kernel`` by one Triton kernel per operation, ``transfers`` round by round
over NCCL (Gloo on the simulated device), ``stages`` by kernels inside machines and transfers
between them. They are compared with the library's own all-reduce and
with those over PyTorch's symmetric memory, which take only tensors that are made for them. A method
that can't be tried says why, on all ranks alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist

from latecomer.runtime.executor.executor import Executor
from latecomer.runtime.executor.load import Verified
from latecomer.runtime.selftest.device.rank import RankContext
from latecomer.runtime.work import ON_HOST
from latecomer.verify.errors import KernelUnavailable, LatecomerError

FLOATS = (torch.float32, torch.float16, torch.bfloat16)

# Triton's interpreter is slow: few blocks, and so little staging memory that tensors of the cases
# are cut into several pieces all the same.
INTERPRETED_BLOCKS = 2
INTERPRETED_STAGING_PER_RANK = 2048  # bytes

WaitForResult = Callable[[], torch.Tensor]
"""Waits as a job does, and gives the result."""


class ScheduleChoice(NamedTuple):
    """What ours run: a schedule, by its index in what the method was made with, and for whom.

    ``late`` are the ranks that take the places of its late ranks; none where it has none.
    """

    schedule: int
    late: tuple[int, ...] = ()


class NotTried(LatecomerError):
    """A method can't be tried here; the message says why. All ranks raise it together."""


class Method(Protocol):
    """A method that is ready to be used; all ranks submit the same, in the same order.

    Others' methods do not look at ``choice``.
    """

    def buffer(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        """A tensor that it can take (collective)."""

    def submit(self, tensor: torch.Tensor, average: bool, choice: ScheduleChoice) -> WaitForResult:
        """Start."""

    def close(self) -> None:
        """Give back what it holds."""


MakeMethod = Callable[[RankContext, Sequence[Verified]], Method]
"""(this rank, schedules) -> a method, or NotTried; collective."""


class _AnyTensorMethod:
    """What takes any tensor of the device."""

    def __init__(self, context: RankContext) -> None:
        self._context = context

    def buffer(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        """Not yet written."""
        return torch.empty(numel, dtype=dtype, device=self._context.tensors)

    def close(self) -> None:
        """Nothing is held."""


class _Library(_AnyTensorMethod):
    """``dist.all_reduce``."""

    def submit(self, tensor: torch.Tensor, average: bool, choice: ScheduleChoice) -> WaitForResult:
        """NCCL's streams are ordered behind ours, and ours behind them."""
        assert not average
        self._context.launch(lambda: dist.all_reduce(tensor))
        return lambda: tensor


class _Scheduled(_AnyTensorMethod):
    """An executor, as a communication hook uses it."""

    def __init__(self, context: RankContext, executor: Executor) -> None:
        super().__init__(context)
        self._executor = executor

    def submit(self, tensor: torch.Tensor, average: bool, choice: ScheduleChoice) -> WaitForResult:
        """Its streams are ordered behind the current one."""
        work = self._executor.submit(
            tensor, schedule=choice.schedule, late=choice.late or None, average=average
        )
        return lambda: work.wait(ON_HOST)

    def close(self) -> None:
        """Close the executor."""
        self._executor.close()


class _Symmetric:
    """One of ``torch.ops.symm_mem``."""

    def __init__(self, name: str, context: RankContext) -> None:
        self._name = name
        self._context = context

    def buffer(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        """Symmetric memory, on which all ranks have met."""
        from latecomer.runtime.torch_versions import symmetric_tensor

        reason = ""
        try:
            tensor, has_multicast = symmetric_tensor(numel, dtype, self._context.tensors)
        except RuntimeError as error:
            reason = f"torch gave no symmetric memory: {str(error).splitlines()[0]}"
        else:
            if self._name == "multimem" and not has_multicast:
                reason = "no multicast between these GPUs (NVLink SHARP)"
        if reason := self._context.agree(reason):
            raise NotTried(reason)
        return tensor

    def submit(self, tensor: torch.Tensor, average: bool, choice: ScheduleChoice) -> WaitForResult:
        """On the current stream."""
        assert not average
        in_place = "" if self._name == "one_shot" else "_"
        operation = getattr(torch.ops.symm_mem, f"{self._name}_all_reduce{in_place}")
        group: Any = dist.group.WORLD
        try:
            result: torch.Tensor = operation(tensor, "sum", group.group_name)
        except RuntimeError as error:  # on all ranks: it looks at the tensor, before it begins
            raise NotTried(f"{operation}: {str(error).splitlines()[0]}") from error
        return lambda: result

    def close(self) -> None:
        """The tensors are held by whoever asked for them."""


def kernel(context: RankContext, schedules: Sequence[Verified]) -> Method:
    """Our kernel: NotTried where no rank may use it, with the reason on which all agreed."""

    def find() -> type[Executor]:
        from latecomer.runtime.device.allreduce import KernelAllReduce

        return KernelAllReduce

    return _by_kernels("kernel", find, context, schedules)


def stages(machines: int, context: RankContext, schedules: Sequence[Verified]) -> Method:
    """Kernels inside each of so many machines: NotTried where no rank may use them."""

    def find() -> type[Executor]:
        from latecomer.runtime.device.several_machines import KernelsInMachines

        return KernelsInMachines

    _require_library(context)
    per_machine = context.world_size // machines
    return _by_kernels("stages", find, context, schedules, ranks_per_machine=per_machine)


def _by_kernels(
    name: str,
    find: Callable[[], Callable[..., Executor]],
    context: RankContext,
    schedules: Sequence[Verified],
    **options: Any,
) -> Method:
    """An executor that ``find`` imports, which takes triton; NotTried where there is none."""
    reason = ""
    try:
        make = find()
    except ImportError as error:
        reason = f"triton can't be imported ({error})"
    if reason := context.agree(reason):
        raise NotTried(reason)

    options |= _kernel_options(context)
    store = context.fresh_store(name)
    try:
        executor = make(schedules, store, context.rank, context.world_size, **options)
    except KernelUnavailable as error:
        raise NotTried(str(error)) from error
    return _Scheduled(context, executor)


def transfers(context: RankContext, schedules: Sequence[Verified]) -> Method:
    """The executor over the device's library."""
    _require_library(context)
    store = context.fresh_store("transfers")
    options = _executor_options(context)
    executor = Executor(schedules, store, context.rank, context.world_size, **options)
    return _Scheduled(context, executor)


def _kernel_options(context: RankContext) -> dict[str, Any]:
    options = _executor_options(context)
    if context.kind == "simulated":
        options["blocks"] = INTERPRETED_BLOCKS
        options["staging"] = INTERPRETED_STAGING_PER_RANK * context.world_size
    return options


def _executor_options(context: RankContext) -> dict[str, Any]:
    """Ranks that fail are named by the executor before the self-test's own limit is over."""
    return {"device": context.device, "timeout_s": context.timeout_s / 2}


def library(context: RankContext, _: Sequence[Verified]) -> Method:
    """The library's own."""
    _require_library(context)
    return _Library(context)


def _require_library(context: RankContext) -> None:
    if context.library_problem:
        raise NotTried(context.library_problem)


def symmetric(name: str, context: RankContext, _: Sequence[Verified]) -> Method:
    """``one_shot``, ``two_shot`` or ``multimem`` of PyTorch's symmetric memory."""
    return _Symmetric(name, context)


def methods_for(kind: str, machines: int = 1) -> dict[str, MakeMethod]:
    """All of them for a kind of device, and for ranks of so many machines, by name."""
    makers: dict[str, MakeMethod] = {"kernel": kernel, "transfers": transfers}
    if machines > 1:
        makers = {"stages": partial(stages, machines), "transfers": transfers}
    if kind == "simulated":
        makers["gloo"] = library
        return makers

    makers["nccl"] = library
    for name in ("one_shot", "two_shot", "multimem"):
        makers[name] = partial(symmetric, name)
    return makers
