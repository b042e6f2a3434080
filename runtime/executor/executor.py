"""The executor: runs proved schedules on tensors, several in flight, off the caller's thread.

CPU tensors go over TCP connections of our own, those of a device with streams (CUDA: over NCCL) by
``latecomer.runtime.device``; neither falls back to the other. Whatever goes wrong closes all
connections, so that nobody waits in vain; then the watchdog finds out who failed, and every
operation, present and future, raises that same error.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch

from latecomer.runtime.at_exit import close_at_exit, has_closed
from latecomer.runtime.executor.engine import DataEngine
from latecomer.runtime.executor.load import Late, Runnable, agree, require_size
from latecomer.runtime.executor.nccl.engine import DeviceEngine
from latecomer.runtime.executor.nccl.streams import Device, device_of
from latecomer.runtime.executor.tcp.connection import Mismatch
from latecomer.runtime.executor.tcp.loop import EventLoop
from latecomer.runtime.health.checks import require_times
from latecomer.runtime.health.native_work import NativeWaits
from latecomer.runtime.health.watchdog import Watchdog
from latecomer.runtime.network.control_channel import ControlChannel
from latecomer.runtime.network.mesh import connect
from latecomer.runtime.network.store_exchange import IsGone, StoreExchange
from latecomer.runtime.torch_versions import Store
from latecomer.runtime.work import (
    AllReduceWork,
    CollectiveWork,
    Observer,
    RankProgram,
    require_summable,
)
from latecomer.verify.errors import ArgumentError, LatecomerError

KEPT = 256  # programs: of a schedule, with a late rank


class Executor:
    """Runs schedules on a group of ranks.

    Args:
        schedules: from ``latecomer.load``: one, or several, among which each operation chooses.
        store: for connecting; all ranks of the group use it under the same prefix, nothing else.
        device: ``cpu`` (over TCP), a CUDA device (over NCCL; torch.distributed has to have its
            default group), or any other device with streams.
        late: the late rank of the first schedule, or several in the order of their arrival;
            default: as the file says. May be changed (``late``), on all before the same one.
        timeout_s: a rank that keeps others waiting for so long, without entering the operation or
            without going on in it, is given up; every survivor has raised by then.
        silence_s: how long a rank that others wait for may give no sign of life, however late it
            may be; default: 5 s at most, and where no connection breaks as long as ``timeout_s``.
        join_timeout_s: how long ranks may take until they have joined; default: ``timeout_s``.
        is_gone: whether a rank's own host says that its process has ended: then nobody waits for
            it to join, nor for a sign of life. Default: nobody can tell.
        observer: is told about steps and operations.
        native_waits: of the group's other collectives; they are under watch, too.

    Raises:
        ScheduleRefused: a schedule is for another number of ranks, or they differ between ranks.
        RankFailure: ranks that did not join within ``join_timeout_s``.
        ArgumentError: a bad ``late``, ``timeout_s``, ``silence_s`` or ``join_timeout_s``.

    Examples:
        Two ranks in one process; in training each is its own process, and the store a ``TCPStore``:

        >>> import torch
        >>> from latecomer import Executor, load, synth
        >>> from concurrent.futures import ThreadPoolExecutor
        >>> from torch.distributed import HashStore
        >>> verified, store = load(synth.generate(2)), HashStore()
        >>> def run(rank):
        ...     executor = Executor(verified, store, rank, 2, timeout_s=60)
        ...     total = executor.submit(torch.full((3,), rank + 1.0))  # an Operation
        ...     try:
        ...         return total.wait()
        ...     finally:
        ...         executor.close()
        >>> with ThreadPoolExecutor() as ranks:
        ...     print(*ranks.map(run, range(2)))
        tensor([3., 3., 3.]) tensor([3., 3., 3.])
    """

    def __init__(
        self,
        schedules: Runnable | Sequence[Runnable],
        store: Store,
        rank: int,
        size: int,
        *,
        device: Device | torch.device | str = "cpu",
        late: Late = None,
        timeout_s: float = 300.0,
        silence_s: float | None = None,
        join_timeout_s: float | None = None,
        is_gone: IsGone | None = None,
        observer: Observer | None = None,
        native_waits: NativeWaits | None = None,
    ) -> None:
        self.schedules = (schedules,) if isinstance(schedules, Runnable) else tuple(schedules)
        if not self.schedules:
            raise ArgumentError("schedules", schedules, "must be at least one")
        for verified in self.schedules:
            require_size(verified, size)
        if join_timeout_s is None:
            join_timeout_s = timeout_s
        require_times(timeout_s, silence_s, join_timeout_s)
        self.rank = rank
        self.size = size
        self.streams = device_of(device)
        self.device = self.streams.tensors if self.streams else torch.device(str(device))
        self.observer = observer or Observer()
        self.late = late
        self.entered = 0  # operations that this rank has submitted
        # is told when this rank's device has come to an operation; never of CPU tensors
        self.arrived: Callable[[int, float], None] = lambda operation, at_s: None
        self._closed: LatecomerError | None = None
        self._open: dict[int, CollectiveWork] = {}
        self._programs: dict[tuple[int, tuple[int, ...]], RankProgram] = {}
        group = StoreExchange(store, rank, size, join_timeout_s, is_gone)
        with contextlib.ExitStack() as started:  # closed if the start fails
            self.datagrams = ControlChannel(group.under("datagrams"))
            started.callback(self.datagrams.close)
            agree(group, self.schedules, self._late)
            self.watchdog = Watchdog(self.datagrams, timeout_s, silence_s, is_gone)
            started.callback(self.watchdog.close)
            limit_s = min(self.watchdog.limits.wait_s, join_timeout_s)
            self.engine = self._connect(dataclasses.replace(group, timeout_s=limit_s))
            started.pop_all()
        self.find_silent = self.watchdog.find_silent
        self.watchdog.describe = self._describe
        self.watchdog.add(self.engine)
        self.watchdog.on_trouble(self.engine.abort)
        self.watchdog.on_failure(self._fail_open)
        if native_waits is not None:
            native_waits.watch(self.watchdog)
        close_at_exit(self)

    @property
    def failure(self) -> LatecomerError | None:
        """Why this executor has failed, if it has."""
        return self.watchdog.failure or self._closed

    @property
    def late(self) -> tuple[int, ...]:
        """The late ranks of the first schedule from now on, in order of arrival."""
        return self._late

    @late.setter
    def late(self, late: Late) -> None:
        self._late = self.schedules[0].late_ranks(late)

    @property
    def timeout_s(self) -> float:
        """How long a rank may keep others waiting; may be changed at any time, on all ranks."""
        return self.watchdog.limits.timeout_s

    @timeout_s.setter
    def timeout_s(self, timeout_s: float) -> None:
        self.watchdog.limits.timeout_s = timeout_s

    def submit(
        self, tensor: torch.Tensor, *, schedule: int = 0, late: Late = None, average: bool = False
    ) -> CollectiveWork:
        """Start the sum (or average) of ``tensor`` over all ranks, in place; returns at once.

        All ranks must submit tensors of equal size and dtype, with the same schedule, late ranks
        and ``average``, in the same order.

        Args:
            tensor: dense and contiguous, on the executor's device.
            schedule: which of the executor's.
            late: default: ``late`` for the first schedule, for others as the file says.
            average: floating point only; every rank divides by the number of ranks *before* the
                sum, as DDP and NCCL do, so that small formats do not overflow.

        Raises:
            TensorError: a tensor that can't be carried.
            ArgumentError: no such schedule, or a bad ``late``.
            RankFailure: the executor has failed before.
        """
        late_ranks = self._late_ranks(schedule, late)
        work = self.open(AllReduceWork, tensor, average=average)
        self.start(work, schedule, late_ranks)
        return work

    def open(
        self, kind: type[CollectiveWork], tensor: torch.Tensor, *, average: bool, **more: Any
    ) -> CollectiveWork:
        """Enter an operation; its owner calls :meth:`start`, or runs it and calls :meth:`end`.

        Args:
            kind: of operation.
            tensor: which holds the result in the end.
            average: instead of a sum.
            more: what the kind has besides.
        """
        require_summable(tensor, self.device, average)
        if self.failure is not None:
            raise self.failure
        work = kind(self.entered, tensor, average, **more)
        self._open[work.number] = work
        self.entered += 1
        if self.streams is None:  # else it enters when its device comes to it
            self.watchdog.enter(work.number)
        if self.failure is not None:
            self._fail_open(self.failure)
        return work

    def make(self, schedule: int) -> None:
        """Make what operations by a schedule would have to wait for, unless it is there."""
        self.schedules[schedule].make()

    def start(self, work: CollectiveWork, schedule: int, late: tuple[int, ...]) -> None:
        """Run an open operation by a schedule; ``late``: in the order of their arrival."""
        if self.failure is not None:
            return  # it is settled, and its tensor the caller's again

        work.key = key = (schedule, late)
        program = self._programs.get(key)
        if program is None:
            program = self._programs[key] = self.schedules[schedule].program(self.rank, late)
            if len(self._programs) > KEPT:
                del self._programs[next(iter(self._programs))]

        chunks = self.schedules[schedule].schedule.chunks
        work.begin()
        elements = work.flat.numel()
        work.program = program
        work.bounds = tuple(elements * chunk // chunks for chunk in range(chunks + 1))
        self.hand_over(work)

    def hand_over(self, work: CollectiveWork) -> None:
        """Let the engine run an open operation; on a device natively, if it has no program."""
        try:
            self.engine.submit(work)
        except LatecomerError as error:
            self.end(work, error)
            raise

    def call_soon(self, call: Callable[[], None]) -> None:
        """Call it on the thread that moves the data, where it may take its time; CPU only.

        It is never called once the executor has failed or is closed.
        """
        assert isinstance(self.engine, EventLoop)
        self.engine.call_soon(call)

    def end(self, work: CollectiveWork, error: LatecomerError | None = None) -> None:
        """Settle an open operation; whoever takes it out of ``_open`` does."""
        if self._open.pop(work.number, None) is not None:
            if error is None and work.program is not None:
                work.finish()
            work.settle(error)
            self.observer.done(work)

    def abort(self, reason: str) -> None:
        """End all operations, here and on all ranks, with a RankFailure that names this rank.

        Returns at once; nobody takes this rank for dead, or waits for a time-out. What has failed
        or is closed already stays as it is.
        """
        self.watchdog.abort(reason)

    def close(self, *, at_once: bool = False) -> None:
        """Release threads and connections; what is not done after some seconds fails.

        ``at_once``: what is under way fails now.
        """
        has_closed(self)
        if at_once:
            self.engine.abort()
        self.engine.close()
        self.watchdog.close()
        self._closed = LatecomerError(f"rank {self.rank} has closed its executor")
        self._fail_open(self.failure or self._closed)
        self.datagrams.close()

    def _late_ranks(self, schedule: int, late: Late) -> tuple[int, ...]:
        if not 0 <= schedule < len(self.schedules):
            raise ArgumentError("schedule", schedule, f"must be in 0..{len(self.schedules) - 1}")
        if late is None and schedule == 0:
            return self._late
        return self.schedules[schedule].late_ranks(late)

    def _connect(self, group: StoreExchange) -> DataEngine:
        """What moves the data, connected with all other ranks (collective)."""
        if self.streams is None:
            return self._connect_tcp(group)
        return self._connect_transfers(self.streams, group)

    def _connect_tcp(self, group: StoreExchange) -> EventLoop:
        sockets_to, sockets_from = connect(
            group.under("data"),
            self.datagrams.address,
            self.datagrams.token,
            to=range(self.rank),
            origin=range(self.rank + 1, self.size),
        )
        return EventLoop(
            sockets_to | sockets_from,
            self.rank,
            self._most_phases(),
            self.observer,
            self.end,
            self._engine_failed,
        )

    def _connect_transfers(
        self,
        streams: Device,
        group: StoreExchange,
        others_idle: Callable[[], bool] = lambda: True,
        engine: Callable[..., DeviceEngine] = DeviceEngine,
    ) -> DeviceEngine:
        return engine(
            streams,
            group.under("data"),
            self._most_phases(),
            self.watchdog,
            self.observer,
            arrived=self._device_arrived,
            ended=self.end,
            failed=self._engine_failed,
            others_idle=others_idle,
        )

    def _most_phases(self) -> int:
        return max(len(verified.schedule.phases) for verified in self.schedules)

    def _device_arrived(self, operation: int, at_s: float) -> None:
        """This rank's device has come to an operation; to whom :attr:`arrived` tells it by now."""
        self.arrived(operation, at_s)

    def _describe(self, number: int | None = None) -> str:
        """What this rank takes an operation to be; default: its oldest one."""
        work = self._open.get(min(list(self._open), default=-1) if number is None else number)
        return work.description if work else ""

    def _engine_failed(self, noticed: str, error: Exception | None) -> None:
        """Something went wrong in the engine; not in consequence of an earlier failure."""
        if isinstance(error, Mismatch):
            doing = self._describe(error.operation) or str(error)
            self.watchdog.differs(error.peer, doing, noticed)
        elif error is not None:
            self.watchdog.broke(error)
        else:
            self.watchdog.fail(noticed)

    def _fail_open(self, error: LatecomerError) -> None:
        for work in list(self._open.values()):
            self.end(work, error)
