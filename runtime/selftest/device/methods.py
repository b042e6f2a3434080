"""The ways to all-reduce that the self-test checks and times: ours, NCCL's, and PyTorch's.

Ours run a schedule: ``kernel`` by one Triton kernel per operation, ``transfers`` round by round
over NCCL (Gloo on the simulated device). They are compared with the library's own all-reduce and
with those over PyTorch's symmetric memory, which take only tensors that are made for them. A way
that can't be tried says why, on all ranks alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist

from runtime.executor.executor import Executor
from runtime.executor.load import Verified
from runtime.selftest.device.place import Place
from runtime.work import ON_HOST
from verify.errors import KernelUnavailable, LatecomerError

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
BLOCKS = 2  # in triton's interpreter; bytes for each rank, to cut into pieces
STAGING = 2048
Wait = Callable[[], torch.Tensor]
"""Waits as a job does, and gives the result."""


class What(NamedTuple):
    """What ours run: the number of a schedule, and who takes the place of its late ranks."""

    schedule: int
    late: tuple[int, ...] = ()


class NotTried(LatecomerError):
    """A way can't be tried here; the message says why. All ranks raise it together."""


class Method(Protocol):
    """A way that is ready to be used; all ranks submit the same, in the same order.

    Others' ways do not look at ``what``.
    """

    def buffer(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        """A tensor that it can take (collective)."""

    def submit(self, tensor: torch.Tensor, average: bool, what: What) -> Wait:
        """Start."""

    def close(self) -> None:
        """Give back what it holds."""


Make = Callable[[Place, Sequence[Verified]], Method]
"""(place, schedules) -> a way, or NotTried; collective."""


class _Ordinary:
    """What takes any tensor of the device."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def buffer(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        """Not yet written."""
        return torch.empty(numel, dtype=dtype, device=self._place.tensors)

    def close(self) -> None:
        """Nothing is held."""


class _Library(_Ordinary):
    """``dist.all_reduce``."""

    def submit(self, tensor: torch.Tensor, average: bool, what: What) -> Wait:
        """NCCL's streams are ordered behind ours, and ours behind them."""
        assert not average
        self._place.launch(lambda: dist.all_reduce(tensor))
        return lambda: tensor


class _Scheduled(_Ordinary):
    """An executor, as a communication hook uses it."""

    def __init__(self, place: Place, executor: Executor) -> None:
        super().__init__(place)
        self._executor = executor

    def submit(self, tensor: torch.Tensor, average: bool, what: What) -> Wait:
        """Its streams are ordered behind the current one."""
        late = what.late or None
        work = self._executor.submit(tensor, schedule=what.schedule, late=late, average=average)
        return lambda: work.wait(ON_HOST)

    def close(self) -> None:
        """Close the executor."""
        self._executor.close()


class _Symmetric:
    """One of ``torch.ops.symm_mem``."""

    def __init__(self, name: str, place: Place) -> None:
        self._name = name
        self._place = place

    def buffer(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        """Symmetric memory, on which all ranks have met."""
        from runtime.torch_versions import symmetric_tensor

        reason = ""
        try:
            tensor, multicast = symmetric_tensor(numel, dtype, self._place.tensors)
        except RuntimeError as error:
            reason = f"torch gave no symmetric memory: {str(error).splitlines()[0]}"
        else:
            if self._name == "multimem" and not multicast:
                reason = "no multicast between these GPUs (NVLink SHARP)"
        if reason := self._place.agree(reason):
            raise NotTried(reason)
        return tensor

    def submit(self, tensor: torch.Tensor, average: bool, what: What) -> Wait:
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


def kernel(place: Place, schedules: Sequence[Verified]) -> Method:
    """Our kernel: NotTried where no rank may use it, with the reason on which all agreed."""
    reason = ""
    try:
        from runtime.device.allreduce import KernelAllReduce
    except ImportError as error:
        reason = f"triton can't be imported ({error})"
    if reason := place.agree(reason):
        raise NotTried(reason)
    where = place.fresh_store("kernel"), place.rank, place.size
    options = _options(place)
    if place.kind == "simulated":
        options |= {"blocks": BLOCKS, "staging": STAGING * place.size}
    try:
        return _Scheduled(place, KernelAllReduce(schedules, *where, **options))
    except KernelUnavailable as error:
        raise NotTried(str(error)) from error


def transfers(place: Place, schedules: Sequence[Verified]) -> Method:
    """The executor over the device's library."""
    _require_library(place)
    where = place.fresh_store("transfers"), place.rank, place.size
    return _Scheduled(place, Executor(schedules, *where, **_options(place)))


def _options(place: Place) -> dict[str, Any]:
    """Ranks that fail are named by the executor before the self-test's own limit is over."""
    return {"device": place.device, "timeout_s": place.timeout_s / 2}


def library(place: Place, _: Sequence[Verified]) -> Method:
    """The library's own."""
    _require_library(place)
    return _Library(place)


def _require_library(place: Place) -> None:
    if place.no_library:
        raise NotTried(place.no_library)


def symmetric(name: str, place: Place, _: Sequence[Verified]) -> Method:
    """``one_shot``, ``two_shot`` or ``multimem`` of PyTorch's symmetric memory."""
    return _Symmetric(name, place)


def ways(kind: str) -> dict[str, Make]:
    """All of them for a kind of device, by name."""
    ours: dict[str, Make] = {"kernel": kernel, "transfers": transfers}
    if kind == "simulated":
        return ours | {"gloo": library}
    names = "one_shot", "two_shot", "multimem"
    return ours | {"nccl": library} | {name: partial(symmetric, name) for name in names}
