"""Runs each operation as is decided for it: natively, or by a schedule, with a late rank or not.

    submit ── decide at once ──> start         where all ranks know how, and tell of it later
       │
       ├── arrive ──> control plane            the caller's thread: stamps the arrival, sends it
       │                  │
       │                  └── decided ──> start        later: on the thread that moves the data
       └── maker                               what the size's number of chunks needs, if it is new

    start ──> native                           latecomer.runtime.executor.native
       └────> executor                         latecomer.runtime.executor.executor

All ranks submit in the same order and act on the same decision for the same operation, and each
starts its operations in that order, whichever of its threads does; so the executor and the native
group each see the same operations in the same order everywhere. Should a rank act on another
decision nevertheless, the executor's connections notice it, and all ranks raise. Whatever fails
ends in the watchdog's verdict, which every operation raises then.

A decision that another rank has made is read on the control loop, where nothing may be started: a
program may have to be built, a tensor divided. The thread that moves the data does that, and no
thread has to stand by for it.

On a device with streams (CUDA) both ways are one engine's, and the thread that submits starts all
operations: it finds each decision made (``latecomer.runtime.policy.on_device``).
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from latecomer.runtime.at_exit import close_at_exit, has_closed
from latecomer.runtime.collective import ALL_REDUCE
from latecomer.runtime.device.choice import make_executor
from latecomer.runtime.executor.load import Runnable
from latecomer.runtime.executor.native import native_way
from latecomer.runtime.executor.nccl.streams import Device, device_of
from latecomer.runtime.health.diagnosis import WaitFor
from latecomer.runtime.health.native_work import NativeWaits, reason
from latecomer.runtime.host import host
from latecomer.runtime.network.clock import REFERENCE
from latecomer.runtime.network.store_exchange import IsGone, StoreExchange
from latecomer.runtime.policy.agent import RankAgent
from latecomer.runtime.policy.arrivals import BufferSignature
from latecomer.runtime.policy.candidates import candidates
from latecomer.runtime.policy.control_plane import ControlPlane, ControlPlaneClosed
from latecomer.runtime.policy.coordinator import Fault
from latecomer.runtime.policy.cost_model import Profile
from latecomer.runtime.policy.machines import ALONE, ranks_per_machine
from latecomer.runtime.policy.messages import NATIVE, Decision
from latecomer.runtime.policy.on_device import on_device, require_no_capture
from latecomer.runtime.policy.on_time import named
from latecomer.runtime.policy.options import LEARNING, Options, PolicyInputs, require_equal
from latecomer.runtime.policy.profile import shared_profile
from latecomer.runtime.telemetry.recorder import DispatcherRecorder, Rounds
from latecomer.runtime.telemetry.records import NATIVE as NATIVE_WAY
from latecomer.runtime.torch_versions import Store
from latecomer.runtime.work import (
    ON_HOST,
    AllGatherWork,
    AllReduceWork,
    CollectiveWork,
    ReduceScatterWork,
    require_summable,
)
from latecomer.verify.errors import ArgumentError, LatecomerError, RankFailure, TensorError

CLOSE_S = 5.0
AT_ONCE_S = 0.2  # how long a native operation is waited for that is given up
KEPT_SIZES = 256  # of buffers, for which what they want is looked up
logger = logging.getLogger("latecomer")
ALIGN_S = 2.0  # how long the start waits for aligned clocks; without them arrivals are not compared


class AllReduceDispatcher:
    """Sums tensors over a group of ranks, each operation as is decided for it.

    Reduce-scatters and all-gathers, too: no rank can be left out of these, so that they run by
    what is fastest for ranks that are all on time.

    Args:
        store, rank, size, timeout_s, silence_s, join_timeout_s, is_gone, native_waits: see
            ``latecomer.Executor``.
        options: the same on all ranks.
        profile: measured latency and bandwidth (rank 0's counts); default: they are measured now,
            which takes a few operations of 2 MiB.
        arrivals: of earlier operations of the same ranks, as :meth:`arrivals` gives them; the same
            on all ranks. Modes predict and auto begin with what follows from them.
        device: see ``latecomer.Executor``; what modes are on a device:
            ``latecomer.runtime.policy.on_device``.

    Raises:
        ArgumentError: a mode that can't run on the device, or ranks with different options.
        RankFailure: ranks that did not join within ``join_timeout_s``.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        *,
        options: Options,
        profile: Profile | None = None,
        arrivals: Iterable[NDArray[np.float64]] = (),
        device: Device | torch.device | str = "cpu",
        timeout_s: float = 300.0,
        silence_s: float | None = None,
        join_timeout_s: float | None = None,
        is_gone: IsGone | None = None,
        native_waits: NativeWaits | None = None,
    ) -> None:
        streams = device_of(device)
        self._reason_prefix = ""
        if streams is not None:
            options, self._reason_prefix = on_device(options)
        if any(late not in range(size) for late in options.late):
            raise ArgumentError("late", options.late, f"must be ranks in 0..{size - 1}")
        self.options = options
        self.is_off = False
        """Whether operations submitted from now on run natively, whatever the mode would decide.

        To be changed on all ranks before the same operation."""
        self.rank = rank
        self.size = size
        if join_timeout_s is None:
            join_timeout_s = timeout_s
        group = StoreExchange(store, rank, size, join_timeout_s, is_gone)
        require_equal(options, group)

        schedules = self._make_candidates(group, on_host=streams is None)
        self.rounds = Rounds()
        self.executor = make_executor(
            schedules,
            host.prefixed("executor", store),
            rank,
            size,
            device=streams or device,
            by=options.device,
            timeout_s=timeout_s,
            silence_s=silence_s,
            join_timeout_s=join_timeout_s,
            is_gone=is_gone,
            observer=self.rounds,
            native_waits=native_waits,
        )
        self.find_silent = self.executor.find_silent
        self._connect(group, profile)
        if join_timeout_s != timeout_s:
            self._native.set_timeout(timeout_s)
        self._start_control_plane(arrivals)
        self.source = DispatcherRecorder(
            group, self.control_plane, self.rounds, lambda: self.executor.entered
        )
        self.records = self.source.records  # of the last operations, oldest first; reference clock

        close_at_exit(self)

    def _make_candidates(self, group: StoreExchange, *, on_host: bool) -> tuple[Runnable, ...]:
        """The schedules to choose from, and what makes their parts (collective)."""
        # the links of devices are not measured apart, so that there two levels can't be judged
        self._ranks_per_machine = ranks_per_machine(group) if on_host else ALONE
        most_late = self.options.at_most_late(self.size)
        schedules, self.candidates = candidates(
            group,
            most_late,
            self._ranks_per_machine,
            has_on_time=on_host and self.options.mode in LEARNING,
        )
        if self.options.mode == "static":
            for schedule in schedules:
                schedule.make()  # before the first operation: the same bits in every run

        self._making = host.Lock()  # one candidate at a time: they would share one processor
        self._asked: set[int] = set()  # candidates that are made, or being made
        self._prepare = functools.lru_cache(KEPT_SIZES)(self._prepare_size)
        return schedules

    def _start_control_plane(self, arrivals: Iterable[NDArray[np.float64]]) -> None:
        """What decides, watched for how long it takes; it waits for this rank's clock a little."""
        # Held while an operation gets its number and its place among the undecided, so that both
        # are in one order. The program's callbacks run under it only if the group has failed;
        # should they submit again on the same thread, they do not wait for themselves.
        self._submitting = host.RLock()
        self._submitter: int | None = None  # who tells of an arrival now
        self._undecided: deque[CollectiveWork] = deque()  # in order; or decided, but not started
        self._starting = host.Lock()  # held by who starts an operation, and for good by close
        self._is_closing = False
        self._none_waits = host.Condition()  # told when an operation starts during close
        self.moved_s = host.monotonic()

        self._inputs = PolicyInputs(self.options, self.size, self.candidates, self._profile)
        for at_s in arrivals:
            self._inputs.history.add(at_s)
        self._began_with = self._inputs.history.added
        shares_clock = self.executor.datagrams.shares_clock(REFERENCE)
        agent = RankAgent(
            self.rank, self._inputs, shares_clock=shares_clock, first=self.executor.entered
        )
        self.control_plane = ControlPlane(
            agent,
            self.executor.datagrams,
            on_decided=self._decided,
            on_fault=self._disagree,
        )
        self.executor.arrived = self.control_plane.reached
        watchdog = self.executor.watchdog
        watchdog.on_failure(lambda failure: self._end_decisions())
        watchdog.add(self)
        self.control_plane.align(ALIGN_S)

    def submit(self, tensor: torch.Tensor, *, average: bool = False) -> CollectiveWork:
        """Start the sum (or average) of ``tensor`` over all ranks, in place; returns at once.

        All ranks submit tensors of equal size and dtype in the same order. What else is asked of
        them, and what is raised: see ``latecomer.Executor.submit``; ArgumentError in a capture by
        a graph, where the mode decides.
        """
        return self._submit(AllReduceWork, tensor, average=average)

    def reduce_scatter(
        self, tensor: torch.Tensor, given: torch.Tensor, *, average: bool = False
    ) -> CollectiveWork:
        """Start the sum (or average) of this rank's part of ``given`` over all ranks.

        It goes into ``tensor``; ``given`` has as many such parts as there are ranks, in their
        order, and stays as it is. What is asked and raised: see :meth:`submit`; CPU only.
        """
        require_summable(given, self.executor.device, average)
        self._require_parts(given, of=tensor)
        return self._submit(ReduceScatterWork, tensor, average=average, given=given, rank=self.rank)

    def all_gather(self, tensor: torch.Tensor, given: torch.Tensor) -> CollectiveWork:
        """Start the collection of all ranks' ``given`` in ``tensor``, in the order of ranks.

        ``given`` may be this rank's part of ``tensor``. What is asked and raised: see
        :meth:`submit`; CPU only.
        """
        require_summable(given, self.executor.device, average=False)
        self._require_parts(tensor, of=given)
        return self._submit(AllGatherWork, tensor, average=False, given=given, rank=self.rank)

    def _require_parts(self, whole: torch.Tensor, of: torch.Tensor) -> None:
        """TensorError unless ``whole`` has as many elements as one part of each rank, alike.

        ArgumentError on a device.
        """
        if self.executor.streams is not None:
            requirement = "must be cpu for reduce-scatters and all-gathers"
            raise ArgumentError("device", str(self.executor.device), requirement)
        if whole.numel() != self.size * of.numel() or whole.dtype != of.dtype:
            raise TensorError(
                f"{whole.numel()} x {whole.dtype} are not {self.size} parts of "
                f"{of.numel()} x {of.dtype}"
            )

    def _submit(
        self, kind: type[CollectiveWork], tensor: torch.Tensor, *, average: bool, **more: Any
    ) -> CollectiveWork:
        """Start an operation of this kind; the arguments are those of ``Executor.open``."""
        streams = self.executor.streams
        learning = self.options.mode in LEARNING
        if streams is not None and learning:
            require_no_capture(streams, self.options)
        with self._submitting:
            work = self.executor.open(kind, tensor, average=average, **more)
            if work.collective == ALL_REDUCE:
                self._prepare(work.nbytes)
            decision = self._decide_at_once(work)
            if decision is None:
                self._undecided.append(work)
                self._arrive(work, on_device=streams is not None and learning)
                if streams is not None:
                    self._launch(work)
        if decision is not None:
            self._start_at_once(work, decision)
        if streams is None:
            self._start_decided()
        return work

    def _decide_at_once(self, work: CollectiveWork) -> Decision | None:
        """How an operation runs that is the next to start, if no other rank has a say in that.

        Then this thread holds ``_starting``: nobody starts one behind it before.
        """
        is_next = not self._undecided and not self.is_off and self.executor.streams is None
        if not is_next or not self._starting.acquire(blocking=False):
            return None
        decision = None
        try:
            decision = self.control_plane.decide_at_once(work.number, _signature(work))
        finally:
            if decision is None:
                self._starting.release()
        return decision

    def _start_at_once(self, work: CollectiveWork, decision: Decision) -> None:
        """Start it; what it holds (:meth:`_decide_at_once`) is let go of."""
        try:
            if not work.is_done:  # else the group has failed
                self._start(work, decision)
        except Exception as error:  # whatever it is, nobody may be left waiting
            self.executor.watchdog.broke(error)
        finally:
            self._starting.release()

    def _arrive(self, work: CollectiveWork, *, on_device: bool) -> None:
        """The host comes to an operation, and with it this rank, unless ``on_device``."""
        self._submitter = host.thread_number()
        try:
            self.control_plane.arrive(
                work.number, _signature(work), on_device=on_device, is_off=self.is_off
            )
        finally:
            self._submitter = None

    def abort(self, reason: str) -> None:
        """See ``latecomer.Executor``."""
        self.executor.abort(reason)

    def close(self, *, at_once: bool = False) -> None:
        """End the threads and release the connections, when the operations in flight are done.

        ``at_once``: without them. Closed once, it does nothing more.
        """
        has_closed(self)
        if self._is_closing:
            return
        self._is_closing = True
        self.source.close()
        if at_once:
            self._end_decisions()
        with self._none_waits:
            self._none_waits.wait_for(lambda: not self._undecided, CLOSE_S)
        self._starting.acquire(timeout=CLOSE_S)  # kept: what is submitted from now on fails
        self._native.close(AT_ONCE_S if at_once else CLOSE_S)
        self.executor.close(at_once=at_once)
        self.control_plane.close()

    def arrivals(self) -> NDArray[np.float64]:
        """Of the last operations that this rank has coordinated, a row each, oldest first.

        Seconds after the first arrival, by rank; without those that this dispatcher began with.
        """
        return self.control_plane.arrivals(after=self._began_with)

    @property
    def profile(self) -> Profile:
        """Of the links, and of the ways on time that were settled on so far."""
        on_time = named(self.control_plane.on_time, self.candidates)
        return msgspec.structs.replace(self._profile, on_time=on_time)

    @property
    def entered(self) -> int:
        """Operations that this rank has submitted."""
        return self.executor.entered

    @property
    def failure(self) -> LatecomerError | None:
        """Why operations fail, if they do."""
        return self.executor.failure

    @property
    def timeout_s(self) -> float:
        """See ``latecomer.Executor``."""
        return self.executor.timeout_s

    @timeout_s.setter
    def timeout_s(self, timeout_s: float) -> None:
        self.executor.timeout_s = timeout_s
        self._native.set_timeout(timeout_s)

    def waiting(self) -> tuple[WaitFor, float] | None:
        """The wait for a decision, and since when."""
        try:
            work = self._undecided[0]
        except IndexError:
            return None
        if self.control_plane.knows_next:
            return None  # it is about to be started
        peer = self.control_plane.waits_for(work.number)
        return WaitFor(work.number, "decision", 0, peer), max(work.arrived_s, self.moved_s)

    def _connect(self, group: StoreExchange, given_profile: Profile | None) -> None:
        """Connect the native group and come to a profile; who is gone by now is named."""
        watchdog = self.executor.watchdog
        with contextlib.ExitStack() as started:  # closed if the start fails
            started.callback(self.executor.close)
            try:
                group.all_gather("native")
                self._native = native_way(self.executor, group.under("native"), self._ended)
                started.callback(self._native.close, AT_ONCE_S)

                def run_schedule(tensor: torch.Tensor) -> None:
                    self.executor.submit(tensor).wait(ON_HOST)

                self._profile = shared_profile(
                    group,
                    given_profile,
                    self._native.run,
                    run_schedule,
                    self.candidates[0],
                    self.executor.device,
                    self._two_level_runs(),
                    self._ranks_per_machine,
                )
            except RuntimeError as error:  # Gloo's, which names no rank
                watchdog.fail(f"rank {self.rank} lost the native all-reduce: {reason(error)}")
                assert watchdog.failure is not None
                raise watchdog.failure from None
            started.pop_all()

    def _two_level_runs(self) -> dict[str, Callable[[torch.Tensor], object]]:
        """By name, how to run each two-level candidate once, before the first operation."""

        def run(index: int, tensor: torch.Tensor) -> None:
            self.executor.submit(tensor, schedule=index).wait(ON_HOST)

        return {
            candidate.name: functools.partial(run, index)
            for index, candidate in enumerate(self.candidates)
            if candidate.two_level is not None
        }

    def _prepare_size(self, nbytes: int) -> None:
        """Let it be made what buffers of this size want, the first time that they do."""
        wanted = self._inputs.wanted(nbytes) if self.options.mode in LEARNING else None
        if wanted is None or wanted.candidate in self._asked:
            return
        self._asked.add(wanted.candidate)
        logger.info(
            "rank %d: %d bytes go by: %s; predicted: %.3g ms after its arrival, natively %.3g ms",
            self.rank,
            nbytes,
            self.candidates[wanted.candidate].name,
            wanted.completion_s * 1e3,
            self._inputs.native_s(nbytes) * 1e3,
        )
        host.Thread(
            target=self._make, args=(wanted.candidate,), name="latecomer-maker", daemon=True
        ).start()

    def _make(self, candidate: int) -> None:
        """Make it, on a thread that ends with it; until then the size goes natively."""
        with self._making:
            if self._is_closing:
                return
            try:
                self.executor.make(candidate)
                self.control_plane.has_made(candidate)
            except Exception as error:
                self.executor.watchdog.broke(error)

    def _decided(self) -> None:
        """A decision is known; who tells so holds the control plane's lock."""
        if self._submitter == host.thread_number():
            return  # it starts the operation itself, as soon as it holds no lock
        self.executor.call_soon(self._start_decided)

    def _start_decided(self) -> None:
        """Start the operations whose decision is known, in order; any thread but the control's.

        One thread at a time does so, and no other waits for it: it might run the program's
        callbacks, which may submit. It looks again after it has released the lock, so a decision
        that came meanwhile, whose thread could not get the lock, is never left lying.
        """
        while self._undecided and self.control_plane.knows_next:
            if not self._starting.acquire(blocking=False):
                return
            try:
                self._start_oldest()
            finally:
                self._starting.release()

    def _start_oldest(self) -> None:
        """Start the oldest operation if its decision is known; who calls holds ``_starting``."""
        if not self._undecided:
            return
        work = self._undecided[0]
        try:
            decision = self.control_plane.decision_if_known(work.number)
            if decision is None:
                return
            self._undecided.popleft()
            self._start(work, decision)
        except ControlPlaneClosed:
            self._undecided.popleft()  # it has failed
        except Exception as error:  # whatever it is, nobody may be left waiting
            self.executor.watchdog.broke(error)
        if self._is_closing:
            with self._none_waits:
                self._none_waits.notify_all()

    def _end_decisions(self) -> None:
        """No decision comes any more: operations that wait for one fail, or have failed."""
        self.control_plane.close()
        self._start_decided()

    def _launch(self, work: CollectiveWork) -> None:
        """Start it on the thread that submits, which learns what is wrong with a capture."""
        try:
            decision = self._wait_for_decision(work)
            self._start(work, decision)
        except ControlPlaneClosed:
            return  # it has failed
        except Exception as error:
            if not work.is_done:
                self.executor.watchdog.broke(error)
            raise

    def _wait_for_decision(self, work: CollectiveWork) -> Decision:
        try:
            return self.control_plane.decision(work.number)
        finally:
            self._undecided.popleft()

    def _start(self, work: CollectiveWork, decision: Decision) -> None:
        self.moved_s = host.monotonic()
        work.before_done = functools.partial(self._note, work, decision, self.moved_s)
        if decision.candidate == NATIVE:
            self._native.start(work)
        else:
            self.executor.start(work, decision.candidate, decision.late)

    def _ended(self, work: CollectiveWork) -> None:
        try:
            self.executor.end(work)
        except Exception as error:  # on the native thread, where it would be lost
            self.executor.watchdog.broke(error)

    def _note(self, work: CollectiveWork, decision: Decision, decided_s: float) -> None:
        """Tell the control plane that an operation is done, and keep a record of it."""
        self.control_plane.done(work.number)
        method = NATIVE_WAY
        if decision.candidate != NATIVE:
            method = self.candidates[decision.candidate].name
        self.source.record(
            work,
            work.number,
            way=method,
            reason=self._reason_prefix + decision.reason,
            decided_s=max(decided_s, work.arrived_s),  # a device comes to it later
            late=decision.late,
        )

    def _disagree(self, fault: Fault) -> None:
        names = ", ".join(map(str, fault.ranks))
        verdict = RankFailure(fault.ranks, f"rank(s) {names}: {fault.text}")
        self.executor.watchdog.fail(f"rank {self.rank} has noticed", verdict)


def _signature(work: CollectiveWork) -> BufferSignature:
    """What all ranks must agree on before an operation is decided."""
    return BufferSignature(work.nbytes, work.kind, work.collective)
