"""Runs each operation the way that is decided for it: native, or by a schedule with somebody late.

    submit ── arrive ──> plane                 the caller's thread: stamps and tells the arrival
       │
       └──> queue ──> dispatcher               waits for decisions, starts operations in order
                          ├──> native          runtime.executor.native
                          └──> executor        runtime.executor.executor

All ranks submit in the same order and act on the same decision for the same operation
(``runtime.policy``), so the executor and the native group each see the same operations in the
same order everywhere. Should a rank act on another decision nevertheless, the executor's
connections notice that the two ends do not run the same operation, and everybody raises.

Failure: whatever fails (a connection, a native operation, a rank that disagrees, a wait that is too
long) ends in the executor's verdict; then every operation, present and future, raises it.
"""

from __future__ import annotations

import functools
import queue
import threading
import time

import torch

from runtime.executor.executor import Executor
from runtime.executor.native import Native
from runtime.executor.operation import Operation
from runtime.health.diagnosis import WaitFor
from runtime.health.native_work import NativeWaits, reason
from runtime.network.store_exchange import StoreExchange
from runtime.policy.agent import RankAgent
from runtime.policy.candidates import candidates
from runtime.policy.control_plane import ControlPlane, PlaneClosed
from runtime.policy.coordinator import Fault
from runtime.policy.cost_model import Profile
from runtime.policy.messages import NATIVE, Decision
from runtime.policy.options import Options, PolicyInputs, require_equal
from runtime.policy.profile import shared_profile
from runtime.telemetry.recorder import DispatcherRecorder, Rounds
from runtime.telemetry.records import NATIVE as NATIVE_WAY
from runtime.torch_versions import PrefixStore, Store
from verify.errors import ArgumentError, LatecomerError, RankFailure

CLOSE_S = 5.0
ALIGN_S = 2.0
"""How long the start waits for aligned clocks; without them arrivals are not compared."""
DECISION = "decision"
NO_KEY = (NATIVE, ())


