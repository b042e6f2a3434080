"""The executor: runs proved schedules on tensors, several in flight, off the caller's thread.

An engine moves the data (``runtime.executor.movers``): which one follows from the device.

Failure: whatever goes wrong in the engine stops it and closes all connections (nobody waits in
vain any more), then the board finds out who is to blame, and every operation of this executor,
present and future, raises that same error. All of it happens within ``timeout_s`` of the wait that
failed, or, where that rank is alive and has entered the operation, of its last sign of going on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Protocol

import torch

from runtime.executor.load import Late, Verified, require_size
from runtime.executor.movers import engine
from runtime.executor.operation import Mismatch, Observer, Operation
from runtime.executor.preflight import agree, require_summable
from runtime.executor.program import PhasePlan, plan
from runtime.health.diagnosis import RankStatus, WaitFor, diagnose
from runtime.health.native_work import NativeWaits
from runtime.health.old_protocol import HealthProtocol
from runtime.health.old_watchdog import Watchdog
from runtime.network.control_channel import ControlChannel
from runtime.torch_versions import PrefixStore, Store
from verify.errors import ArgumentError, LatecomerError, RankFailure

LONGEST_GRACE_S = 5.0
ASK_AGAIN_SHARE = 0.25  # of the grace period, on top of it: to ask once more with the alarm
WAIT_SHARE = 0.9  # of the time left for waits: the rest is for reacting
TOLD_TEXT = 500  # characters of an exception that others are told
CLOSE_S = 5.0


class OwnerHooks(Protocol):
    """What the owner of an executor does beyond it: operations that run elsewhere, other waits."""

    @property
    def moved_s(self) -> float:
        """When something outside last went on (``time.monotonic()``)."""

    def waiting(self) -> tuple[WaitFor, float] | None:
        """What this rank waits for outside, and since when."""

    def failed(self, error: LatecomerError) -> None:
        """The executor has failed, with this error; called once, any thread."""


class Executor:
    """Runs schedules on a group of ranks.

    Args:
        schedules: one schedule from :func:`runtime.load`, or several, among which each operation
            chooses.
        store: for connecting; every rank of the group, and nothing else, uses it under the same
            prefix.
        rank, size: this rank and the number of ranks of the group.
        device: ``cpu`` (over TCP) or a CUDA device (over NCCL).
        late: the late rank of the first schedule, or several in the order of their arrival;
            default: as the file says. May be changed between operations (:attr:`late`), on all
            ranks before the same one.
        timeout_s: a rank that keeps others waiting for so long, without entering the operation or
            without going on in it, is given up; every survivor has raised by then.
        observer: is told about steps and operations.
        outside: where not all operations run here: its waits count as this rank's.
        native_waits: of the group's other collectives; they are under watch, too, and end when a
            rank has failed.

    Attributes:
        schedules: those that operations may choose.
        datagrams: small messages between the ranks; other channels than ``board`` are free.
        failure: why this executor has failed, if it has.

    Raises:
        ScheduleRefused: a schedule is for another number of ranks, or they differ between ranks.
        RankFailure: ranks that did not join within ``timeout_s``.
        ArgumentError: a bad ``late`` or ``timeout_s``.
    """

    def __init__(
        self,
        schedules: Verified | Sequence[Verified],
        store: Store,
        rank: int,
        size: int,
        *,
        device: torch.device | str = "cpu",
        late: Late = None,
        timeout_s: float = 300.0,
        observer: Observer | None = None,
        outside: OwnerHooks | None = None,
        native_waits: NativeWaits | None = None,
    ) -> None:
        self.schedules = (schedules,) if isinstance(schedules, Verified) else tuple(schedules)
        if not self.schedules:
            raise ArgumentError("schedules", schedules, "must be at least one")
        for verified in self.schedules:
            require_size(verified, size)
        if not timeout_s > 0:
            raise ArgumentError("timeout_s", timeout_s, "must be positive")
        self.rank, self.size = rank, size
        self.device = torch.device(device)
        self.observer = observer or Observer()
        self._outside, self._native_waits = outside, native_waits
        self.failure: LatecomerError | None = None
        self._timeout_s = timeout_s
        self._late = self.schedules[0].late_ranks(late)
        self._entered = 0
        self._failing = threading.Lock()
        self._failed = threading.Event()
        self._open: dict[int, Operation] = {}
        self._planned: dict[tuple[int, tuple[int, ...]], tuple[PhasePlan, ...]] = {}
        self._broken = self._differs = ""
        self._differs_from: int | None = None
        self.datagrams = ControlChannel(
            PrefixStore("datagrams", store), rank, size, start_timeout_s=timeout_s
        )
        limit_s, ask_s = self._limits_s()
        try:
            agree(store, rank, size, self.schedules, self._late, timeout_s)
            self._engine = engine(
                PrefixStore("data", store),
                self.datagrams,
                self.device,
                [verified.schedule for verified in self.schedules],
                limit_s,
                observer=self.observer,
                ended=self._end,
                failed=self._engine_failed,
            )
        except BaseException:
            self.datagrams.close()
            raise
        self._board = HealthProtocol(self.datagrams, position=self._position, alarmed=self._alarmed)
        self._watchman = Watchdog(
            rank,
            size,
            limit_s,
            ask_s,
            waiting=self._waiting,
            survey=self._board.survey,
            give_up=self._fail,
            elsewhere_s=native_waits.oldest_s if native_waits else lambda: None,
            find_silent=self.find_silent,
        )

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
        return self._timeout_s

    @timeout_s.setter
    def timeout_s(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._watchman.limit_s, self._watchman.ask_s = self._limits_s()

    @property
    def entered(self) -> int:
        """How many operations this rank has submitted."""
        return self._entered

    def submit(
        self,
        tensor: torch.Tensor,
        *,
        schedule: int = 0,
        late: Late = None,
        average: bool = False,
        number: int | None = None,
    ) -> Operation:
        """Start the sum (or average) of ``tensor`` over all ranks, in place; returns at once.

        All ranks must submit tensors of equal size and dtype, with the same schedule, late ranks
        and ``average``, in the same order.

        Args:
            tensor: dense and contiguous, on the executor's device.
            schedule: which of :attr:`schedules`.
            late: who is late; default: :attr:`late` for the first schedule, for others as the
                file says.
            average: floating point only; every rank divides by the number of ranks *before* the
                sum, as DDP and NCCL do, so that small formats do not overflow.
            number: of the operation; default: the next one. For owners that run some operations
                elsewhere: greater than all before, the same on all ranks.

        Raises:
            TensorError: a tensor that can't be carried.
            ArgumentError: no such schedule, or a bad ``late``.
            RankFailure: the executor has failed before.
        """
        self.require(tensor, average)
        if not 0 <= schedule < len(self.schedules):
            requirement = f"must be in 0..{len(self.schedules) - 1}"
            raise ArgumentError("schedule", schedule, requirement)
        verified = self.schedules[schedule]
        ranks = self._late if late is None and schedule == 0 else verified.late_ranks(late)
        if self.failure is not None:
            raise self.failure
        k = verified.schedule.chunks
        operation = Operation(
            number=self._entered if number is None else number,
            key=(schedule, ranks),
            tensor=tensor,
            plans=self._plans(schedule, ranks),
            bounds=tuple(tensor.numel() * c // k for c in range(k + 1)),
            average=average,
            arrived_s=time.monotonic(),
        )
        self._open[operation.number] = operation
        self.enter(operation.number)
        self._engine.submit(operation)
        if self._failed.is_set():
            self._fail_open()
        return operation

    def close(self) -> None:
        """Release threads and connections, once the operations in flight are done.

        What is not done after some seconds fails, and so does what is submitted later.
        """
        self._engine.close()
        self._watchman.end(CLOSE_S)
        with self._failing:
            if not self._failed.is_set():
                self.failure = LatecomerError(f"rank {self.rank} has closed its executor")
                self._failed.set()
        self._fail_open()
        self.datagrams.close()

    def enter(self, number: int) -> None:
        """This rank has come to operation ``number``, wherever and however it will run."""
        self._entered = max(self._entered, number + 1)

    def give_up(self, noticed: str, verdict: RankFailure | None = None) -> None:
        """Fail, here and everywhere: something outside has gone wrong.

        Args:
            noticed: what was seen.
            verdict: who is to blame, where that is known; else the ranks find out.
        """
        self._fail(noticed, self._grace_s, verdict)

    def find_silent(self, noticed: str) -> LatecomerError | None:
        """Ask all ranks for a sign of life; fail, here and everywhere, if some give none.

        Args:
            noticed: what made this rank ask.

        Returns:
            The failure, which names them, if there is one.
        """
        if not self._failed.is_set():
            positions = self._board.survey(self._grace_s)
            silent = [rank for rank in range(self.size) if rank not in positions]
            if not silent and not self._failed.is_set():
                return None
            known = diagnose(self.size, positions, self.rank, noticed, self._grace_s)
            self._fail(noticed, self._grace_s * ASK_AGAIN_SHARE, known if silent else None)
        with self._failing:
            return self.failure

    def require(self, tensor: torch.Tensor, average: bool) -> None:
        """Refuse what can't be carried.

        Raises:
            TensorError: says why.
        """
        require_summable(tensor, self.device, average)

    @property
    def _grace_s(self) -> float:
        """How long ranks are given for a sign of life."""
        return min(LONGEST_GRACE_S, self._timeout_s / 3)

    def _limits_s(self) -> tuple[float, float]:
        """(How long to wait, how long to ask around after that), in seconds."""
        ask_s = (1 + ASK_AGAIN_SHARE) * self._grace_s
        return (self._timeout_s - ask_s) * WAIT_SHARE, ask_s

    def _plans(self, schedule: int, late: tuple[int, ...]) -> tuple[PhasePlan, ...]:
        key = schedule, late
        if key not in self._planned:
            self._planned[key] = plan(self.schedules[schedule].for_late(late), self.rank)
        return self._planned[key]

    def _end(self, operation: Operation, error: LatecomerError | None = None) -> None:
        """Settle an operation; taking it out of ``_open`` decides who does."""
        if self._open.pop(operation.number, None) is not None:
            operation.settle(error)
            self.observer.done(operation)

    def _waiting(self) -> tuple[WaitFor, float] | None:
        """The wait in the oldest operation, here or outside."""
        waits = [self._engine.waiting(), self._outside.waiting() if self._outside else None]
        found = [wait for wait in waits if wait is not None]
        return min(found, key=lambda wait: wait[0].operation, default=None)

    def _position(self) -> RankStatus:
        """Where this rank stands, for the board; any thread."""
        waiting, oldest = self._waiting(), min(self._open, default=-1)
        moved_s = max(self._engine.moved_s, self._outside.moved_s if self._outside else 0.0)
        operation = self._open.get(oldest)
        return RankStatus(
            self._entered,
            waiting[0] if waiting else None,
            time.monotonic() - moved_s,
            self._broken,
            self._differs_from,
            self._differs or (operation.description if operation else ""),
        )

    def _engine_failed(self, noticed: str, error: Exception | None) -> None:
        """Something went wrong in the engine; not in consequence of an earlier failure."""
        if isinstance(error, Mismatch):
            operation = self._open.get(error.operation)
            self._differs = operation.description if operation else str(error)
            self._differs_from = error.peer
        elif error is not None:
            self._broken = repr(error)[:TOLD_TEXT]
        self._fail(noticed, self._grace_s)

    def _alarmed(self, noticed: str) -> None:
        self._fail(noticed, self._grace_s)

    def _fail(self, noticed: str, ask_s: float, verdict: RankFailure | None = None) -> None:
        """Give up: the first caller finds out why, everybody else waits for that."""
        with self._failing:
            if not self._failed.is_set():
                self._failed.set()
                self._engine.abort()
                self.failure = self._board.diagnose(noticed, ask_s, verdict)
                if self._outside is not None:
                    self._outside.failed(self.failure)
                if self._native_waits is not None:
                    threading.Thread(target=self._native_waits.abort, daemon=True).start()
        self._fail_open()

    def _fail_open(self) -> None:
        with self._failing:
            assert self.failure is not None
        for operation in list(self._open.values()):
            self._end(operation, self.failure)
