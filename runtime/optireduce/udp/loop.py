"""One rank's end of UBT: the protocol, what is below it, and the two threads that run them.

One thread moves datagrams and reduces what has come while it is in the cache; all that is quick
happens there, since to hand a bucket from thread to thread takes longer than to lay it out. The
other does what takes longer: the transform, and what has to be made good where something is lost.
Between two looks at the clock a limited number of datagrams is taken in, so that a flood cannot
keep a stage from ending. Deadlines are judged by the clock as it was before the socket was read,
and time in which this thread wanted to run and could not does not count.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections import deque
from collections.abc import Callable

from latecomer.runtime.host import POLLIN, POLLOUT, SimpleQueue, Thread, host
from latecomer.runtime.optireduce.udp.bucket import Bucket, ScratchPool
from latecomer.runtime.optireduce.udp.endpoint import Endpoint
from latecomer.runtime.optireduce.udp.events import Control, Placed
from latecomer.runtime.optireduce.udp.moderation import Moderator
from latecomer.runtime.optireduce.udp.protocol import BURSTS, UdpProtocol

READS = 8  # between two looks at the clock
DATAGRAMS = 1024  # received between two looks at the clock
LONGEST_S = 1.0  # between two looks
CLOSE_S = 5.0  # how long closing waits for each thread,
STOP_S = 1.0  # and giving up
SHORT_S = 0.002  # of not running, which is no pause: no timer is better


class UdpLoop:
    """Carries buckets over UBT, several in flight; closes the ``endpoint``.

    ``done`` is called, on the thread that moves datagrams, with each bucket whose result is in its
    tensor, and ``broken`` with whatever a thread did not expect; nothing is carried after it.
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
        self._moderator = Moderator()
        # of data, at the last look
        self._received = 0  # datagrams
        self._sent = 0  # datagrams
        self._pool = ScratchPool()
        self._poll = host.poll()
        self._poll.register(self._woken, POLLIN)
        self._poll.register(self.endpoint, POLLIN)
        self._is_full = False  # the kernel, when something was last sent
        self._wake_s = 0.0
        self._off_s = math.inf  # grows while the thread that moves datagrams does not run
        self._threads = [
            host.Thread(target=self._guarded, args=(run,), name=name, daemon=True)
            for run, name in ((self._loop, "latecomer-ubt"), (self._compute, "latecomer-mean"))
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, bucket: Bucket) -> None:
        """Carry it; returns at once."""
        if bucket.is_transformed:
            self._tasks.put(functools.partial(self._transform, bucket))
        else:
            self._call(functools.partial(self._open, bucket))

    def set_bound(self, bound_s: float) -> None:
        """t_B of operations that are submitted from now on."""
        self._call(lambda: self.protocol.set_bound(bound_s))

    def abort(self) -> None:
        """Stop at once: after it no tensor is touched any more; any thread."""
        self._is_aborted = True
        self._closing = True
        self._call(lambda: None)
        self._tasks.put(None)
        for thread in self._threads:
            _join(thread, STOP_S)

    def close(self) -> None:
        """End the threads, when what has come is in place, and close the socket."""
        moving, computing = self._threads
        self._tasks.put(None)
        _join(computing, CLOSE_S)  # first: what it has finished is done on the other one
        self._closing = True
        self._call(lambda: None)
        _join(moving, CLOSE_S)
        self._waker.close()
        self._woken.close()
        self.endpoint.close()

    def _call(self, function: Callable[[], None]) -> None:
        """Run a short function on the thread that moves datagrams, soon."""
        self._calls.append(function)
        with contextlib.suppress(OSError):  # full: it is awake anyway
            self._waker.send(b"\0")

    def _transform(self, bucket: Bucket) -> None:
        bucket.transform()
        self._call(functools.partial(self._open, bucket))

    def _open(self, bucket: Bucket) -> None:
        bucket.lay_out(self._pool)
        self.protocol.open(bucket, host.monotonic())

    def _over(self, bucket: Bucket) -> None:
        """Nothing more is sent or received of a bucket: its result, and who waits for it."""
        self._pool.give(bucket.memory)
        if bucket.is_finished:
            self._done(bucket)
        else:
            self._tasks.put(functools.partial(self._finish, bucket))

    def _finish(self, bucket: Bucket) -> None:
        bucket.finish()
        self._call(functools.partial(self._done, bucket))

    def _guarded(self, run: Callable[[], None]) -> None:
        try:
            run()
        except Exception as error:  # whatever it is, no rank may be left waiting
            self._broken(error)

    def _compute(self) -> None:
        while (task := self._tasks.get()) is not None and not self._is_aborted:
            self._guarded(task)

    def _loop(self) -> None:
        while not self._closing:
            self._look()
        self._run_calls()

    def _run_calls(self) -> None:
        while self._calls and not self._is_aborted:
            self._calls.popleft()()

    def _look(self) -> None:
        """Wait for something to do, and do it."""
        protocol = self.protocol
        wait_s = min(max(0.0, self._wake_s - host.monotonic()), LONGEST_S)
        ready = self._poll.poll(wait_s * 1e3)
        pause_s = 0.0
        if self._moderator.is_called_for:
            pause_s = self._moderator.pause_s(protocol.due_bytes)
        if pause_s:
            host.sleep(pause_s)

        now_s = host.monotonic()  # deadlines are judged by it: no pause before it is missed
        off_before_s = self._off_s
        self._off_s = now_s - host.thread_time()
        # less what it meant to sleep
        paused_s = self._off_s - off_before_s - wait_s - pause_s
        if paused_s > SHORT_S:
            protocol.paused(paused_s)

        if any(descriptor == self._woken.fileno() for descriptor, _ in ready):
            self._woken.recv(4096)
        self._run_calls()
        if self._is_aborted:  # by what was called: then no tensor is touched any more
            return
        self._received = 0
        self._sent = 0
        socket_empty = self._receive()
        protocol.handle_timer(now_s, socket_empty=socket_empty)
        while not self._is_aborted and (bucket := protocol.next_event()):
            self._over(bucket)
        if self._is_aborted:  # by who was told
            return
        self._wait_for_room(is_full=self._send())
        self._wake_s = protocol.get_timer() if socket_empty else 0.0
        datagram_bytes = protocol.options.datagram_bytes
        received_bytes = self._received * datagram_bytes
        self._moderator.looked(received_bytes, self._sent * datagram_bytes, now_s)

    def _wait_for_room(self, *, is_full: bool) -> None:
        """Whether the kernel has room to send is asked only after it had none."""
        if is_full != self._is_full:
            self._poll.modify(self.endpoint, POLLIN | (POLLOUT if is_full else 0))
            self._is_full = is_full

    def _receive(self) -> bool:
        """Take in what lies in the socket, within limits; whether it is empty now."""
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
                    self._received += event.datagrams
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
            if not isinstance(message, Control):
                self._sent += taken
            if taken < message.datagrams:
                return True
            sent += taken
        return False


def _join(thread: Thread, within_s: float) -> None:
    """Wait for a thread to end, unless it is this one."""
    if thread is not host.current_thread():
        thread.join(timeout=within_s)