class AllReduceDispatcher:
    """Sums tensors over a group of ranks, each operation the way that is decided for it.

    Args:
        store: for connecting; every rank of the group, and nothing else, uses it under the same
            prefix.
        rank, size: this rank and the number of ranks of the group.
        options: the same on all ranks.
        profile: measured latency and bandwidth (rank 0's counts); default: they are measured now,
            which takes a few operations of 2 MiB.
        device: tensors live on the CPU.
        timeout_s, native_waits: see :class:`runtime.Executor`.

    Attributes:
        executor: what runs the schedules; ``executor.failure`` is the typed error after a failure.
        profile: what decisions are made from.
        records: what happened to the last operations, oldest first; reference clock.
        rounds: of chosen operations.
        next: the number of the next operation.
        source: what it tells to ``runtime.watch``.

    Raises:
        ArgumentError: CUDA, or ranks with different options.
        RankFailure: ranks that did not join within ``timeout_s``.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        *,
        options: Options,
        profile: Profile | None = None,
        device: torch.device | str = "cpu",
        timeout_s: float = 300.0,
        native_waits: NativeWaits | None = None,
    ) -> None:
        if torch.device(device).type != "cpu":
            remedy = "Use a schedule and late=..., which run on CUDA"
            raise ArgumentError("device", str(device), "modes run on CPU tensors only", remedy)
        if any(late not in range(size) for late in options.late):
            raise ArgumentError("late", options.late, f"must be ranks in 0..{size - 1}")
        self.options, self.rank, self.size, self.store = options, rank, size, store
        group = StoreExchange(store, rank, size, timeout_s)
        require_equal(options, group)
        offered = candidates(group, options.at_most_late(size))
        self.candidates = offered.candidates
        self.rounds = Rounds()
        self._open: dict[int, Operation] = {}
        self._deciding: tuple[int, float] | None = None
        self._native: Native | None = None
        self._plane: ControlPlane | None = None
        self.executor = Executor(
            offered.schedules,
            PrefixStore("executor", store),
            rank,
            size,
            device=device,
            timeout_s=timeout_s,
            observer=self.rounds,
            outside=self,
            native_waits=native_waits,
        )
        self.profile = self._settle(profile, group)
        agent = RankAgent(rank, PolicyInputs(options, size, self.candidates, self.profile))
        self._plane = self.plane = ControlPlane(agent, self.executor.datagrams, self._disagree)
        self.plane.align(ALIGN_S)
        self.next = self.executor.entered
        self._queue: queue.SimpleQueue[Operation | None] = queue.SimpleQueue()
        self._dispatcher = threading.Thread(
            target=self._dispatch, name="latecomer-dispatcher", daemon=True
        )
        self._dispatcher.start()
        self.source = DispatcherRecorder(group, self.plane, self.rounds, lambda: self.next)
        self.records = self.source.records

    def submit(self, tensor: torch.Tensor, *, average: bool = False) -> Operation:
        """Start the sum (or average) of ``tensor`` over all ranks, in place; returns at once.

        All ranks submit tensors of equal size and dtype in the same order.

        Args:
            tensor: dense and contiguous, on the CPU.
            average: floating point only; every rank divides by the number of ranks *before* the
                sum, as DDP does.

        Raises:
            TensorError: a tensor that can't be carried.
            RankFailure: an operation has failed before.
        """
        self.executor.require(tensor, average)
        if self.executor.failure is not None:
            raise self.executor.failure
        number, self.next = self.next, self.next + 1
        operation = Operation(
            number=number,
            key=NO_KEY,
            tensor=tensor,
            plans=(),
            bounds=(0, tensor.numel()),
            average=average,
            arrived_s=time.monotonic(),
        )
        self._open[number] = operation
        self.executor.enter(number)
        kind = f"{tensor.dtype}{', averaged' if average else ''}"
        self.plane.arrive(number, tensor.numel() * tensor.element_size(), kind)
        self._queue.put(operation)
        if self.executor.failure is not None:
            self._fail_open(self.executor.failure)
        return operation

    def close(self) -> None:
        """End the threads and release the connections, when the operations in flight are done."""
        self.source.close()
        self._queue.put(None)
        self._dispatcher.join(CLOSE_S)
        assert self._native is not None
        self._native.close(CLOSE_S)
        self.executor.close()
        self.plane.close()
        assert self.executor.failure is not None  # that it is closed, or what came before
        self._fail_open(self.executor.failure)

    @property
    def failure(self) -> LatecomerError | None:
        """Why operations fail, if they do."""
        return self.executor.failure

    def find_silent(self, noticed: str) -> LatecomerError | None:
        """See :meth:`runtime.Executor.find_silent`."""
        return self.executor.find_silent(noticed)

    @property
    def timeout_s(self) -> float:
        """How long a rank may keep others waiting; may be changed at any time, on all ranks."""
        return self.executor.timeout_s

    @timeout_s.setter
    def timeout_s(self, timeout_s: float) -> None:
        self.executor.timeout_s = timeout_s
        if self._native is not None:
            self._native.set_timeout(timeout_s)

    # -- what the executor asks: see runtime.executor.executor.OwnerHooks

    @property
    def moved_s(self) -> float:
        """When a native operation last ended."""
        return self._native.moved_s if self._native is not None else 0.0

    def waiting(self) -> tuple[WaitFor, float] | None:
        """The older of the waits for a decision and for a native operation."""
        deciding, plane = self._deciding, self._plane
        waits = [self._native.waiting() if self._native is not None else None]
        if deciding is not None and plane is not None:
            number, since_s = deciding
            waits.append((WaitFor(number, DECISION, 0, plane.waits_for(number)), since_s))
        found = [wait for wait in waits if wait is not None]
        return min(found, key=lambda wait: wait[0].operation, default=None)

    def failed(self, error: LatecomerError) -> None:
        """End everything, on a thread of its own: the caller holds the executor's lock."""
        threading.Thread(target=self._end_all, args=(error,), daemon=True).start()

    # -- operations

    def _settle(self, given: Profile | None, group: StoreExchange) -> Profile:
        """Connect the native group and come to a profile; who is gone by now is named."""
        rank, size, executor = self.rank, self.size, self.executor
        try:
            group.all_gather("native")
            native = PrefixStore("native", self.store)
            self._native = Native(native, rank, size, group.timeout_s, executor.give_up)
            methods = self._native.run, self._by_schedule
            return shared_profile(group, given, methods, self.candidates[0])
        except RuntimeError as error:  # Gloo's, which names nobody
            executor.give_up(f"rank {rank} lost the native all-reduce: {reason(error)}")
            failure = executor.failure
            assert failure is not None
            executor.close()
            raise failure from None
        except BaseException:
            executor.close()
            raise

    def _by_schedule(self, tensor: torch.Tensor) -> None:
        self.executor.submit(tensor).wait()

    def _dispatch(self) -> None:
        while (operation := self._queue.get()) is not None:
            try:
                self._start(operation)
            except Exception as error:  # whatever it is, nobody may be left waiting
                if self.executor.failure is not None:
                    self._fail_open(self.executor.failure)
                elif not isinstance(error, PlaneClosed):
                    self._broke(error)

    def _start(self, operation: Operation) -> None:
        assert self._native is not None
        number = operation.number
        self._deciding = number, time.monotonic()
        decision = self.plane.decision(number)
        self._deciding = None
        decided_s = time.monotonic()
        ended = functools.partial(self._ended, operation, decision, decided_s)
        if decision.candidate == NATIVE:
            if operation.average:
                operation.flat.div_(self.size)
            self._native.start(number, operation.flat, ended)
            return
        started = self.executor.submit(
            operation.flat,
            schedule=decision.candidate,
            late=decision.late,
            average=operation.average,
            number=number,
        )
        started.then(lambda error: ended() if error is None else None)

    def _ended(self, operation: Operation, decision: Decision, decided_s: float) -> None:
        """The result is there."""
        if self._open.pop(operation.number, None) is None:
            return
        done_s = time.monotonic()
        try:
            self._note(operation, decision, decided_s, done_s)
        except Exception as error:  # on a thread of Gloo's or torch's, where it would be lost
            operation.settle()
            self._broke(error)
        else:
            operation.settle()  # whoever has waited for it finds the record

    def _note(
        self, operation: Operation, decision: Decision, decided_s: float, done_s: float
    ) -> None:
        """Tell the control plane that an operation is done, and keep a record of it."""
        self.plane.done(operation.number)
        way = NATIVE_WAY
        if decision.candidate != NATIVE:
            way = self.candidates[decision.candidate].name
        self.source.record(
            operation, operation.number, way, decision.reason, done_s=done_s,
            decided_s=decided_s, late=decision.late,
        )  # fmt: skip

    # -- failures

    def _disagree(self, fault: Fault) -> None:
        names = ", ".join(map(str, fault.ranks))
        verdict = RankFailure(fault.ranks, f"rank(s) {names}: {fault.text}")
        self.executor.give_up(f"rank {self.rank} has noticed", verdict)

    def _broke(self, error: Exception) -> None:
        text = f"rank {self.rank}: broke, {error!r}"
        self.executor.give_up(text, RankFailure([self.rank], text))

    def _end_all(self, error: LatecomerError) -> None:
        if self._native is not None:
            self._native.abort()
        if self._plane is not None:
            self._plane.close()
        self._fail_open(error)

    def _fail_open(self, error: LatecomerError) -> None:
        for number in list(self._open):
            operation = self._open.pop(number, None)
            if operation is not None:
                operation.settle(error)
