"""One rank's end of UBT: a node, a socket and the thread that runs them.

The thread moves datagrams and reduces what has come, run by run, while it is in the cache; what
takes longer (laying out, transforming) is done elsewhere. Others hand it work with
:meth:`EventLoop.call`. Between two looks at the clock it takes in a limited number of batches, so
that a flood of datagrams cannot keep a stage from ending. Where the network hands over frame by
frame it pauses for a moment after a look that found few, as cards moderate their interrupts: a look
costs far more than a datagram.
"""

from __future__ import annotations

import contextlib
import math
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable

import numpy as np

from runtime.optireduce.options import Options
from runtime.optireduce.udp.datagram import Type
from runtime.optireduce.udp.protocol import Ended, Protocol
from runtime.optireduce.udp.sender import ShardSend
from runtime.optireduce.udp.socket import BURSTS, UdpSocket

BATCHES, DATAGRAMS = 8, 1024
"""Received between two looks at the clock; the batch that reaches it is the last."""
LONGEST_S = 1.0
FEW = 64
"""Datagrams of data found at one look, below which the next one waits for more."""
PAUSE_S = 0.0005
"""So long; 200 Mbit/s bring eight full frames in it, 1000 Mbit/s 42."""


class EventLoop:
    """Runs a node on a socket.

    Args:
        ended: called on the endpoint's thread when a stage or an operation is over.
        broken: called once, on that thread, with the exception that ended it.
    """

    def __init__(
        self,
        options: Options,
        node: Protocol,
        channel: UdpSocket,
        ended: Callable[[Ended], None],
        broken: Callable[[Exception], None],
    ) -> None:
        self._options, self.node, self.channel = options, node, channel
        self._ended, self._broken = ended, broken
        self._calls: deque[Callable[[], None]] = deque()
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self._woken.setblocking(False)
        self._closing = False
        self._found = 0
        self._bursts = 1
        self._written: tuple[ShardSend, int] | None = None
        self._thread = threading.Thread(target=self._run, name="latecomer-ubt", daemon=True)

    def start(self) -> None:
        """Begin; peers must be connected."""
        self._thread.start()

    def call(self, function: Callable[[], None]) -> None:
        """Run a short function on the endpoint's thread, soon."""
        self._calls.append(function)
        with contextlib.suppress(OSError):  # full: it is awake anyway
            self._waker.send(b"\0")

    def close(self) -> None:
        """End the thread and close the socket."""
        self._closing = True
        self.call(lambda: None)
        if self._thread.ident is not None:
            self._thread.join(timeout=5.0)
        for one in (self._waker, self._woken, self.channel):
            one.close()

    def _run(self) -> None:
        try:
            self._loop()
        except Exception as error:  # whatever it is, nobody may be left waiting
            self._broken(error)

    def _loop(self) -> None:
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        poll.register(self.channel, select.POLLIN)
        wake_s, full, watched = 0.0, False, False
        while not self._closing:
            wait_s = min(max(0.0, wake_s - time.monotonic()), LONGEST_S)
            if full != watched:
                poll.modify(self.channel, select.POLLIN | (select.POLLOUT if full else 0))
                watched = full
            ready = poll.poll(wait_s * 1e3)
            if 0 < self._found < FEW:
                time.sleep(PAUSE_S)
            if any(descriptor == self._woken.fileno() for descriptor, _ in ready):
                self._woken.recv(4096)
            while self._calls:
                self._calls.popleft()()
            empty = self._receive()
            for ended in self.node.poll(time.monotonic(), empty):
                self._ended(ended)
            burst_s, full = self._send()
            wake_s = 0.0 if not empty else min(burst_s, self.node.wake_s())

    def _receive(self) -> bool:
        """Take in some batches; whether the socket is empty now."""
        node, self._found, taken = self.node, 0, 0
        for _ in range(BATCHES):
            if taken >= DATAGRAMS:
                break
            rows = self.channel.receive()
            if rows is None:
                return True
            now_s, taken = time.monotonic(), taken + len(rows)
            for batch in node.codec.read(rows, node.counts):
                node.hear(batch, now_s)
                if batch.type is Type.DATA:
                    self._found += len(batch.offsets)
            self._flush()  # credits at once: the sender may be waiting for them
        return False

    def _flush(self) -> bool:
        """Send the short datagrams that are due; whether all went."""
        outbox = self.node.outbox
        while outbox:
            if not self.channel.send(*outbox[0]):
                return False
            outbox.popleft()
        return True

    def _send(self) -> tuple[float, bool]:
        """Send some; when to send next, and whether the kernel is full (poll tells when not)."""
        node, channel = self.node, self.channel
        if not self._flush():
            return math.inf, True
        left = BURSTS * channel.burst
        while left > 0:
            now_s = time.monotonic()
            if self._written is None or self._written[0].over:
                step = node.burst(now_s, self._bursts)
                if isinstance(step, float):
                    return step, False
                self._written = self._write(*step)
            flow, count = self._written
            taken = channel.send_rows(flow.peer, count)
            if taken:  # else it stays written
                self._written = None
                node.sent(flow, taken, now_s)
            if taken < count:
                self._bursts = 1
                return math.inf, True
            self._bursts = min(BURSTS, 2 * self._bursts)
            left -= taken
        return 0.0, False

    def _write(self, flow: ShardSend, first: int, count: int) -> tuple[ShardSend, int]:
        """Write a burst; its flow and length."""
        node, channel = self.node, self.channel
        count = min(count, self._bursts * channel.burst)
        exchange = node.open_exchanges[flow.operation]
        last = first + (count - 1) // channel.together * channel.together  # the last call's
        node.codec.data(
            channel.rows[:count],
            exchange.source(flow.stage, flow.peer),
            first,
            max(last, node.marks_from(flow, first, count)),
            stage=flow.stage,
            receiver=flow.peer,
            operation=flow.operation,
            incast=node.incast.announced,
            expected_us=int(node.expected[flow.stage].own_s * 1e6),
            passed=flow.sent + np.minimum(channel.ends[:count], count),
        )
        return flow, count
