"""All-reduce by one kernel per operation: what an executor is, with kernels below.

Setup is collective, and ends the same way on all ranks: each says what it can, makes its symmetric
memory, compiles and loads the kernel, and after each of these all go on or none does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any, Generic, TypeVar

import torch

from latecomer.runtime.device.capability import agree_on_kernel, agree_that_done
from latecomer.runtime.device.combined import CombinedEngine
from latecomer.runtime.device.launcher import KernelEngine
from latecomer.runtime.device.layout import Layout
from latecomer.runtime.device.memory import SymmetricMemory, join
from latecomer.runtime.device.proofs import ProvedPrograms, rows_of, too_long
from latecomer.runtime.device.variants import Kernel, LoadedProgram
from latecomer.runtime.executor.closed_form import ClosedFormPart, proved_whole
from latecomer.runtime.executor.engine import DataEngine
from latecomer.runtime.executor.executor import KEPT, Executor
from latecomer.runtime.executor.load import Runnable, Verified
from latecomer.runtime.executor.nccl.streams import Device, device_of
from latecomer.runtime.host import host
from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.runtime.torch_versions import Store
from latecomer.runtime.work import CollectiveWork, require_summable
from latecomer.verify.device.program import device_program
from latecomer.verify.errors import ArgumentError, KernelUnavailable, TensorError

BLOCKS = 32  # few: all must be on the device at once, since one that waits never makes room
STAGING = 64 << 20  # bytes
DTYPES = frozenset({torch.float32, torch.bfloat16, torch.float16})  # compiling takes a while
Proved = TypeVar("Proved")
Loaded = TypeVar("Loaded")
CAPTURE = "Use transfers (device='transfers'), or leave all-reduces out of the graph"


class KernelExecutor(Executor, Generic[Proved, Loaded]):
    """An executor that has kernels: makes, proves and loads what they run.

    What that is, and whether anything else runs beside them, subclasses say: *proved* is what is
    known of a schedule, *loaded* what this rank runs of it for certain late ranks. What a kernel is
    launched with is proved, too (``latecomer.runtime.device.proofs``).

    Args:
        schedules, store, rank, size, options: see :class:`latecomer.Executor`.
        device: a CUDA device, or one with streams (``latecomer.runtime.device.simulated``, for
            which triton's interpreter runs the kernels).
        blocks: of a kernel, all of which must find a place on the device at once; staging: bytes
            of symmetric memory on each rank; both the same everywhere. What does not fit into the
            staging goes in pieces, of a third of it or so.
        dtypes: for which to compile, a second or two for each (triton keeps what it has compiled).

    Raises:
        KernelUnavailable: a rank can't run it; all ranks raise it, for the same reason.
        RankFailure, ScheduleRefused, ArgumentError: as :class:`latecomer.Executor`; ArgumentError
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
        streams = device_of(device)
        if streams is None:
            raise TensorError(
                f"{device} has no streams; latecomer.runtime.device.simulated has a device"
            )
        self._streams = streams
        self._dtypes = frozenset(dtypes)
        self._blocks = blocks
        self._staging = staging
        self._loaded: dict[tuple[int, tuple[int, ...]], Loaded] = {}
        self._proved: dict[int, Proved] = {}
        self._loading = host.RLock()  # some are made in the background
        super().__init__(schedules, store, rank, size, device=streams, **options)

    def make(self, schedule: int) -> None:
        """As the executor's; what kernels run is made, proved and loaded, too."""
        super().make(schedule)
        if not self.unfit(schedule):
            self._load(schedule, self.schedules[schedule].late)

    def unfit(self, schedule: int) -> str:
        """Why kernels do not run a schedule; empty if they do. Alike on all ranks."""
        raise NotImplementedError

    def _prove(self, schedule: int) -> Proved:
        """What is known of a schedule that fits."""
        raise NotImplementedError

    def _load_anew(self, proved: Proved, late: tuple[int, ...]) -> Loaded:
        """What this rank runs with ``late`` as late ranks; ScheduleRefused if it is not proved."""
        raise NotImplementedError

    def _load(self, schedule: int, late: tuple[int, ...]) -> Loaded:
        key = (schedule, late)
        with self._loading:
            if key not in self._loaded:
                if schedule not in self._proved:
                    self._proved[schedule] = self._prove(schedule)
                self._loaded[key] = self._load_anew(self._proved[schedule], late)
                if len(self._loaded) > KEPT:
                    del self._loaded[next(iter(self._loaded))]
            return self._loaded[key]

    def _loaded_for(self, work: CollectiveWork) -> Loaded:
        assert work.key is not None
        return self._load(*work.key)

    def _unfit_now(self, work: CollectiveWork) -> str:
        """Why no kernel runs an operation that has a program; empty if one does.

        ArgumentError where a graph is captured that can't hold it.
        """
        assert work.key is not None
        if work.flat.dtype not in self._dtypes:
            return f"no kernel is compiled for {work.flat.dtype}"
        if not (reason := self.unfit(work.key[0])):
            require_no_graph(self._streams)
        return reason

    def _fit(self) -> list[int]:
        """The schedules that kernels run; KernelUnavailable if there is none."""
        fit = [number for number in range(len(self.schedules)) if not self.unfit(number)]
        if not fit:
            self._require_fit(0)
        return fit

    def _require_fit(self, schedule: int) -> None:
        """KernelUnavailable if kernels do not run a schedule."""
        if reason := self.unfit(schedule):
            raise KernelUnavailable(f"{self.schedules[schedule].name}: {reason}")

    def _join(
        self, layout: Layout, group: StoreExchange, ranks_per_machine: int | None = None
    ) -> SymmetricMemory:
        """The memory of all ranks, or of those of this rank's machine (collective)."""
        names = sorted(str(dtype).removeprefix("torch.") for dtype in self._dtypes)
        settings = f"{layout} for {', '.join(names)}"
        agree_on_kernel(group, self._streams, settings, ranks_per_machine)
        near = group.under("memory")
        if ranks_per_machine is not None:
            machine, local_rank = divmod(self.rank, ranks_per_machine)
            near = dataclasses.replace(
                near.under(f"machine {machine}"), rank=local_rank, world_size=ranks_per_machine
            )
        memory = None
        problem = ""
        try:
            memory = join(layout, near, self.device)
        except (RuntimeError, OSError) as error:
            problem = repr(error)
        agree_that_done(group, "symmetric memory", problem)
        assert memory is not None
        return memory

    def _compiled(
        self, memory: SymmetricMemory, rank: int, group: StoreExchange, loaded: LoadedProgram
    ) -> Kernel:
        """The kernel, compiled and loaded on all ranks; ``rank`` is that among ``memory``'s."""
        kernel = Kernel(memory, rank)
        problem = ""
        try:
            kernel.compile(self._dtypes, loaded)
        except Exception as error:  # whatever it is: the others must know
            problem = repr(error)
        agree_that_done(group, "compiling", problem)
        return kernel


class OneKernelExecutor(KernelExecutor[ProvedPrograms, LoadedProgram]):
    """Has a kernel that runs a rank's whole part in a schedule; for ranks of one machine."""

    def arrivals_ns(self, work: CollectiveWork) -> tuple[int, ...]:
        """By rank, when its device began this operation: nanoseconds of a clock of its own.

        No host has waited for it. Modes take only a rank's own, on its host's clock
        (``latecomer.runtime.device.stamps``): that GPUs have the same time, nobody promises.
        ArgumentError if the operation is not done, or too long ago.
        """
        return self._kernels.arrivals_ns(work)

    def unfit(self, schedule: int) -> str:
        """Why kernels do not run a schedule; empty if they do. Alike on all ranks."""
        return too_long(_rows(self.schedules[schedule]))

    def _prove(self, schedule: int) -> ProvedPrograms:
        return ProvedPrograms(_whole(self.schedules[schedule]))

    def _load_anew(self, proved: ProvedPrograms, late: tuple[int, ...]) -> LoadedProgram:
        return LoadedProgram(proved.program(late), self.rank, self.device)

    def _connect_kernels(self, group: StoreExchange) -> KernelEngine:
        """The kernels' engine, for the schedules that kernels run (collective)."""
        group = group.under("kernel")
        fit = self._fit()
        slots = max(_slots(self.schedules[number]) for number in fit)
        layout = Layout.within(self._staging, self.size, self._blocks, slots)
        memory = self._join(layout, group)
        loaded = self._load(fit[0], self.schedules[fit[0]].late)
        self._kernels = KernelEngine(
            self._streams,
            memory,
            self._compiled(memory, self.rank, group, loaded),
            self.rank,
            self._loaded_for,
            entered=self.watchdog.enter,
            arrived=self._device_arrived,
            ended=self.end,
            failed=self._engine_failed,
        )
        return self._kernels


class KernelAllReduce(OneKernelExecutor):
    """Runs proved schedules on GPUs of one NVLink domain, a kernel for each operation.

    See :class:`KernelExecutor`. Raises KernelUnavailable for a schedule that kernels do not run.
    """

    def open(
        self, kind: type[CollectiveWork], tensor: torch.Tensor, *, average: bool, **more: Any
    ) -> CollectiveWork:
        """As the executor's; TensorError also for a dtype that was not compiled.

        ArgumentError while a CUDA graph is captured: an operation's epoch would be in the graph,
        and each replay would take what the last one has left for its own.
        """
        require_summable(tensor, self.device, average, self._dtypes)
        require_no_graph(self._streams)
        return super().open(kind, tensor, average=average, **more)

    def _connect(self, group: StoreExchange) -> DataEngine:
        for schedule in range(len(self.schedules)):
            self._require_fit(schedule)
        return self._connect_kernels(group)


class KernelsAndTransfers(OneKernelExecutor):
    """Kernels, and transfers for what none can: other dtypes, long programs, no program."""

    def _connect(self, group: StoreExchange) -> DataEngine:
        kernels = self._connect_kernels(group)
        try:
            transfers = self._connect_transfers(
                self._streams, group, others_idle=lambda: kernels.idle
            )
        except Exception:
            kernels.close()
            raise
        return CombinedEngine(kernels, transfers, self._unfit_now)


def require_no_graph(device: Device) -> None:
    """Raise ArgumentError where the current stream is captured in a graph."""
    if device.is_capturing():
        raise ArgumentError("capture", "a CUDA graph", "can't hold a kernel's epoch", CAPTURE)


def _whole(runnable: Runnable) -> Verified:
    """The whole of a schedule of which a rank may hold its own part alone."""
    if isinstance(runnable, ClosedFormPart):
        return proved_whole(runnable.schedule.ranks, runnable.schedule.chunks)
    assert isinstance(runnable, Verified)
    return runnable


def _rows(runnable: Runnable) -> int:
    """Of the device program; a closed form moves each chunk at most 2 n times, and is not made."""
    if isinstance(runnable, ClosedFormPart):
        return 4 * runnable.schedule.ranks * runnable.schedule.chunks
    return rows_of(runnable.schedule)


def _slots(runnable: Runnable) -> int:
    """Of the device program, at most; a closed form's ranks receive each chunk about twice."""
    if isinstance(runnable, ClosedFormPart):
        return 2 * runnable.schedule.chunks + runnable.schedule.ranks
    return device_program(runnable.schedule).slots
