"""A rank's control plane at work: the state machine of ``runtime.policy.agent`` on UDP.

Messages are taken on the thread that listens to datagrams, so a rank answers and coordinates while
its main thread is busy or late. A second thread wakes up when something has to be said again. One
lock guards the state machine; nothing is sent under it.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from runtime.network.clock import Alignment, Ping, Pong
from runtime.network.control_channel import ControlChannel
from runtime.policy.agent import RankAgent
from runtime.policy.coordinator import Fault
from runtime.policy.decision import Decision
from runtime.policy.messages import Send, pack, unpack

CHANNEL = "decisions"


class PlaneClosed(Exception):
    """The control plane has ended: the executor has failed, or is being closed."""


class PolicyChannel:
    """The control plane of one rank.

    Args:
        control: is used by this object alone from now on.
        datagrams: closed by their owner.
        fault: is told, on a thread of its own, of ranks that disagree; once.

    Attributes:
        sent: messages sent about operations and plans (not those that align clocks).
    """

    def __init__(
        self, control: RankAgent, datagrams: ControlChannel, fault: Callable[[Fault], None]
    ) -> None:
        self._control, self._datagrams, self._fault = control, datagrams, fault
        self.sent = 0
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)
        self._timer = threading.Condition(self._lock)
        self._wakes_s = -math.inf
        self._closed = self._faulty = False
        datagrams.listen(CHANNEL, self._hear)
        self._thread = threading.Thread(target=self._run, name="latecomer-plane", daemon=True)
        self._thread.start()

    def align(self, within_s: float) -> None:
        """Wait until this rank's clock is aligned, but no longer than ``within_s``."""
        with self._lock:
            self._news.wait_for(
                lambda: math.isfinite(self._control.alignment(time.monotonic()).uncertainty_s),
                within_s,
            )

    def arrive(self, operation: int, size: int, kind: str) -> None:
        """This rank comes to an operation with a buffer of ``size`` bytes."""
        with self._lock:
            sends = self._control.arrive(time.monotonic(), operation, size, kind)
            self._changed()
        self._send(sends)

    def decision(self, operation: int) -> Decision:
        """Wait for the decision on the next operation.

        Raises:
            PlaneClosed: it will not come any more.
        """
        with self._lock:
            while (found := self._control.decision(operation)) is None:
                if self._closed:
                    raise PlaneClosed
                self._news.wait()
            return found

    def done(self, operation: int) -> None:
        """This rank has the result of an operation."""
        with self._lock:
            self._control.done(time.monotonic(), operation)

    def waits_for(self, operation: int) -> int:
        """The rank whose word a decision waits for."""
        with self._lock:
            return self._control.waits_for(operation)

    def alignment(self) -> Alignment:
        """How this rank's clock relates to the reference's now, as it is told to others."""
        with self._lock:
            return self._control.alignment(time.monotonic()).told

    def close(self) -> None:
        """End the waits and the thread; messages are no longer answered with decisions."""
        with self._lock:
            self._closed = True
            self._news.notify_all()
            self._timer.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=1.0)

    def _hear(self, sender: int, payload: bytes) -> None:
        message = unpack(payload)
        with self._lock:
            if self._closed:
                return
            sends = self._control.receive(time.monotonic(), sender, message)
            self._changed()
        self._send(sends)

    def _changed(self) -> None:
        """Wake who may have something to do now."""
        self._news.notify_all()
        if self._control.wake_s < self._wakes_s:
            self._timer.notify_all()
        if self._control.fault is not None and not self._faulty:
            self._faulty = True
            threading.Thread(target=self._fault, args=(self._control.fault,), daemon=True).start()

    def _run(self) -> None:
        try:
            self._tick()
        except Exception as error:  # without it no decision would ever come
            rank = self._datagrams.rank
            self._fault(Fault((rank,), f"broke its control plane, {error!r}"))

    def _tick(self) -> None:
        while True:
            with self._lock:
                if self._closed:
                    return
                self._wakes_s = self._control.wake_s
                left_s = self._wakes_s - time.monotonic()
                if left_s > 0:
                    self._timer.wait(min(left_s, 3600.0))
                if self._closed:
                    return
                self._wakes_s = -math.inf
                sends = self._control.tick(time.monotonic())
                self._changed()
            self._send(sends)

    def _send(self, sends: list[Send]) -> None:
        self.sent += sum(not isinstance(message, Ping | Pong) for _, message in sends)
        for peer, message in sends:
            self._datagrams.send(peer, CHANNEL, pack(message))
