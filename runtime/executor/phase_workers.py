"""Phases as lanes: a thread with a queue for each, for a mover that enqueues whole phases (NCCL).

An operation goes through the lanes in order, and the lanes work on different operations at the
same time, so the helpers reduce the next bucket while the last one still waits for the late rank.
All ranks submit in the same order and every lane is first in, first out: with the schedule's own
proof this rules out deadlock. The last lane waits until the data is in place.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

import torch.distributed as dist

from runtime.executor.nccl import NcclMover
from runtime.executor.operation import Observer, Operation, PeerLost
from runtime.health.diagnosis import WaitFor

CLOSE_S = 5.0


class PhaseWorkers:
    """Runs operations with a mover.

    Args:
        mover: enqueues phases.
        rank, size: place in the group.
        phases: the most phases of any schedule.
        observer: is told about steps, on the lanes' threads.
        ended: is called with each operation whose result is in place.
        failed: is called once with what was noticed, and with the exception if it is this rank's
            own.

    Attributes:
        moved_s: ``time.monotonic()`` when an operation last came on.
    """

    def __init__(
        self,
        mover: NcclMover,
        rank: int,
        size: int,
        phases: int,
        *,
        observer: Observer,
        ended: Callable[[Operation], None],
        failed: Callable[[str, Exception | None], None],
    ) -> None:
        self._mover, self._rank, self._size, self._phases = mover, rank, size, phases
        self._observer, self._ended, self._failed = observer, ended, failed
        self._stop = False
        self.moved_s = time.monotonic()
        self._queues: list[queue.SimpleQueue[Operation | None]] = [
            queue.SimpleQueue() for _ in range(phases + 1)
        ]
        self._threads = [
            threading.Thread(target=self._lane, args=(i,), name=f"latecomer-lane-{i}", daemon=True)
            for i in range(phases + 1)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, operation: Operation) -> None:
        """Start an operation, on the thread whose current stream makes its data."""
        self._mover.submitted(operation)
        self.moved_s = time.monotonic()
        self._queues[0].put(operation)

    def waiting(self) -> tuple[WaitFor, float] | None:
        """The host sees no single waits: an operation has its time, and then ``failed`` is told."""
        return None

    def abort(self) -> None:
        """Stop at once."""
        self._stop = True
        self._mover.abort()

    def close(self) -> None:
        """Stop when the operations under way are done, but within ``CLOSE_S`` seconds each."""
        self._queues[0].put(None)
        for thread in self._threads:
            thread.join(timeout=CLOSE_S)
        self._mover.close()

    def _lane(self, number: int) -> None:
        while (operation := self._queues[number].get()) is not None:
            if self._stop:
                continue
            try:
                self._work(number, operation)
            except PeerLost as lost:
                self._report(str(lost), None)
            except dist.DistBackendError as error:  # a communicator that others have left
                self._report(str(error), None)
            except Exception as error:  # whatever it is, nobody may be left waiting
                self._report("broke", error)
        if number < self._phases:
            self._queues[number + 1].put(None)

    def _work(self, lane: int, operation: Operation) -> None:
        if lane == self._phases:
            self._mover.drain(operation)
            self._ended(operation)
        else:
            if lane == 0 and operation.average:
                self._mover.divide(operation, self._size)
            if lane < len(operation.plans):
                self._mover.run(lane, operation, self._observer)
            self._queues[lane + 1].put(operation)
        self.moved_s = time.monotonic()

    def _report(self, noticed: str, error: Exception | None) -> None:
        if not self._stop:  # else it is a consequence of the failure that stopped us
            self._failed(f"rank {self._rank} {noticed}", error)
