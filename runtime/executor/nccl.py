"""Moving chunks of CUDA tensors over NCCL: one coalesced group of transfers per round.

Every phase has a communicator and a side stream of its own, so that the ReduceScatter of one
bucket can run while the completion of the last one still waits for the late rank. Rounds follow
each other on the stream; the host only enqueues, and looks at one event per operation at the end.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from runtime.executor.operation import Observer, Operation, PeerLost
from runtime.executor.program import Receive, Step
from runtime.torch_versions import PrefixStore, Store
from verify.core.schedule import Schedule

POLL_S = 50e-6


class NcclMover:
    """NCCL communicators and side streams, one of each per phase, on the current device."""

    def __init__(
        self, store: Store, rank: int, size: int, schedules: Sequence[Schedule], timeout_s: float
    ) -> None:
        self._timeout_s = timeout_s
        self._device = torch.device("cuda", torch.cuda.current_device())
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=timeout_s)
        self._groups: list[Any] = [  # the stubs give backends no send and recv
            dist.ProcessGroupNCCL(PrefixStore(f"{lane}", store), rank, size, options)
            for lane in range(max(len(schedule.phases) for schedule in schedules))
        ]
        self._streams: list[Any] = [
            torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            for _ in self._groups
        ]

    def submitted(self, operation: Operation) -> None:
        """Note when the data that the caller's stream is computing will be there."""
        operation.ready = torch.cuda.current_stream(self._device).record_event()

    def run(self, lane: int, operation: Operation, observer: Observer) -> None:
        """Enqueue this rank's part of phase ``lane`` on the lane's stream."""
        phase, stream = operation.plans[lane], self._streams[lane]
        with torch.cuda.device(self._device), torch.cuda.stream(stream):
            stream.wait_event(operation.ready)
            operation.flat.record_stream(stream)
            for step in phase.steps:
                observer.step_begins(operation.number, phase.name, step.round)
                self._exchange(lane, operation, step)
                observer.step_ends(operation.number, phase.name, step.round)
            operation.ready = stream.record_event()

    def divide(self, operation: Operation, divisor: int) -> None:
        """Divide this rank's data, before the first phase."""
        stream = self._streams[0]
        with torch.cuda.device(self._device), torch.cuda.stream(stream):
            stream.wait_event(operation.ready)
            operation.flat.div_(divisor)
            operation.flat.record_stream(stream)
            operation.ready = stream.record_event()

    def drain(self, operation: Operation) -> None:
        """Wait on the host until the data is in place.

        Raises:
            PeerLost: it is not within the time-out.
        """
        deadline = time.monotonic() + self._timeout_s
        while not operation.ready.query():
            if time.monotonic() > deadline:
                detail = (
                    f"operation {operation.number} not done in {self._timeout_s:g} s on the GPU"
                )
                raise PeerLost(detail)
            time.sleep(POLL_S)

    def abort(self) -> None:
        """End what is enqueued on all communicators."""
        for group in self._groups:
            group.abort()

    def close(self) -> None:
        """Release the communicators."""
        for group in self._groups:
            group.shutdown()

    def _exchange(self, lane: int, operation: Operation, step: Step) -> None:
        group = self._groups[lane]
        landed: list[tuple[Receive, torch.Tensor]] = []
        sends = [(s, operation.chunk(s.chunk)) for s in step.sends]
        sends = [(s, data) for s, data in sends if data.numel()]
        for receive in step.receives:
            into = operation.chunk(receive.chunk)
            if into.numel():
                landed.append((receive, torch.empty_like(into) if receive.scratch else into))
        if not sends and not landed:
            return
        group._start_coalescing()
        for send, data in sends:
            group.send([data], send.peer, send.index)
        for receive, into in landed:
            group.recv([into], receive.peer, receive.index)
        group._end_coalescing().wait()  # orders the stream; the host goes on
        for receive, into in landed:
            if receive.scratch:
                chunk = operation.chunk(receive.chunk)
                if receive.reduce:
                    chunk.add_(into)
                else:
                    chunk.copy_(into)
