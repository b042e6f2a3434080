"""The executor: runs a proved schedule on tensors, several in flight, off the caller's thread.

Every phase of the schedule is a *lane*: a thread with a queue. An operation goes through the lanes
in order, and the lanes work on different operations at the same time, so the helpers reduce the
next bucket while the last one still waits for the late rank. All ranks submit in the same order
and every lane is first in, first out: with the schedule's own proof this rules out deadlock.

Failure: whatever goes wrong in a lane closes all connections (nobody waits in vain any more),
then the board finds out who is to blame, and every operation of this executor, present and
future, raises that same error. All of it happens within ``timeout_s`` of the wait that failed,
or, where that rank is alive and has entered the operation, of its last sign of going on.
"""

from __future__ import annotations

import functools
import queue
import threading
import time
from collections.abc import Sequence

import torch
from torch._C._distributed_c10d import PrefixStore, Store

from runtime.blame import Position
from runtime.board import Board
from runtime.datagrams import Datagrams
from runtime.gloo import GlooMover
from runtime.nccl import NcclMover
from runtime.operation import SUMMABLE, Observer, Operation, PeerLost
from runtime.plan import PhasePlan, plan
from runtime.verified import Late, Verified, require_size
from runtime.waits import Waits
from verify.errors import ArgumentError, LatecomerError, ScheduleRefused, TensorError

LONGEST_GRACE_S = 5.0
CLOSE_S = 5.0
SURVEY_SHARE = 0.25  # of the grace period: to ask around before giving up
WAIT_SHARE = 0.9  # of the time left for waits: the rest is for reacting


