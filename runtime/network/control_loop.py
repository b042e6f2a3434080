"""One thread for all of a rank's control: it reads datagrams and calls what is due, in turn.

Every group has a loop of its own, so that what holds up one group, or closes it, is nothing to the
others. Each turn takes at most one datagram and then calls every timer that is due: neither a flood
of messages nor a timer that is always due keeps the others from their turn.

What is called must be quick and must not wait: not for the store, a peer, a connection or the
program's own code. Whatever may wait goes to a thread of its own, as the watchdog's verdict does.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Mapping

from latecomer.runtime.host import EVENT_READ, Socket, host

THREAD_NAME = "latecomer-control"
LONGEST_SLEEP_S = 3600.0  # the system call takes no infinity
CLOSE_S = 1.0  # how long the end of a call that is under way is waited for

logger = logging.getLogger("latecomer")


class Timer:
    """Calls ``call`` on the loop's thread when it is due; from :meth:`ControlLoop.timer`."""

    def __init__(
        self, loop: ControlLoop, call: Callable[[], None], failed: Callable[[Exception], None]
    ) -> None:
        self.call = call
        self.failed = failed
        self.due_s = math.inf  # ``time.monotonic()``; changed by :meth:`set` only
        self._loop = loop

    def set(self, due_s: float | None) -> None:
        """It is due then (``time.monotonic()``), at once if that is over, or never; any thread.

        A timer that has been called stays due until it is set anew.
        """
        self._loop.reschedule(self, math.inf if due_s is None else due_s)

    def cancel(self) -> None:
        """Call it no more; a call under way is waited for, unless this is that call."""
        self._loop.cancel(self)


class ControlLoop:
    """Waits for sockets and timers, and calls who is concerned.

    Args:
        readers: by socket, what reads one datagram when there is one; without waiting, since it
            may have been for nothing. The sockets are closed by their owner, after the loop.
    """

    def __init__(self, readers: Mapping[Socket, Callable[[], None]]) -> None:
        self._timers: list[Timer] = []
        self._running: Timer | None = None
        self._wakes_s = -math.inf  # when it wakes up by itself; while it is awake: in the past
        self._changed = host.Condition()  # guards the three above
        self._closed = False
        self._bell, self._door = host.socketpair()
        for end in (self._bell, self._door):
            end.setblocking(False)
        self._selector = host.selector([self._door, *readers])
        self._selector.register(self._door, EVENT_READ, self._empty_door)
        for reader, read in readers.items():
            self._selector.register(reader, EVENT_READ, read)
        self._thread = host.Thread(target=self._run, name=THREAD_NAME, daemon=True)
        self._thread.start()

    @property
    def is_current_thread(self) -> bool:
        """Whether the caller is called by this loop."""
        return host.current_thread() is self._thread

    def timer(self, call: Callable[[], None], failed: Callable[[Exception], None]) -> Timer:
        """A timer that is never due until it is set.

        ``failed`` is told of an exception of ``call``, which is not called again then.
        """
        timer = Timer(self, call, failed)
        with self._changed:
            self._timers.append(timer)
        return timer

    def reschedule(self, timer: Timer, due_s: float) -> None:
        """See :meth:`Timer.set`."""
        if timer.due_s == due_s:
            return
        with self._changed:
            timer.due_s = due_s
            is_earlier = due_s < self._wakes_s and timer in self._timers
            if is_earlier:
                self._wakes_s = -math.inf  # one ring is enough
        if is_earlier:
            self._ring()

    def cancel(self, timer: Timer) -> None:
        """See :meth:`Timer.cancel`."""
        with self._changed:
            if timer in self._timers:
                self._timers.remove(timer)
            if not self.is_current_thread:
                self._changed.wait_for(lambda: self._running is not timer, CLOSE_S)

    def close(self) -> None:
        """End the thread; nothing is called any more."""
        self._closed = True
        self._ring()
        if not self.is_current_thread:
            self._thread.join(CLOSE_S)

    def _ring(self) -> None:
        with contextlib.suppress(OSError):  # full: it will wake up; closed: it has ended
            self._bell.send(b"!")

    def _empty_door(self) -> None:
        self._door.recv(4096)

    def _run(self) -> None:
        try:
            while not self._closed:
                self._turn()
        finally:
            self._selector.close()
            self._bell.close()
            self._door.close()

    def _turn(self) -> None:
        """Wait for something to happen, and call who is concerned."""
        for key, _ in self._selector.select(self._sleep_s()):
            try:
                key.data()
            except Exception:
                logger.exception("reading a control message failed")

        for timer in self._due_timers():
            if not self._closed:
                self._call(timer)

    def _sleep_s(self) -> float:
        """How long until the next timer is due; whatever becomes due earlier rings from now on."""
        with self._changed:
            self._wakes_s = min((timer.due_s for timer in self._timers), default=math.inf)
            return min(max(0.0, self._wakes_s - host.monotonic()), LONGEST_SLEEP_S)

    def _due_timers(self) -> list[Timer]:
        """Those to call now; from here on it is awake, and sees what changes before it sleeps."""
        with self._changed:
            self._wakes_s = -math.inf
            now_s = host.monotonic()
            return [timer for timer in self._timers if timer.due_s <= now_s]

    def _call(self, timer: Timer) -> None:
        with self._changed:
            if timer not in self._timers:
                return  # cancelled by one that was called before it
            self._running = timer
        try:
            timer.call()
        except Exception as error:
            self.cancel(timer)
            self._report(timer, error)
        finally:
            with self._changed:
                self._running = None
                self._changed.notify_all()

    def _report(self, timer: Timer, error: Exception) -> None:
        """The other timers go on, whatever becomes of this one."""
        try:
            timer.failed(error)
        except Exception:
            logger.exception("a timer of a control protocol failed")
