"""Runs this rank's program on a device with streams: a group of transfers per round, in order.

Every phase has a process group and a stream of its own, and so has the library's all-reduce. An
operation goes through its phases in order, and the phases work on different operations at the same
time, so that the ReduceScatter of one bucket can run while the completion of the last one still
waits for the late rank. Rounds follow each other on the stream, with what is summed between them.

All of it is enqueued by the thread that submits, in the order in which it submits: that is the same
on all ranks, also between our transfers and others that the program has on the device, which NCCL
asks for where communicators overlap. With the schedule's own proof this rules out deadlock. The
host waits for nothing; a thread looks at the events of operations in flight (``watcher``).

The same makes a whole operation something that a CUDA graph can capture: nothing is decided,
queried or waited for on the host. What NCCL sets up with first transfers it does outside, before;
and no event may be queried while a graph is captured, so nothing may be in flight then.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator

import torch
import torch.distributed as dist

from latecomer.runtime.executor.nccl.groups import PeerGroup, TensorEnd, make_groups
from latecomer.runtime.executor.nccl.results import Results
from latecomer.runtime.executor.nccl.streams import Device, Stream, StreamEvent
from latecomer.runtime.executor.nccl.watcher import Watcher
from latecomer.runtime.health.diagnosis import WaitFor
from latecomer.runtime.health.watchdog import Watchdog
from latecomer.runtime.host import host
from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.runtime.work import CollectiveWork, Observer, TransferEnd
from latecomer.verify.errors import ArgumentError

TRANSFERS = "transfers"
"""What is said of operations that run by rounds of transfers (``CollectiveWork.by``)."""

Call = Callable[[], None]


class DeviceEngine:
    """Enqueues the rounds of operations; one fails that takes longer than ``group.timeout_s``.

    Args:
        group: for connecting; all ranks make an engine at the same time.
        phases: the most phases of any schedule.
        watchdog: is told when this rank's device has come to an operation.
        arrived: is told so, too, and at what time (``time.monotonic()``).
        ended: is called with each operation whose result is in place.
        failed: is called once with what was noticed, and with the exception if it is this rank's.
        others_idle: whether nothing is in flight in another engine that looks at events.

    :attr:`transfers` is said of operations that run by rounds: with a reason, where a kernel was
    wanted.
    """

    def __init__(
        self,
        device: Device,
        group: StoreExchange,
        phases: int,
        watchdog: Watchdog,
        observer: Observer,
        *,
        arrived: Callable[[int, float], None],
        ended: Callable[[CollectiveWork], None],
        failed: Callable[[str, Exception | None], None],
        others_idle: Callable[[], bool] = lambda: True,
    ) -> None:
        self._device = device
        self._rank = group.rank
        self._observer = observer
        self._entered = watchdog.enter
        self._arrived = arrived
        self._ended = ended
        self._failed = failed
        self._others_idle = others_idle
        self.transfers = TRANSFERS

        # a tensor: by a number, CUDA multiplies with its reciprocal, which rounds twice
        self._world_size = torch.full((1,), float(group.world_size), device=device.tensors)
        self._results = Results(device)
        try:
            self._groups = make_groups(device, group, phases + 1)  # the last for the library's own
        except (RuntimeError, TimeoutError) as error:  # torch's, which name no rank
            watchdog.fail(f"rank {self._rank} could not connect: {error}")
            raise watchdog.failure or error from error
        self._streams = [device.stream() for _ in self._groups]
        self._ran: set[object] = set()  # the ways in which operations have run
        self._enqueuing = host.Lock()  # of two operations one is first, on all streams
        self._watcher = Watcher(group.timeout_s, self._reached, self._land, self._broke)
        self._is_over = False

    @property
    def moved_s(self) -> float:
        """When an operation last went on here."""
        return self._watcher.moved_s

    def submit(self, work: CollectiveWork) -> None:
        """Enqueue an operation, by its program or, without one, the library's own.

        On the thread whose current stream makes its data, which may be captured by a graph:
        ArgumentError where that can't be. What else goes wrong goes to ``failed``.
        """
        captured = self._device.is_capturing()
        if captured:
            self._require_capturable(work)
        if not work.by:
            work.by = "library" if work.program is None else self.transfers
        try:
            with self._enqueuing:
                arrival, done = self._enqueue(work)
        except Exception as error:
            self._broke(error)
            return
        self._results.hand_out(work, done)
        if captured:  # it is over for the host; each replay runs it without the host
            work.join = lambda: self._device.current().wait(done)
            self._reached(work.number, host.monotonic())
            self._ended(work)
        else:
            self._ran.add(work.key)
            self._watcher.add(work, arrival, done)

    def waiting(self) -> tuple[WaitFor, float] | None:
        """The host sees no single waits: an operation has its time, and then it has failed."""
        return None

    def abort(self) -> None:
        """Stop at once, with what is enqueued; the groups together, none may wait for another."""
        self._is_over = True
        self._watcher.stop()
        for group in self._groups:
            host.Thread(
                target=self._cut, args=(group,), name="latecomer-abort", daemon=True
            ).start()

    def _cut(self, group: PeerGroup) -> None:
        """End what is under way in a group, and not before it is sure to be marked."""
        self._results.spoil()
        group.abort()

    def close(self) -> None:
        """Stop when the operations under way are done, or after some seconds."""
        self._watcher.close()
        self._is_over = True
        for group in self._groups:
            group.close()

    def _enqueue(self, work: CollectiveWork) -> tuple[StreamEvent, StreamEvent]:
        """The places on the streams at which the data is there, and at which the sum is."""
        arrival = done = self._device.current().record()
        stream = self._streams[-1]
        divide = work.average
        for stream, calls in self._parts(work):
            if calls or divide:
                done = self._after(done, stream, work, divide, calls)
            divide = False
        seal = [lambda: self._results.seal(work.flat)]
        return arrival, self._after(done, stream, work, False, seal)

    def _land(self, work: CollectiveWork) -> None:
        """The device is past all of an operation."""
        self._ended(work)

    def _parts(self, work: CollectiveWork) -> Iterator[tuple[Stream, list[Call]]]:
        """What each stream does, one after the other."""
        if work.program is None:
            yield self._streams[-1], [lambda: self._groups[-1].all_reduce(work.flat)]
            return
        for phase, stream in enumerate(self._streams[: work.program.phases]):
            ends = [end for end in work.program.ends if end.phase == phase]
            rounds = []
            for step, ends_of_step in itertools.groupby(ends, lambda end: end.step):
                rounds.append(self._round(phase, work, step, list(ends_of_step)))
            yield stream, rounds

    def _after(
        self,
        before: StreamEvent,
        stream: Stream,
        work: CollectiveWork,
        divide: bool,
        calls: list[Call],
    ) -> StreamEvent:
        stream.wait(before)
        if divide:  # before the sums, as DDP and NCCL do, so that narrow formats do not overflow
            stream.launch(lambda: work.flat.div_(self._world_size))
        for call in calls:
            stream.launch(call)
        stream.keep(work.flat)
        return stream.record()

    def _round(self, phase: int, work: CollectiveWork, step: int, ends: list[TransferEnd]) -> Call:
        """One round of this rank, for a stream."""
        assert work.program is not None
        group = self._groups[phase]
        phase_name, round_in_phase = work.program.steps[step]

        def call() -> None:
            self._observer.step_begins(work.number, phase_name, round_in_phase)
            exchange(group, ends, work.chunk)
            self._observer.step_ends(work.number, phase_name, round_in_phase)

        return call

    def _require_capturable(self, work: CollectiveWork) -> None:
        text = ""
        remedy = ""
        if not (self._watcher.idle and self._others_idle()):
            text = "operations before it are in flight, and can't be looked at in a capture"
            remedy = "Wait for their results before the capture"
        elif work.key not in self._ran:
            text = "it has not run before, and what NCCL sets up for it can't be captured"
            remedy = "Run it once before, by the same schedule with the same late ranks"
        if text:
            shown = f"a CUDA graph of operation {work.number}"
            raise ArgumentError("capture", shown, text, remedy)

    def _reached(self, operation: int, at_s: float) -> None:
        self._entered(operation)
        self._arrived(operation, at_s)

    def _broke(self, error: Exception) -> None:
        if not self._is_over:  # else it is a consequence of the failure that stopped us
            is_theirs = isinstance(error, TimeoutError | dist.DistBackendError)
            self._failed(f"rank {self._rank} {error}", None if is_theirs else error)


def exchange(
    group: PeerGroup,
    ends: Iterable[TransferEnd],
    chunk_of: Callable[[int], torch.Tensor],
    beside: Callable[[list[TransferEnd]], list[TensorEnd]] = lambda moving: [],
) -> None:
    """Move the chunks of a round that have elements, and sum what came.

    ``beside``: what else goes with these, last between each two ranks.
    """
    moving: list[tuple[TransferEnd, torch.Tensor, torch.Tensor]] = []
    for end in ends:
        chunk = chunk_of(end.chunk)
        if chunk.numel():
            data = torch.empty_like(chunk) if end.scratch else chunk
            moving.append((end, chunk, data))
    if not moving:
        return
    more = beside([end for end, _, _ in moving])
    group.transfer([*((end.send, data, end.peer) for end, _, data in moving), *more])
    for end, chunk, data in moving:
        if end.reduce:
            chunk.add_(data)
        elif end.scratch:
            chunk.copy_(data)
