"""One rank's end of UBT: the protocol, its socket, and the two threads that run them.

One thread moves datagrams and reduces what has come while it is in the cache; the other lays out
and transforms, which takes longer. Between two looks at the clock a limited number of batches is
taken in, so that a flood cannot keep a stage from ending. Deadlines are judged by the clock as it
was before the socket was read, and time in which this thread wanted to run and could not does not
count. After two looks that found few it pauses for a moment, as cards moderate their interrupts.
"""

from __future__ import annotations

import contextlib
import functools
import queue
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable

from runtime.optireduce.options import KIB
from runtime.optireduce.udp.bucket import Bucket, ScratchPool
from runtime.optireduce.udp.protocol import BURSTS, UdpProtocol
from runtime.optireduce.udp.socket import UdpSocket

BATCHES = 8  # received between two looks at the clock
DATAGRAMS = 1024
LONGEST_S = 1.0  # SHORT_S: of not running, no timer is better
CLOSE_S = 5.0
SHORT_S = 0.002
FEW_BYTES = 92 * KIB  # of data found at one look, below which the next one waits for more
PAUSE_S = 0.0005  # so long; 200 Mbit/s bring eight full frames in it, 1000 Mbit/s 42


class UdpLoop:
    """Carries buckets over UBT, several in flight; closes the ``channel``, which has its peers.

    ``done`` is called, on a thread of this, with each bucket whose result is in its tensor, and
    ``broken`` with whatever a thread did not expect; nothing is carried after it.
    """

    def __init__(
        self,
        protocol: UdpProtocol,
        channel: UdpSocket,
        done: Callable[[Bucket], None],
        broken: Callable[[Exception], None],
    ) -> None:
        self.protocol = protocol
        self._channel = channel
        self._done = done
        self._broken = broken
        self._most = BURSTS * protocol.options.burst
        self._calls: deque[Callable[[], None]] = deque()
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self._woken.setblocking(False)
        self._closing = False
        self._found = 0
        self._pool = ScratchPool()
        self._threads = [
            threading.Thread(target=self._guarded, args=(run,), name=name, daemon=True)
            for run, name in ((self._loop, "latecomer-ubt"), (self._compute, "latecomer-mean"))
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, bucket: Bucket) -> None:
        """Carry it; returns at once."""
        self._work.put(lambda: self._encode(bucket))

    def set_bound(self, bound_s: float) -> None:
        """t_B of operations that are submitted from now on."""
        self._call(lambda: self.protocol.set_bound(bound_s))

    def close(self) -> None:
        """End the threads and close the socket."""
        self._closing = True
        self._call(lambda: None)
        self._work.put(None)
        for thread in self._threads:
            thread.join(timeout=CLOSE_S)
        for one in (self._waker, self._woken, self._channel):
            one.close()

    def _call(self, function: Callable[[], None]) -> None:
        """Run a short function on the thread that moves datagrams, soon."""
        self._calls.append(function)
        with contextlib.suppress(OSError):  # full: it is awake anyway
            self._waker.send(b"\0")

    def _encode(self, bucket: Bucket) -> None:
        bucket.encode(self._pool)
        self._call(lambda: self.protocol.open(bucket, time.monotonic()))

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
        while (task := self._work.get()) is not None:
            self._guarded(task)

    def _loop(self) -> None:
        protocol = self.protocol
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        poll.register(self._channel, select.POLLIN)
        wake_s = 0.0
        is_full = False
        was_full = False
        few = False
        off_s = time.monotonic() - time.thread_time()  # grows while this thread does not run
        while not self._closing:
            wait_s = min(max(0.0, wake_s - time.monotonic()), LONGEST_S)
            if is_full != was_full:
                poll.modify(self._channel, select.POLLIN | (select.POLLOUT if is_full else 0))
                was_full = is_full
            ready = poll.poll(wait_s * 1e3)
            was_few = few
            few = 0 < self._found * protocol.options.datagram_bytes < FEW_BYTES
            if few and was_few:
                time.sleep(PAUSE_S)
            now_s = time.monotonic()  # deadlines are judged by it: no pause before it is missed
            before_s = off_s
            off_s = now_s - time.thread_time()
            if (paused_s := off_s - before_s - wait_s - PAUSE_S) > SHORT_S:
                protocol.paused(paused_s)
            if any(descriptor == self._woken.fileno() for descriptor, _ in ready):
                self._woken.recv(4096)
            while self._calls:
                self._calls.popleft()()
            empty = self._receive()
            protocol.handle_timer(now_s, socket_empty=empty)
            while bucket := protocol.next_event():
                self._work.put(functools.partial(self._finish, bucket))
            is_full = self._send()
            wake_s = protocol.get_timer() if empty else 0.0

    def _receive(self) -> bool:
        """Take in some batches; whether the socket is empty now."""
        self._found = taken = batches = 0
        while batches < BATCHES and taken < DATAGRAMS:
            if (rows := self._channel.receive()) is None:
                return True
            batches = batches + 1
            taken = taken + len(rows)
            self._found += self.protocol.receive_datagrams(rows, time.monotonic())
            self._send(data=False)  # credits at once: the sender may be waiting for them
        return False

    def _send(self, *, data: bool = True) -> bool:
        """Send some; whether the kernel is full (poll tells when not)."""
        left = self._most
        while left > 0:
            now_s = time.monotonic()
            if (out := self.protocol.datagrams_to_send(now_s, data=data)) is None:
                return False
            taken = self._channel.send(out.peer, out.rows)
            self.protocol.sent(out, taken, now_s)
            if taken < len(out.rows):
                return True
            left -= taken
        return False
