"""A device without a GPU: each stream is a thread that does what is launched on it, in order.

Tensors are the CPU's, and Gloo moves them. What is like CUDA, for the sake of tests:

    order      within a stream only; two streams are ordered by events alone. A kernel that takes
               long (``stream.launch(gate.wait)``) holds up what is behind it, never the host
    pools      streams come from two pools of a fixed size, which then give them again: so two
               owners may have one stream, but never one of each pool
    errors     the first call that raises breaks the device: nothing launched runs any more, and
               whoever asks for an event that was not reached by then gets that error
    capture    nothing runs; a stream joins by waiting for an event of the capture. Refused are:
               asking for any event, an order between work inside and outside, an end at which the
               capturing stream has not waited for all. ``replay`` runs what was captured
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Literal

import torch
import torch.distributed as dist

from latecomer.runtime.health.native_work import close_connections
from latecomer.runtime.host import SimpleQueue, host

POOL = 32  # streams, as in torch's
Frontier = dict["SimulatedStream", int]  # of a capture: up to where in each stream


class SimulatedEvent:
    """A place in a stream; in a capture, with all that comes before it."""

    def __init__(self, device: SimulatedDevice, before: Frontier | None) -> None:
        self._device = device
        self.before = before
        self.reached = host.Event()

    def query(self) -> bool:
        """Whether it was reached; raises what broke the device before, and in captures."""
        if (graph := self._device.graph) is not None and graph.forbids_queries():
            raise RuntimeError("an event was queried while a graph is captured")
        if self.before is not None:
            raise RuntimeError("an event of a captured graph was queried")
        if not self.reached.is_set() and self._device.error is not None:
            raise self._device.error
        return self.reached.is_set()


class SimulatedStream:
    """A thread with a queue."""

    def __init__(self, device: SimulatedDevice) -> None:
        self._device = device
        self._queue: SimpleQueue[Callable[[], object] | None] = host.SimpleQueue()
        self._thread = host.Thread(target=self._run, name="simulated-stream", daemon=True)
        self._thread.start()

    def launch(self, call: Callable[[], object]) -> None:
        """For the thread, or for the graph that is being captured."""
        graph = self._device.graph
        if graph is not None and self in graph.frontiers:
            graph.add(self, call)
        else:
            self._queue.put(call)

    def record(self) -> SimulatedEvent:
        """An event that the thread sets."""
        graph = self._device.graph
        inside = graph is not None and self in graph.frontiers
        before = dict(graph.frontiers[self]) if graph is not None and inside else None
        event = SimulatedEvent(self._device, before)
        if not inside:
            self._queue.put(event.reached.set)
        return event

    def wait(self, event: SimulatedEvent) -> None:
        """The thread waits, or the graph notes the order."""
        graph = self._device.graph
        if graph is not None and event.before is not None:
            graph.join(self, event.before)
        elif event.before is not None or (graph is not None and self in graph.frontiers):
            raise RuntimeError("an order between what is captured and what is not")
        else:
            self._queue.put(lambda: self._device.wait_for(event))

    def keep(self, tensor: torch.Tensor) -> None:
        """Python keeps it with the calls that use it."""

    def synchronize(self) -> None:
        """Wait on the host until all that was launched so far is done; raises as a query."""
        event = self.record()
        self._device.wait_for(event)
        event.query()

    def end(self) -> None:
        """End the thread when it has done all; work that hangs is left behind."""
        self._queue.put(None)

    def _run(self) -> None:
        with self._device.on(self):
            while (call := self._queue.get()) is not None:
                if self._device.error is None:
                    try:
                        call()
                    except Exception as error:
                        self._device.error = error


class SimulatedGraph:
    """What was captured, in order, and for each stream in it what comes before its next work."""

    def __init__(self, origin: SimulatedStream, thread: int | None) -> None:
        self._origin = origin
        self._calls = list[Callable[[], object]]()
        self._thread = thread
        self.frontiers: dict[SimulatedStream, Frontier] = {origin: {origin: 0}}

    def forbids_queries(self) -> bool:
        """Whether the calling thread may not ask for events."""
        return self._thread in (None, host.thread_number())

    def add(self, stream: SimulatedStream, call: Callable[[], object]) -> None:
        """One more piece of work on a stream."""
        self._calls.append(call)
        self.frontiers[stream][stream] += 1

    def join(self, stream: SimulatedStream, before: Frontier) -> None:
        """What is launched on ``stream`` from now on comes after ``before``."""
        frontier = self.frontiers.setdefault(stream, {stream: 0})
        for earlier, count in before.items():
            frontier[earlier] = max(count, frontier.get(earlier, 0))

    def end(self) -> None:
        """RuntimeError if the origin has not waited for all."""
        joined = self.frontiers[self._origin]
        for stream, frontier in self.frontiers.items():
            if frontier[stream] > joined.get(stream, 0):
                raise RuntimeError("the capture ends with work that was not joined")

    def replay(self) -> None:
        """Do all of it again on the origin, in an order that was allowed."""
        for call in self._calls:
            self._origin.launch(call)


class StreamPool:
    """So many streams of a device, in turn."""

    def __init__(self, device: SimulatedDevice, size: int) -> None:
        self._device = device
        self._size = size
        self._turns = itertools.count()
        self.streams: list[SimulatedStream] = []

    def take(self) -> SimulatedStream:
        """A new one, or when all are given, the first again."""
        turn = next(self._turns)
        if turn < self._size:
            self.streams.append(SimulatedStream(self._device))
        return self.streams[turn % self._size]


class SimulatedDevice:
    """A device of one process, with two pools of so many streams; ``close`` ends its threads.

    Devices with different names of a ``machine`` are taken to be on different ones.
    """

    backend = "gloo"

    def __init__(self, pool: int = POOL, machine: str = "") -> None:
        self.machine = machine
        self.tensors = torch.device("cpu")
        self.error: Exception | None = None
        self.graph: SimulatedGraph | None = None
        self._currents = host.ThreadLocal()
        self._default = SimulatedStream(self)
        self._pool = StreamPool(self, pool)
        self._asides = StreamPool(self, pool)

    def current(self) -> SimulatedStream:
        """The default stream, or that of the innermost :meth:`on` of this thread."""
        stream: SimulatedStream = getattr(self._currents, "stream", self._default)
        return stream

    def stream(self) -> SimulatedStream:
        """From the pool, as torch's."""
        return self._pool.take()

    def aside(self) -> SimulatedStream:
        """From the other pool."""
        return self._asides.take()

    @contextlib.contextmanager
    def on(self, stream: SimulatedStream) -> Iterator[SimulatedStream]:
        """Inside, ``stream`` is the calling thread's current one."""
        before = getattr(self._currents, "stream", None)
        self._currents.stream = stream
        yield stream
        if before is None:
            del self._currents.stream
        else:
            self._currents.stream = before

    def is_capturing(self) -> bool:
        """Whether the calling thread's current stream takes part in a capture."""
        return self.graph is not None and self.current() in self.graph.frontiers

    @contextlib.contextmanager
    def capture(
        self, error_mode: Literal["global", "thread_local"] = "global"
    ) -> Iterator[SimulatedGraph]:
        """Capture what is launched inside; RuntimeError if what ends it is not allowed.

        ``error_mode``, as torch's ``capture_error_mode``: whom asking for events is forbidden, all
        threads or the capturing one.
        """
        assert self.graph is None
        thread = host.thread_number() if error_mode == "thread_local" else None
        self.graph = graph = SimulatedGraph(self.current(), thread)
        try:
            yield graph
            graph.end()
        finally:
            self.graph = None

    def abort(self, group: dist.ProcessGroup) -> None:
        """Gloo has no abort that ends waits."""
        close_connections(group, group.rank(), group.size())

    def wait_for(self, event: SimulatedEvent) -> None:
        """Wait for an event on the calling thread, or until the device has failed."""
        while not event.reached.wait(0.02):  # an event of a device that has failed is never set
            if self.error is not None:
                return

    def synchronize(self) -> None:
        """Wait on the host for all streams; raises what broke the device."""
        for stream in self._all():
            stream.synchronize()

    def close(self) -> None:
        """End the threads when they have done what was launched."""
        for stream in self._all():
            stream.end()

    def _all(self) -> list[SimulatedStream]:
        return [self._default, *self._pool.streams, *self._asides.streams]
