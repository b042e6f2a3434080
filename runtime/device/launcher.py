"""Launches operations as kernels, one each, in order; knows what they wait for; can stop them.

The host only launches. Who is late, and for how long, is the kernels' own affair: one that begins
before another's puts what it has and waits, on the device. The host looks at events to see
operations end; when one takes long, it reads this rank's flags and says for whom its kernel waits.

When the device has come to an operation stands in the kernel's stamp: modes learn it from there
(``arrived`` of a :class:`KernelEngine`), and nobody has to look while kernels wait.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from latecomer.runtime.device.layout import KEPT, Cut, cut, epoch_after, stamp_place
from latecomer.runtime.device.memory import SymmetricMemory
from latecomer.runtime.device.stamps import StampArrivals
from latecomer.runtime.device.variants import Kernel, Launch, LoadedProgram
from latecomer.runtime.executor.nccl.results import Results
from latecomer.runtime.executor.nccl.streams import Device, Stream, StreamEvent
from latecomer.runtime.executor.tcp.connection import Mismatch
from latecomer.runtime.health.diagnosis import WaitFor
from latecomer.runtime.host import host, monotonic_now
from latecomer.runtime.work import CollectiveWork
from latecomer.verify.errors import ArgumentError

FIRST_EPOCH = 1  # flags begin with 0, and so do stamps: operations count from 1
SHORTEST_S = 50e-6  # between two looks at an event, which become rarer as it goes on,
LONGEST_S = 1e-3  # up to this
COMPARE_S = 0.25  # an operation that takes longer is compared with the others' in between
CLOSE_S = 5.0  # how long closing waits for operations, for the thread, and for the device

_abandoned: list[object] = []  # what a kernel that does not end may still use: kept for good


def keep_if_running(stream: Stream, used: object) -> None:
    """Keep for good what kernels use that have not ended after ``CLOSE_S`` seconds."""
    limit_s = host.monotonic() + CLOSE_S
    try:
        last = stream.record()
        while not last.query():
            if host.monotonic() > limit_s:
                _abandoned.append(used)
                return
            host.sleep(LONGEST_S)
    except Exception:  # what has broken the device: it runs nothing any more, or nobody knows
        _abandoned.append(used)


@dataclass
class LaunchedOperation:
    """An operation that was launched, from ``before_s`` on."""

    work: CollectiveWork
    launch: Launch
    cut: Cut
    done: StreamEvent
    before_s: float
    begun: bool = False  # as the host knows
    waits: tuple[int, int] | None = None  # for which piece and row, when last looked at
    since_s: float = field(default_factory=monotonic_now)  # for so long


class KernelEngine:
    """Launches a kernel for each operation; ``program_of`` makes what it runs.

    ``entered`` and ``arrived`` are told of each operation to which this rank's device has come, the
    latter when it has ended, with the time by its stamp (``time.monotonic()``). ``ended`` is called
    with each operation whose result is in place, ``failed`` with what went wrong.
    """

    def __init__(
        self,
        device: Device,
        memory: SymmetricMemory,
        kernel: Kernel,
        rank: int,
        program_of: Callable[[CollectiveWork], LoadedProgram],
        *,
        entered: Callable[[int], None],
        arrived: Callable[[int, float], None],
        ended: Callable[[CollectiveWork], None],
        failed: Callable[[str, Exception | None], None],
    ) -> None:
        self._device = device
        self._memory = memory
        self._kernel = kernel
        self._rank = rank
        self._program_of = program_of
        self._entered = entered
        self._arrived = arrived
        self._ended = ended
        self._failed = failed
        self._stamps = StampArrivals(kernel.clock)
        self._results = Results(device)
        self._stream = device.stream()
        self._epoch = FIRST_EPOCH
        self._operations = itertools.count(1)
        self._order = host.Lock()  # of launches; on all ranks the same
        self._flights: dict[int, LaunchedOperation] = {}  # in order
        self._marks: dict[int, int] = {}  # of the last operations
        self._news = host.Condition()
        self._is_over = False
        self._seen_waiting: tuple[WaitFor, float] | None = None
        self.moved_s = host.monotonic()
        self._thread = host.Thread(target=self._run, name="latecomer-kernels", daemon=True)
        self._thread.start()

    @property
    def idle(self) -> bool:
        """Whether no event is being looked at."""
        return not self._flights

    def submit(self, work: CollectiveWork) -> None:
        """Launch an operation behind what the caller's current stream has to do before."""
        work.by = "kernel"
        try:
            with self._order:
                if self._is_over:
                    return
                flight = self._launch(work)
                self._results.hand_out(work, flight.done)
                with self._news:
                    self._flights[work.number] = flight
                    self._news.notify_all()
        except Exception as error:
            self._broke(error)

    def waiting(self) -> tuple[WaitFor, float] | None:
        """For whose put this rank's oldest kernel waits, and since when that was first seen.

        After a stop it is what was seen last before: others still wait for this rank, and must not
        take it for the one that does not go on.
        """
        if not self._is_over:
            self._seen_waiting = self._wait_now()
        return self._seen_waiting

    def _wait_now(self) -> tuple[WaitFor, float] | None:
        """What :meth:`waiting` says while kernels run."""
        with self._news:
            flight = next(iter(self._flights.values()), None)
        if flight is None:
            return None
        # Before the kernel has begun it waits for nobody: it is this rank that others wait for.
        missing = self._missing(flight) if self._has_begun(flight) else None
        if missing != flight.waits:
            flight.waits = missing
            flight.since_s = host.monotonic()
            self.moved_s = flight.since_s
        if missing is None:
            return None
        program = flight.work.program
        assert program is not None
        _, row = missing
        end = program.ends[row]  # a device program has a row for each end, in this order
        phase, round_in_phase = program.steps[end.step]
        wait = WaitFor(flight.work.number, phase, round_in_phase, end.peer)
        return wait, flight.since_s

    def arrivals_ns(self, work: CollectiveWork) -> tuple[int, ...]:
        """By rank, when its kernel began this operation, which is done, by its device's clock.

        ArgumentError for one that is older than the last ``KEPT`` operations.
        """
        mark = self._marks.get(work.number)
        if mark is not None:
            stamps = self._memory.read(self._memory.stamps[stamp_place(mark)])
            if (stamps[:, 0] == mark).all():
                return tuple(stamps[:, 1].tolist())
        requirement = f"must be one of the last {KEPT - 2} operations, and done"
        raise ArgumentError("operation", work.number, requirement)

    def abort(self) -> None:
        """Stop at once: kernels that wait end, and put nothing any more."""
        self._is_over = True
        with self._news:
            self._news.notify_all()
        self._memory.raise_stop()

    def close(self) -> None:
        """Stop when the operations under way are done, or after ``CLOSE_S`` seconds."""
        with self._news:
            self._news.wait_for(lambda: self._is_over or not self._flights, CLOSE_S)
        self.abort()
        if host.current_thread() is not self._thread:
            self._thread.join(CLOSE_S)
        keep_if_running(self._stream, (self._memory, self._kernel, list(self._flights.values())))

    def _launch(self, work: CollectiveWork) -> LaunchedOperation:
        before_s = host.monotonic()
        loaded = self._program_of(work)
        slicing = cut(work.flat.numel(), work.flat.itemsize, loaded.program, self._memory.layout)

        # The number, which no other of the last operations has, above a checksum of what the
        # operation is, which all ranks must have in common. It stays positive in 64 bits.
        kind = work.description.partition(": ")[2]
        mark = next(self._operations) % 2**31 << 32 | zlib.crc32(kind.encode())
        launch = Launch(loaded, work.average, self._epoch, stamp_place(mark), mark)
        self._marks[work.number] = mark
        if len(self._marks) > KEPT:
            del self._marks[next(iter(self._marks))]
        self._epoch = epoch_after(self._epoch, slicing.pieces)

        self._stream.wait(self._device.current().record())
        self._stream.launch(lambda: self._kernel.run(work.flat, launch))
        self._stream.keep(work.flat)
        return LaunchedOperation(work, launch, slicing, self._stream.record(), before_s)

    def _run(self) -> None:
        while (flight := self._next()) is not None:
            try:
                self._land(flight)
            except Exception as error:  # whatever it is, nobody may be left waiting
                self._broke(error)
                return

    def _next(self) -> LaunchedOperation | None:
        """The oldest operation, as soon as there is one; nothing when it is over."""
        with self._news:
            self._news.wait_for(lambda: self._is_over or self._flights)
            return None if self._is_over else next(iter(self._flights.values()))

    def _land(self, flight: LaunchedOperation) -> None:
        """Wait for an operation on the host, and tell that it has ended."""
        began_s = compared_s = host.monotonic()
        while not flight.done.query():
            if self._is_over:
                return
            now_s = host.monotonic()
            if now_s > compared_s + COMPARE_S:
                compared_s = now_s
                self._compare(flight)
            host.sleep(min(LONGEST_S, max(SHORTEST_S, (now_s - began_s) / 20)))
        after_s = host.monotonic()
        if self._is_over:
            return  # the kernel may have ended because it was stopped
        mark, began_ns = self._compare(flight)
        work = flight.work
        is_own = mark == flight.launch.mark
        self._stamps.add(work.number, flight.before_s, began_ns if is_own else None, after_s)
        self._enter(flight)
        for operation, at_s in self._stamps.take():
            work.arrived_s = at_s
            self._arrived(operation, at_s)
        with self._news:
            del self._flights[work.number]
            self._news.notify_all()
        self.moved_s = host.monotonic()
        self._ended(work)

    def _compare(self, flight: LaunchedOperation) -> tuple[int, int]:
        """This rank's stamp; raise Mismatch if another has begun something else as this operation.

        A kernel that has been seen to begin has entered its operation.
        """
        mark = flight.launch.mark
        stamps = self._memory.read(self._memory.stamps[stamp_place(mark)])
        marks = stamps[:, 0]
        begun = marks >> 32 == mark >> 32
        for peer in torch.nonzero(begun & (marks != mark)).flatten().tolist():
            raise Mismatch(flight.work.number, peer)
        own_mark, began_ns = stamps[self._rank].tolist()
        if own_mark == mark:
            self._enter(flight)
        return own_mark, began_ns

    def _enter(self, flight: LaunchedOperation) -> None:
        if not flight.begun:
            flight.begun = True
            self._entered(flight.work.number)

    def _has_begun(self, flight: LaunchedOperation) -> bool:
        mark = flight.launch.mark
        own = self._memory.stamps[stamp_place(mark), self._rank, :1]
        return int(self._memory.read(own)) == mark

    def _missing(self, flight: LaunchedOperation) -> tuple[int, int] | None:
        """The first piece and row whose put has not come to all blocks."""
        flags = self._memory.read(self._memory.flags)
        loaded = flight.launch.loaded
        for piece in range(flight.cut.pieces):
            epoch = flight.launch.epoch + piece
            ahead = flags[epoch % len(flags), loaded.slots.long()].long() - epoch
            is_behind = ((ahead + 2**31) % 2**32 < 2**31).any(dim=1)  # epochs wrap around
            if is_behind.any():
                return piece, int(loaded.receives[is_behind.int().argmax()])
        return None

    def _broke(self, error: Exception) -> None:
        if not self._is_over:  # else it is a consequence of the failure that stopped us
            self._failed(f"rank {self._rank} {error}", error)
