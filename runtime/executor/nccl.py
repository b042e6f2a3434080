"""Moving chunks of CUDA tensors over NCCL: one coalesced group of transfers per round.

Every phase has a communicator, a side stream and a thread with a queue. An operation goes through
the phases in order, and the phases work on different operations at the same time, so that the
ReduceScatter of one bucket can run while the completion of the last one still waits for the late
rank. All ranks submit in the same order and every phase is first in, first out: with the schedule's
own proof this rules out deadlock. Rounds follow each other on the stream; the host only enqueues,
and a last thread looks at one event per operation until its data is in place.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from runtime.executor.program import TransferEnd
from runtime.health.diagnosis import WaitFor
from runtime.network.store_exchange import StoreExchange
from runtime.torch_versions import PrefixStore
from runtime.work import AllReduceWork, Observer

CLOSE_S = 5.0
POLL_S = 50e-6


class PhaseWorkers:
    """As ``runtime.executor.tcp.loop.EventLoop``; operations have ``group.timeout_s``."""

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
        stream: Any = torch.cuda.Stream
        self._streams = [stream(self._device) for _ in range(phases)]
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
        """The host sees no single waits: an operation has its time, and then it has failed."""
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
            except Exception as error:  # whatever it is, nobody may be left waiting
                if not self._stop:  # else it is a consequence of the failure that stopped us
                    is_theirs = isinstance(error, TimeoutError | dist.DistBackendError)
                    noticed = f"rank {self._group.rank} {error}"
                    self._failed(noticed, None if is_theirs else error)
        if phase < self._phases:
            self._queues[phase + 1].put(None)

    def _enqueue(self, phase: int, work: AllReduceWork) -> None:
        """Enqueue this rank's part of a phase on the phase's stream; divide before the first."""
        assert work.program is not None
        divide = work.average and phase == 0
        ends = [end for end in work.program.ends if end.phase == phase]
        if not divide and not ends:
            return
        stream = self._streams[phase]
        with torch.cuda.device(self._device), torch.cuda.stream(stream):
            stream.wait_event(work.ready)
            work.flat.record_stream(stream)
            if divide:
                work.flat.div_(self._group.world_size)
            for step, those in itertools.groupby(ends, lambda end: end.step):
                place = work.number, *work.program.steps[step]
                self._observer.step_begins(*place)
                self._exchange(self._communicators[phase], work, list(those))
                self._observer.step_ends(*place)
            work.ready = stream.record_event()

    def _drain(self, work: AllReduceWork) -> None:
        """Wait on the host until the data is in place; raises TimeoutError."""
        limit_s = self._group.timeout_s
        deadline = time.monotonic() + limit_s
        while not work.ready.query():
            if time.monotonic() > deadline:
                raise TimeoutError(f"operation {work.number} not done in {limit_s:g} s on the GPU")
            time.sleep(POLL_S)

    def _exchange(self, communicator: Any, work: AllReduceWork, ends: list[TransferEnd]) -> None:
        moving = [
            (end, chunk, torch.empty_like(chunk) if end.scratch else chunk)
            for end in ends
            if (chunk := work.chunk(end.chunk)).numel()
        ]
        if not moving:
            return
        communicator._start_coalescing()
        for end, _, data in moving:
            start = communicator.send if end.send else communicator.recv
            start([data], end.peer, end.index)
        communicator._end_coalescing().wait()  # orders the stream; the host goes on
        for end, chunk, data in moving:
            if end.reduce:
                chunk.add_(data)
            elif end.scratch:
                chunk.copy_(data)
