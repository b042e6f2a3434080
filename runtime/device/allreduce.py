"""All-reduce by one kernel per operation: what an executor is, with kernels below.

Setup is collective, and ends the same way on all ranks: each says what it can, makes its symmetric
memory, compiles and loads the kernel, and after each of these all go on or none does.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Any

import torch

from runtime.device.capability import agree_on_kernel, agree_that_done
from runtime.device.launcher import KernelEngine
from runtime.device.layout import Layout
from runtime.device.memory import SymmetricMemory, join
from runtime.device.streams import Device, device_of
from runtime.device.variants import Kernel, LoadedProgram
from runtime.executor.closed_form import ClosedForm
from runtime.executor.executor import KEPT, Executor
from runtime.executor.load import Runnable, Verified, load, require_summable
from runtime.network.store_exchange import StoreExchange
from runtime.torch_versions import PrefixStore, Store
from runtime.work import AllReduceWork
from verify.device.program import device_program
from verify.errors import ArgumentError, KernelUnavailable, TensorError

BLOCKS = 32
STAGING = 64 << 20  # bytes
DTYPES = frozenset({torch.float32, torch.bfloat16, torch.float16})

logger = logging.getLogger("latecomer")


class KernelAllReduce(Executor):
    """Runs proved schedules on GPUs of one NVLink domain, a kernel for each operation.

    Args:
        schedules, store, rank, size, options: see :class:`runtime.Executor`.
        device: a CUDA device, or one with streams (``runtime.device.simulated``, for which triton's
            interpreter runs the kernels).
        blocks: of a kernel, all of which must find a place on the device at once; staging: bytes
            of symmetric memory on each rank; both the same everywhere. What does not fit into the
            staging goes in pieces, of a third of it or so.
        dtypes: for which to compile, a second or two for each (triton keeps what it has compiled).

    Raises:
        KernelUnavailable: a rank can't run it; all ranks raise it, for the same reason.
        RankFailure, ScheduleRefused, ArgumentError: as :class:`runtime.Executor`; ArgumentError
            also for too little staging.
    """

    def __init__(
        self,
        schedules: Runnable | Sequence[Runnable],
        store: Store,
        rank: int,
        size: int,
        *,
        device: Device | torch.device | str = "cuda",
        blocks: int = BLOCKS,
        staging: int = STAGING,
        dtypes: Collection[torch.dtype] = DTYPES,
        **options: Any,
    ) -> None:
        found = device_of(device)
        if found is None:
            raise TensorError(f"{device} has no streams; runtime.device.simulated has a device")
        self._streams, self._dtypes = found, frozenset(dtypes)
        self._blocks, self._staging = blocks, staging
        self._loaded: dict[tuple[int, tuple[int, ...]], LoadedProgram] = {}
        self._whole: dict[int, Verified] = {}
        super().__init__(schedules, store, rank, size, device=found.tensors, **options)

    def open(self, tensor: torch.Tensor, average: bool) -> AllReduceWork:
        """As the executor's; TensorError also for a dtype that was not compiled.

        ArgumentError while a CUDA graph is captured: an operation's epoch would be in the graph,
        and each replay would take what the last one has left for its own.
        """
        require_summable(tensor, self.device, average, self._dtypes)
        if self._streams.is_capturing():
            remedy = "Capture transfers (runtime.Executor), or leave all-reduces out of the graph"
            raise ArgumentError("capture", "a CUDA graph", "can't hold a kernel's epoch", remedy)
        return super().open(tensor, average)

    def arrivals_ns(self, work: AllReduceWork) -> tuple[int, ...]:
        """By rank, when its device began this operation: nanoseconds of a clock of its own.

        No host has waited for it. The clocks of the GPUs of one machine agree to some microseconds.
        ArgumentError if the operation is not done, or too long ago.
        """
        return self._kernels.arrivals_ns(work)

    def _connected(self, group: StoreExchange) -> KernelEngine:  # type: ignore[override]
        group = group.under("kernel")
        slots = max(
            device_program(each.schedule).slots
            for each in map(self._proved, range(len(self.schedules)))
        )
        layout = Layout.within(self._staging, self.size, self._blocks, slots)
        names = sorted(str(dtype).removeprefix("torch.") for dtype in self._dtypes)
        agree_on_kernel(group, self.device, f"{layout} for {', '.join(names)}")
        memory, problem = None, ""
        try:
            memory = join(layout, group.under("memory"), self.device)
        except (RuntimeError, OSError) as error:
            problem = repr(error)
        agree_that_done(group, "symmetric memory", problem)
        assert memory is not None
        kernel = self._compiled(memory, group)
        place = self._streams, memory, kernel, self.rank
        self._kernels = KernelEngine(*place, self._program_of, self.end, self._engine_failed)
        return self._kernels

    def _compiled(self, memory: SymmetricMemory, group: StoreExchange) -> Kernel:
        """The kernel, compiled and loaded on all ranks."""
        kernel, problem = Kernel(memory, self.rank), ""
        try:
            kernel.compile(self._dtypes, self._load(0, self.schedules[0].late))
        except Exception as error:  # whatever it is: the others must know
            problem = repr(error)
        agree_that_done(group, "compiling", problem)
        return kernel

    def _proved(self, schedule: int) -> Verified:
        """The whole of a schedule of which a rank may hold its own part alone."""
        if schedule not in self._whole:
            runnable = self.schedules[schedule]
            if isinstance(runnable, ClosedForm):
                from synth.straggler.generate import generate

                n, k = runnable.schedule.ranks, runnable.schedule.chunks
                runnable = load(generate(n, chunks=k, owners="free"))
            assert isinstance(runnable, Verified)
            self._whole[schedule] = runnable
        return self._whole[schedule]

    def _load(self, schedule: int, late: tuple[int, ...]) -> LoadedProgram:
        key = schedule, late
        if key not in self._loaded:
            program = device_program(self._proved(schedule).for_late(late))
            self._loaded[key] = LoadedProgram(program, self.rank, self.device)
            if len(self._loaded) > KEPT:
                del self._loaded[next(iter(self._loaded))]
        return self._loaded[key]

    def _program_of(self, work: AllReduceWork) -> LoadedProgram:
        assert work.key is not None
        return self._load(*work.key)


def kernel_or_transfers(
    schedules: Runnable | Sequence[Runnable],
    store: Store,
    rank: int,
    size: int,
    *,
    device: Device | torch.device | str = "cuda",
    **options: Any,
) -> tuple[Executor, str]:
    """The kernel if all ranks can run it; else transfers, and why. Collective; logged, too."""
    try:
        under = PrefixStore("kernels", store)
        return KernelAllReduce(schedules, under, rank, size, device=device, **options), ""
    except KernelUnavailable as error:
        logger.warning("rank %d: no kernel, transfers instead: %s", rank, error)
        place = device if isinstance(device, torch.device | str) else device.tensors
        under = PrefixStore("transfers", store)
        return Executor(schedules, under, rank, size, device=place, **options), str(error)
