"""One rank's end of UBT: the protocol, what is below it, and the two threads that run them.

One thread moves datagrams and reduces what has come while it is in the cache; the other lays out
and transforms, which takes longer. Between two looks at the clock a limited number of datagrams
is taken in, so that a flood cannot keep a stage from ending. Deadlines are judged by the clock as
it was before the socket was read, and time in which this thread wanted to run and could not does
not count. After two looks that found few it pauses for a moment, as cards moderate their
interrupts.
"""

from __future__ import annotations

import contextlib
import functools
from collections import deque
from collections.abc import Callable

from latecomer.runtime.host import POLLIN, POLLOUT, SimpleQueue, host
from latecomer.runtime.optireduce.options import KIB
from latecomer.runtime.optireduce.udp.bucket import Bucket, ScratchPool
from latecomer.runtime.optireduce.udp.endpoint import Endpoint
from latecomer.runtime.optireduce.udp.events import Placed
from latecomer.runtime.optireduce.udp.protocol import BURSTS, UdpProtocol

READS = 8  # between two looks at the clock
DATAGRAMS = 1024  # received between two looks at the clock
LONGEST_S = 1.0  # between two looks
CLOSE_S = 5.0  # how long closing waits for each thread,
STOP_S = 1.0  # and giving up
SHORT_S = 0.002  # of not running, which is no pause: no timer is better
FEW_BYTES = 92 * KIB
"""Of data found at one look, below which the next one waits for more: what a look costs in Python
hardly depends on how much it finds. Bytes, not datagrams: of large ones a few are enough."""
PAUSE_S = 0.0005  # so long; 200 Mbit/s bring eight full frames in it, 1000 Mbit/s 42


class UdpLoop:
    """Carries buckets over UBT, several in flight; closes the ``endpoint``.

    ``done`` is called, on a thread of this, with each bucket whose result is in its tensor, and
    ``broken`` with whatever a thread did not expect; nothing is carried after it.
    """

    def __init__(
        self,
        protocol: UdpProtocol,
        endpoint: Endpoint,
        done: Callable[[Bucket], None],
        broken: Callable[[Exception], None],
    ) -> None:
        self.protocol = protocol
        self.endpoint = endpoint
        self._done = done
        self._broken = broken
        self._send_most = BURSTS * protocol.options.burst  # datagrams, between two other steps
        self._calls: deque[Callable[[], None]] = deque()
        self._tasks: SimpleQueue[Callable[[], None] | None] = host.SimpleQueue()
        self._waker, self._woken = host.socketpair()
        self._waker.setblocking(False)
        self._woken.setblocking(False)
        self._closing = False
        self._is_aborted = False
        self._data_received = 0  # datagrams of data, at the last look
        self._pool = ScratchPool()
        self._threads = [
            host.Thread(target=self._guarded, args=(run,), name=name, daemon=True)
            for run, name in ((self._loop, "latecomer-ubt"), (self._compute, "latecomer-mean"))
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, bucket: Bucket) -> None:
        """Carry it; returns at once."""
        self._tasks.put(lambda: self._encode(bucket))

    def set_bound(self, bound_s: float) -> None:
        """t_B of operations that are submitted from now on."""
        self._call(lambda: self.protocol.set_bound(bound_s))

    def abort(self) -> None:
        """Stop at once: after it no tensor is touched any more; any thread."""
        self._is_aborted = True
        self._end_threads(STOP_S)

    def close(self) -> None:
        """End the threads, when what has come is in place, and close the socket."""
        self._end_threads(CLOSE_S)
        self._waker.close()
        self._woken.close()
        self.endpoint.close()

    def _end_threads(self, within_s: float) -> None:
        self._closing = True
        self._call(lambda: None)
        self._tasks.put(None)
        for thread in self._threads:
            if thread is not host.current_thread():
                thread.join(timeout=within_s)

    def _call(self, function: Callable[[], None]) -> None:
        """Run a short function on the thread that moves datagrams, soon."""
        self._calls.append(function)
        with contextlib.suppress(OSError):  # full: it is awake anyway
            self._waker.send(b"\0")

    def _encode(self, bucket: Bucket) -> None:
        bucket.encode(self._pool)
        self._call(lambda: self.protocol.open(bucket, host.monotonic()))

    def _finish(self, bucket: Bucket) -> None:
        bucket.finish()
        self._pool.give(bucket.memory)
        self._done(bucket)

    def _guarded(self, run: Callable[[], None]) -> None:
        try:
            run()
        except Exception as error:  # whatever it is, no rank may be left waiting
            self._broken(error)

    def _compute(self) -> None:
        while (task := self._tasks.get()) is not None and not self._is_aborted:
            self._guarded(task)

    def _loop(self) -> None:
        protocol = self.protocol
        poll = host.poll()
        poll.register(self._woken, POLLIN)
        poll.register(self.endpoint, POLLIN)
        wake_s = 0.0
        is_full = False
        was_full = False
        found_few = False
        off_s = host.monotonic() - host.thread_time()  # grows while this thread does not run
        while not self._closing:
            wait_s = min(max(0.0, wake_s - host.monotonic()), LONGEST_S)
            if is_full != was_full:
                poll.modify(self.endpoint, POLLIN | (POLLOUT if is_full else 0))
                was_full = is_full
            ready = poll.poll(wait_s * 1e3)

            found_few_before = found_few
            data_bytes = self._data_received * protocol.options.datagram_bytes
            found_few = 0 < data_bytes < FEW_BYTES
            if found_few and found_few_before:
                host.sleep(PAUSE_S)

            now_s = host.monotonic()  # deadlines are judged by it: no pause before it is missed
            off_before_s = off_s
            off_s = now_s - host.thread_time()
            # less what it meant to sleep
            paused_s = off_s - off_before_s - wait_s - PAUSE_S
            if paused_s > SHORT_S:
                protocol.paused(paused_s)

            if any(descriptor == self._woken.fileno() for descriptor, _ in ready):
                self._woken.recv(4096)
            while self._calls:
                self._calls.popleft()()
            socket_empty = self._receive()
            protocol.handle_timer(now_s, socket_empty=socket_empty)
            while bucket := protocol.next_event():
                self._tasks.put(functools.partial(self._finish, bucket))
            is_full = self._send()
            wake_s = protocol.get_timer() if socket_empty else 0.0

    def _receive(self) -> bool:
        """Take in what lies in the socket, within limits; whether it is empty now."""
        self._data_received = 0
        datagrams = 0
        for _ in range(READS):
            received = self.endpoint.receive()
            if received is None:
                return True
            count, events = received
            datagrams += count
            now_s = host.monotonic()
            for event in events:
                self.protocol.receive_message(event, now_s)
                if isinstance(event, Placed):
                    self._data_received += event.datagrams
            self._send(data=False)  # credits at once: the sender may be waiting for them
            if datagrams >= DATAGRAMS:
                break
        return False

    def _send(self, *, data: bool = True) -> bool:
        """Send some; whether the kernel is full (poll tells when not)."""
        sent = 0
        while sent < self._send_most:
            now_s = host.monotonic()
            message = self.protocol.message_to_send(now_s, data=data)
            if message is None:
                return False
            taken = self.endpoint.send(message)
            self.protocol.sent(message, taken, now_s)
            if taken < message.datagrams:
                return True
            sent += taken
        return False
