"""Looks at the events of operations in flight: when the device came to them, when they were done.

A rank has come to an operation when the *stream* on which its caller works is there, not when the
host has enqueued it: with hosts far ahead of their devices only that says who is late. The host
learns of it, a little later, by looking; nothing waits for it.

An operation fails when it is not done in time, counted from when this rank's device came to it and
those before were done. A rank whose own device does not come waits for nobody: the others, whose
devices have come, ask in time who has not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from latecomer.runtime.executor.nccl.streams import StreamEvent
from latecomer.runtime.host import host
from latecomer.runtime.work import CollectiveWork

SHORTEST_S = 50e-6  # between two looks
LONGEST_S = 1e-3  # an arrival is seen so late at most
SHARE = 0.02
"""Of the time in which nothing has happened, which is the pause between these limits: looking costs
little where operations are long, and delays no operation by more than that share."""
CLOSE_S = 5.0  # how long closing waits for what is in flight, and then for the thread


class ArrivalSource(Protocol):
    """Knows when this rank's device has come to operations."""

    def take(self) -> list[tuple[int, float]]:
        """What has become known since the last call: operation, and when (``time.monotonic()``).

        Each operation once. It may become known only after the operation: what is decided from it
        is decided for later ones.
        """


class EventArrivals:
    """By events on the streams of the callers; a look is as exact as looks are frequent."""

    def __init__(self) -> None:
        self._events: dict[int, StreamEvent] = {}

    def add(self, operation: int, event: StreamEvent) -> None:
        """The device has come to ``operation`` when it has come to ``event``."""
        self._events[operation] = event

    def take(self) -> list[tuple[int, float]]:
        """Those that have been reached by now."""
        arrivals = [
            (operation, host.monotonic())
            for operation, event in self._events.items()
            if event.query()
        ]
        for operation, _ in arrivals:
            del self._events[operation]
        return arrivals


@dataclass
class EnqueuedOperation:
    """An operation that was enqueued."""

    work: CollectiveWork
    done: StreamEvent
    arrived_s: float | None = None


class Watcher:
    """A thread that looks while there are operations in flight.

    ``arrived`` and ``ended`` are told of each operation; ``failed`` of what ended the looking:
    TimeoutError, or what the device raised.
    """

    def __init__(
        self,
        limit_s: float,
        arrived: Callable[[int, float], None],
        ended: Callable[[CollectiveWork], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._limit_s = limit_s
        self._arrived = arrived
        self._ended = ended
        self._failed = failed
        self._events = EventArrivals()
        self.sources: list[ArrivalSource] = [self._events]
        self.moved_s = self._landed_s = host.monotonic()
        self._flights: dict[int, EnqueuedOperation] = {}
        self._news = host.Condition()
        self._is_over = False
        self._thread = host.Thread(target=self._run, name="latecomer-device", daemon=True)
        self._thread.start()

    @property
    def idle(self) -> bool:
        """Whether no event is being looked at."""
        return not self._flights

    def add(self, work: CollectiveWork, arrival: StreamEvent, done: StreamEvent) -> None:
        """Look after an operation."""
        with self._news:
            self._events.add(work.number, arrival)
            self._flights[work.number] = EnqueuedOperation(work, done)
            self._news.notify()

    def stop(self) -> None:
        """Look no more."""
        with self._news:
            self._is_over = True
            self._news.notify()

    def close(self) -> None:
        """Stop when nothing is in flight, or after ``CLOSE_S`` seconds."""
        limit_s = host.monotonic() + CLOSE_S
        with self._news:
            self._news.wait_for(lambda: self._is_over or self.idle, limit_s - host.monotonic())
        self.stop()
        if host.current_thread() is not self._thread:
            self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while self._has_flights():
            try:
                self._look()
            except Exception as error:  # whatever it is, nobody may be left waiting
                self.stop()
                self._failed(error)
            quiet_s = host.monotonic() - self.moved_s
            host.sleep(min(LONGEST_S, max(SHORTEST_S, SHARE * quiet_s)))

    def _has_flights(self) -> bool:
        """Wait for some; false when it is over."""
        with self._news:
            self._news.wait_for(lambda: self._is_over or self._flights)
            return not self._is_over

    def _look(self) -> None:
        with self._news:  # what is done by now, and then who has come: never only the former
            flights = list(self._flights.values())
            landed = [flight for flight in flights if flight.done.query()]
            arrivals: list[tuple[int, float]] = []
            for source in self.sources:
                arrivals += source.take()
        for operation, at_s in arrivals:
            self.moved_s = host.monotonic()
            if (flight := self._flights.get(operation)) is not None:
                flight.arrived_s = flight.work.arrived_s = at_s
            self._arrived(operation, at_s)
        for flight in landed:
            self._land(flight)
        if late := next((flight for flight in flights if self._is_overdue(flight)), None):
            text = f"operation {late.work.number} not done in {self._limit_s:g} s on the device"
            raise TimeoutError(text)

    def _is_overdue(self, flight: EnqueuedOperation) -> bool:
        if flight.arrived_s is None or flight.work.number not in self._flights:
            return False
        began_s = max(flight.arrived_s, self._landed_s)
        return host.monotonic() > began_s + self._limit_s

    def _land(self, flight: EnqueuedOperation) -> None:
        self.moved_s = self._landed_s = host.monotonic()
        with self._news:
            del self._flights[flight.work.number]
            self._news.notify_all()
        self._ended(flight.work)
