"""Moving chunks of CUDA tensors over NCCL: one coalesced group of transfers per round.

Every phase has a communicator, a side stream and a thread with a queue. An operation goes through
the phases in order, and the phases work on different operations at the same time, so that the
ReduceScatter of one bucket can run while the completion of the last one still waits for the late
rank. All ranks submit in the same order and every phase is first in, first out: with the schedule's
own proof this rules out deadlock. Rounds follow each other on the stream; the host only enqueues,
and a last thread looks at one event per operation until its data is in place.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from runtime.executor.program import Step
from runtime.health.diagnosis import WaitFor
from runtime.network.store_exchange import StoreExchange
from runtime.torch_versions import PrefixStore
from runtime.work import AllReduceWork, Observer

CLOSE_S = 5.0
POLL_S = 50e-6


class PhaseWorkers:
    """Runs operations on the current device.

    Args:
        group: for connecting; an operation on the GPU has its ``timeout_s``, too.
        phases: the most phases of any schedule.
        observer: is told about steps, on the phases' threads.
        ended: is called with each operation whose result is in place.
        failed: is called with what was noticed, and with the exception if it is this rank's own.

    Attributes:
        moved_s: ``time.monotonic()`` when an operation last came on.
    """

    def __init__(
        self,
        group: StoreExchange,
        phases: int,
        observer: Observer,
        ended: Callable[[AllReduceWork], None],
        failed: Callable[[str, Exception | None], None],
    ) -> None:
        self._group, self._phases = group, phases
        self._observer, self._ended, self._failed = observer, ended, failed
        self._stop = False
        self.moved_s = time.monotonic()
        self._device = torch.device("cuda", torch.cuda.current_device())
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=group.timeout_s)
        place = group.rank, group.world_size, options
        self._communicators: list[Any] = [  # the stubs give backends no send and recv
            dist.ProcessGroupNCCL(PrefixStore(f"{phase}", group.store), *place)
            for phase in range(phases)
        ]
        self._streams: list[Any] = [
            torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            for _ in range(phases)
        ]
        self._queues: list[queue.SimpleQueue[AllReduceWork | None]] = [
            queue.SimpleQueue() for _ in range(phases + 1)
        ]
        self._threads = [
            threading.Thread(target=self._run, args=(i,), name=f"latecomer-phase-{i}", daemon=True)
            for i in range(phases + 1)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, work: AllReduceWork) -> None:
        """Start an operation, on the thread whose current stream makes its data."""
        work.ready = torch.cuda.current_stream(self._device).record_event()
        self.moved_s = time.monotonic()
        self._queues[0].put(work)

    def waiting(self) -> tuple[WaitFor, float] | None:
        """The host sees no single waits: an operation has its time, and then ``failed`` is told."""
        return None

    def abort(self) -> None:
        """Stop at once, with what is enqueued on all communicators."""
        self._stop = True
        for communicator in self._communicators:
            communicator.abort()

    def close(self) -> None:
        """Stop when the operations under way are done, but within ``CLOSE_S`` seconds each."""
        self._queues[0].put(None)
        for thread in self._threads:
            thread.join(timeout=CLOSE_S)
        for communicator in self._communicators:
            communicator.shutdown()

    def _run(self, phase: int) -> None:
        while (work := self._queues[phase].get()) is not None:
            if self._stop:
                continue
            try:
                if phase < self._phases:
                    self._enqueue(phase, work)
                    self._queues[phase + 1].put(work)
                else:
                    self._drain(work)
                    self._ended(work)
                self.moved_s = time.monotonic()
            except (TimeoutError, dist.DistBackendError) as error:  # others have left, or hang
                self._report(str(error), None)
            except Exception as error:  # whatever it is, nobody may be left waiting
                self._report("broke", error)
        if phase < self._phases:
            self._queues[phase + 1].put(None)

    def _enqueue(self, phase: int, work: AllReduceWork) -> None:
        """Enqueue this rank's part of a phase on the phase's stream; divide before the first."""
        divide = work.average and phase == 0
        if not divide and phase >= len(work.plans):
            return
        stream = self._streams[phase]
        with torch.cuda.device(self._device), torch.cuda.stream(stream):
            stream.wait_event(work.ready)
            work.flat.record_stream(stream)
            if divide:
                work.flat.div_(self._group.world_size)
            for step in work.plans[phase].steps if phase < len(work.plans) else ():
                place = work.number, work.plans[phase].name, step.round
                self._observer.step_begins(*place)
                self._exchange(self._communicators[phase], work, step)
                self._observer.step_ends(*place)
            work.ready = stream.record_event()

    def _drain(self, work: AllReduceWork) -> None:
        """Wait on the host until the data is in place; raises TimeoutError."""
        timeout_s = self._group.timeout_s
        deadline = time.monotonic() + timeout_s
        while not work.ready.query():
            if time.monotonic() > deadline:
                text = f"operation {work.number} not done in {timeout_s:g} s on the GPU"
                raise TimeoutError(text)
            time.sleep(POLL_S)

    def _exchange(self, communicator: Any, work: AllReduceWork, step: Step) -> None:
        sends = [(send, work.chunk(send.chunk)) for send in step.sends]
        receives = []
        for receive in step.receives:
            chunk = work.chunk(receive.chunk)
            if chunk.numel():
                into = torch.empty_like(chunk) if receive.scratch else chunk
                receives.append((receive, chunk, into))
        sends = [(send, data) for send, data in sends if data.numel()]
        if not sends and not receives:
            return
        communicator._start_coalescing()
        for send, data in sends:
            communicator.send([data], send.peer, send.index)
        for receive, _, into in receives:
            communicator.recv([into], receive.peer, receive.index)
        communicator._end_coalescing().wait()  # orders the stream; the host goes on
        for receive, chunk, into in receives:
            if receive.reduce:
                chunk.add_(into)
            elif receive.scratch:
                chunk.copy_(into)

    def _report(self, noticed: str, error: Exception | None) -> None:
        if not self._stop:  # else it is a consequence of the failure that stopped us
            self._failed(f"rank {self._group.rank} {noticed}", error)
