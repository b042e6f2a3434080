"""Arrivals by the kernels' own time stamps: nobody has to look while they wait.

A kernel writes when it began, by the clock of its device (``globaltimer``, nanoseconds from some
beginning). What relates that clock to the host's is cause and effect: a kernel begins after its
host has begun to launch it, and before the host has seen its end. So every launch bounds the
difference of the two clocks from both sides, and the narrowest bounds are kept: at first those of
empty kernels, for which the host waits at the start. Clocks drift, so bounds widen as they grow
old. Clocks of different GPUs are never compared with each other: each rank's arrivals are on its
own host's clock.
"""

from __future__ import annotations

import math

DRIFT = 1e-4  # seconds per second, of a device's clock against its host's: more than quartz does


class DeviceClock:
    """Bounds on the host's ``time.monotonic()`` minus the device's clock."""

    def __init__(self) -> None:
        self._low_s = -math.inf
        self._high_s = math.inf
        self._at_s = 0.0

    @property
    def uncertainty_s(self) -> float:
        """At most so wrong is :meth:`host_s`."""
        return (self._high_s - self._low_s) / 2

    def observe(self, before_s: float, device_s: float, after_s: float) -> None:
        """The device's clock was at ``device_s`` between two times of the host."""
        wider_s = DRIFT * (after_s - self._at_s)
        low_s = max(self._low_s - wider_s, before_s - device_s)
        high_s = min(self._high_s + wider_s, after_s - device_s)
        if low_s > high_s:  # one of the clocks was set
            low_s = before_s - device_s
            high_s = after_s - device_s
        self._low_s = low_s
        self._high_s = high_s
        self._at_s = after_s

    def host_s(self, device_s: float) -> float:
        """A time of the device on the host's clock; after the first observation."""
        return device_s + (self._low_s + self._high_s) / 2


class StampArrivals:
    """As ``latecomer.runtime.executor.nccl.watcher.ArrivalSource``.

    It is told of each operation that has ended.
    """

    def __init__(self, clock: DeviceClock) -> None:
        self._clock = clock
        self._arrivals: list[tuple[int, float]] = []

    def add(self, operation: int, before_s: float, began_ns: int | None, after_s: float) -> None:
        """Its launch began at ``before_s``, its end was seen at ``after_s``.

        ``began_ns``: its stamp; none if a later operation's stands there already.
        """
        at_s = after_s
        if began_ns is not None:
            self._clock.observe(before_s, began_ns * 1e-9, after_s)
            at_s = self._clock.host_s(began_ns * 1e-9)
        self._arrivals.append((operation, min(max(at_s, before_s), after_s)))

    def take(self) -> list[tuple[int, float]]:
        """Operations that have become known since the last call, and when they were reached."""
        arrivals = self._arrivals
        self._arrivals = []
        return arrivals
