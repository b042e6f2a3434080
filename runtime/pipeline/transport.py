"""Connections between neighbouring stages, each driven by threads of its own.

One TCP connection per direction of each link. A message is handed to the sending thread of its
connection and the compute goes on; the receiving thread of the other end reads at any time, so no
send waits for a receive. A small message in host memory is written at once, as far as the kernel
takes it. (The source's delegates are processes; threads do, for socket calls and kernels run
without the interpreter's lock.)
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from io import BufferedReader
from typing import cast

from runtime.health.watchdog import Watchdog
from runtime.network.control_channel import ControlChannel
from runtime.network.mesh import connect
from runtime.network.store_exchange import StoreExchange
from runtime.pipeline.faults import Faults, due_s
from runtime.pipeline.load import senders
from runtime.pipeline.messages import Arrived, Header, Mailbox, Name, WireError, read, write
from runtime.pipeline.staging import HostStaging, Staged, Tensors
from verify.pipeline import Action, PipelineSchedule, parse_action

GOODBYE = Header(step=-1, action="0RECV_F0", ready_s=0.0, tensors=())  # closed on purpose
SMALL = 2**16  # bytes up to which a message is written at once
BUFFER = 2**16
BLOCKED_S = 0.1  # a blocking send looks this often whether the connections are gone


@dataclass
class OutgoingMessage:
    """A message that waits to be sent, or the rest of one that was sent in part."""

    header: Header
    staged: Staged
    delay: tuple[float, float] = (0.0, 0.0)
    rest: bytes = b""
    gone: threading.Event = field(default_factory=threading.Event)


@dataclass
class _Outgoing:
    """The sending end of a connection."""

    connection: socket.socket
    waiting: queue.SimpleQueue[OutgoingMessage | None] = field(default_factory=queue.SimpleQueue)
    handed: int = 0  # counted by the compute thread
    gone: int = 0  # and by the sending thread: equal while that one is idle


class Transport:
    """One rank's connections to and from its neighbours; RankFailure for those that don't come.

    Nothing else uses the group's store; the watchdog is told when a connection ends.
    """

    def __init__(
        self,
        group: StoreExchange,
        channel: ControlChannel,
        plan: PipelineSchedule,
        mailbox: Mailbox,
        staging: HostStaging,
        faults: Faults,
        watchdog: Watchdog,
    ) -> None:
        self.mailbox, self.staging = mailbox, staging
        self._rank, self._rank_of, self._faults = group.rank, dict(plan.rank_of), faults
        self._watchdog, self._closing = watchdog, False
        peers, own = set(senders(plan, group.rank).values()), (channel.address, channel.token)
        outgoing, self._incoming = connect(group, *own, to=peers, origin=peers)
        self._outgoing = {peer: _Outgoing(connection) for peer, connection in outgoing.items()}
        self._connections = [*outgoing.values(), *self._incoming.values()]
        for connection in self._connections:
            connection.setblocking(True)
        self._sending = [self._start(self._send, "to", peer) for peer in peers]
        self._receiving = [self._start(self._receive, "from", peer) for peer in peers]

    def send(self, receive: Action, tensors: Tensors) -> None:
        """Hand over the message that ``receive`` waits for; TensorError for what can't travel."""
        peer, step = self._rank_of[receive.stage], self.mailbox.step
        header = Header.of(step, receive, tensors)
        delay = self._faults.delay_s(self._rank, peer, step)
        end = self._outgoing[peer]
        small = self.staging.direct and sum(t.nbytes for t in tensors if t is not None) <= SMALL
        if small and end.handed == end.gone and not any(delay):
            rest = write(end.connection, header, tensors, wait=False)
            if not rest:
                return
            message = OutgoingMessage(header, Staged([]), rest=rest)
        else:
            message = OutgoingMessage(header, self.staging.take(tensors), delay)
        end.handed += 1
        end.waiting.put(message)
        while self._faults.blocking and not self._closing and not message.gone.wait(BLOCKED_S):
            pass

    def abort(self) -> None:
        """End all transfers, here and at the other ends."""
        self._closing = True
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for end in self._outgoing.values():
            end.waiting.put(None)

    def close(self, limit_s: float) -> None:
        """Let what was handed over leave within ``limit_s`` seconds, then disconnect."""
        for end in self._outgoing.values():
            end.waiting.put(None)
        deadline = time.monotonic() + limit_s
        for thread in self._sending:
            thread.join(max(0.0, deadline - time.monotonic()))
        self.abort()
        for thread in (*self._sending, *self._receiving):
            thread.join(max(0.1, deadline - time.monotonic()))
        for connection in self._connections:
            connection.close()

    def _start(self, body: Callable[[int], None], direction: str, peer: int) -> threading.Thread:
        def run() -> None:
            try:
                body(peer)
            except (OSError, WireError) as error:
                if not self._closing:
                    self._watchdog.fail(f"the connection {direction} rank {peer} failed: {error}")
            except Exception as error:  # whatever it is, no rank may be left waiting
                if not self._closing:
                    self._watchdog.broke(error)

        thread = threading.Thread(target=run, name=f"latecomer-{direction}-{peer}", daemon=True)
        thread.start()
        return thread

    def _send(self, peer: int) -> None:
        end, link_free_s = self._outgoing[peer], 0.0
        while (message := end.waiting.get()) is not None:
            tensors = self.staging.host(message.staged)
            if any(message.delay):
                due, link_free_s = due_s(message.header.ready_s, link_free_s, message.delay)
                time.sleep(max(0.0, due - time.monotonic()))
            rest = message.rest or write(end.connection, message.header, tensors)
            end.connection.sendall(rest)
            message.gone.set()
            end.gone += 1
        end.connection.sendall(write(end.connection, GOODBYE, ()))

    def _receive(self, peer: int) -> None:
        stream = cast(BufferedReader, self._incoming[peer].makefile("rb", BUFFER))
        while (message := read(stream, self.staging.empty)) is not None:
            header, tensors = message
            if header == GOODBYE:
                return
            arrived_s = time.monotonic()
            flags = tuple(meta is not None and meta.requires_grad for meta in header.tensors)
            arrived = Arrived(peer, self.staging.land(tensors), flags, header.ready_s, arrived_s)
            self.mailbox.put(Name(header.step, parse_action(header.action)), arrived)
        raise WireError("it was closed")