class Executor:
    """Runs schedules on a group of ranks.

    Args:
        schedules: one schedule from :func:`runtime.load`, or several, among which each operation
            chooses.
        store: for connecting; every rank of the group, and nothing else, uses it under the same
            prefix.
        rank, size: this rank and the number of ranks of the group.
        device: ``cpu`` (over Gloo) or a CUDA device (over NCCL).
        late: the late rank of the first schedule, or several in the order of their arrival;
            default: as the file says. May be changed between operations (:attr:`late`), on all
            ranks before the same one.
        timeout_s: a rank that keeps others waiting for so long, without entering the operation or
            without going on in it, is given up; every survivor has raised by then.
        observer: is told about steps and operations.

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
        self.failure: LatecomerError | None = None
        self._grace_s = min(LONGEST_GRACE_S, timeout_s / 3)
        self._late = self.schedules[0].late_ranks(late)
        self._entered = 0
        self._failing = threading.Lock()
        self._failed = threading.Event()
        self._open: dict[int, Operation] = {}
        self._planned: dict[tuple[int, tuple[int, ...]], tuple[PhasePlan, ...]] = {}
        self._broken = ""
        phases = max(len(verified.schedule.phases) for verified in self.schedules)
        self._phases = phases
        self._waits = Waits(phases)
        self.datagrams = Datagrams(
            PrefixStore("datagrams", store), rank, size, start_timeout_s=timeout_s
        )
        self._board = Board(self.datagrams, position=self._position, alarmed=self._fail)
        self._agree(store)
        limit_s = (timeout_s - (1 + SURVEY_SHARE) * self._grace_s) * WAIT_SHARE
        mover = NcclMover if self.device.type == "cuda" else GlooMover
        self._mover: GlooMover | NcclMover = mover(
            PrefixStore("data", store), rank, size, [v.schedule for v in self.schedules], limit_s
        )
        lanes = phases + self._mover.asynchronous
        self._queues: list[queue.SimpleQueue[Operation | None]] = [
            queue.SimpleQueue() for _ in range(lanes)
        ]
        self._threads = [
            threading.Thread(target=self._lane, args=(i,), name=f"latecomer-lane-{i}", daemon=True)
            for i in range(lanes)
        ]
        survey = functools.partial(self._board.survey, SURVEY_SHARE * self._grace_s)
        watch = (rank, limit_s, survey, size, self._fail)
        self._threads.append(
            threading.Thread(
                target=self._waits.watch, args=watch, name="latecomer-watchman", daemon=True
            )
        )
        for thread in self._threads:
            thread.start()

    @property
    def late(self) -> tuple[int, ...]:
        """The late ranks of the first schedule from now on, in order of arrival."""
        return self._late

    @late.setter
    def late(self, late: Late) -> None:
        self._late = self.schedules[0].late_ranks(late)

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

        Raises:
            TensorError: a tensor that can't be carried.
            ArgumentError: no such schedule, or a bad ``late``.
            RankFailure: the executor has failed before.
        """
        self._require(tensor, average)
        if not 0 <= schedule < len(self.schedules):
            requirement = f"must be in 0..{len(self.schedules) - 1}"
            raise ArgumentError("schedule", schedule, requirement)
        verified = self.schedules[schedule]
        ranks = self._late if late is None and schedule == 0 else verified.late_ranks(late)
        if self.failure is not None:
            raise self.failure
        k = verified.schedule.chunks
        flat = tensor.detach().view(-1)
        operation = Operation(
            number=self._entered,
            tensor=tensor,
            flat=flat,
            plans=self._plans(schedule, ranks),
            bounds=tuple(flat.numel() * c // k for c in range(k + 1)),
            average=average,
            arrived_s=time.monotonic(),
        )
        self._mover.submitted(operation)
        self._open[operation.number] = operation
        self._entered += 1
        self._waits.moved()
        if self._failed.is_set():
            self._fail_open()
        else:
            self._queues[0].put(operation)
        return operation

    def close(self) -> None:
        """End the threads and release the connections, when the operations in flight are done."""
        self._queues[0].put(None)
        for thread in self._threads[:-1]:
            thread.join(timeout=CLOSE_S)
        self._waits.end()
        self._threads[-1].join(timeout=CLOSE_S)
        self.datagrams.close()
        self._mover.close()

    def _require(self, tensor: torch.Tensor, average: bool) -> None:
        if tensor.layout is not torch.strided:
            raise TensorError(f"tensor.layout is {tensor.layout}, must be dense (torch.strided)")
        if not tensor.is_contiguous():
            raise TensorError("the tensor is not contiguous; pass tensor.contiguous()")
        if tensor.device.type != self.device.type:
            raise TensorError(f"the tensor is on {tensor.device}, the executor on {self.device}")
        if tensor.dtype not in SUMMABLE:
            names = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in SUMMABLE))
            raise TensorError(f"tensor.dtype is {tensor.dtype}, must be one of {names}")
        if average and not tensor.dtype.is_floating_point:
            raise TensorError(f"the average of {tensor.dtype} is not an integer; sum instead")

    def _plans(self, schedule: int, late: tuple[int, ...]) -> tuple[PhasePlan, ...]:
        key = schedule, late
        if key not in self._planned:
            self._planned[key] = plan(self.schedules[schedule].for_late(late), self.rank)
        return self._planned[key]

    def _agree(self, store: Store) -> None:
        """All ranks must have the same schedules, and the same late ranks to begin with."""
        digests = ",".join(verified.digest for verified in self.schedules)
        own = f"{digests} {self._late}"
        store.set(f"schedule/{self.rank}", own)
        told = {r: store.get(f"schedule/{r}").decode() for r in range(self.size)}
        differing = [r for r in told if told[r] != own]
        if not differing:
            return
        ranks = ", ".join(map(str, differing))
        theirs, late = told[differing[0]].split(" ", 1)
        if theirs == digests:
            raise ScheduleRefused(
                f"rank {self.rank} takes the ranks {self._late} to be late, rank(s) {ranks} {late}"
            )
        names = ", ".join(f"{v.name} ({v.digest[:12]})" for v in self.schedules)
        raise ScheduleRefused(f"rank {self.rank} has {names}, but rank(s) {ranks} another schedule")

    def _lane(self, number: int) -> None:
        lane = self._queues[number]
        onward = self._queues[number + 1] if number + 1 < len(self._queues) else None
        while (operation := lane.get()) is not None:
            if self._failed.is_set():
                self._fail_open()
                continue
            try:
                self._work(number, operation)
                if onward is not None:
                    onward.put(operation)
                else:
                    self._end(operation, None)
            except PeerLost as lost:
                self._fail(f"rank {self.rank} {lost}")
            except Exception as error:  # whatever it is, nobody may be left waiting
                self._broken = f"{error!r} in lane {number}"
                self._fail(f"rank {self.rank} broke")
        if onward is not None:
            onward.put(None)

    def _work(self, lane: int, operation: Operation) -> None:
        if lane == self._phases:
            self._mover.drain(operation)
            return
        if lane == 0 and operation.average:
            self._mover.divide(operation, self.size)
        if lane < len(operation.plans):
            self._mover.run(
                lane, operation, self.observer, functools.partial(self._waits.note, lane)
            )

    def _end(self, operation: Operation, error: LatecomerError | None) -> None:
        """Settle an operation; taking it out of ``_open`` decides who does."""
        if self._open.pop(operation.number, None) is not None:
            operation.settle(error)
            self.observer.done(operation)

    def _position(self) -> Position:
        waits = self._waits
        return Position(self._entered, waits.oldest, waits.idle_s, self._broken)

    def _fail(self, noticed: str) -> None:
        """Give up: the first caller finds out why, everybody else waits for that."""
        with self._failing:
            if not self._failed.is_set():
                self._failed.set()
                self._mover.abort()
                self.failure = self._board.diagnose(noticed, self._grace_s)
        self._fail_open()

    def _fail_open(self) -> None:
        with self._failing:
            assert self.failure is not None
        for operation in list(self._open.values()):
            self._end(operation, self.failure)
