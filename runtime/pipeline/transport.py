"""Connections between neighbouring stages, each driven by threads of its own.

One TCP connection per direction of each link, so that the two never wait for each other. A message
is handed to the sending thread of its connection and the compute goes on; the receiving thread of
the other end reads at any time, so a send never waits for a receive to be posted, and a slow
connection holds up nothing but itself. A small message in host memory is written at once, as far
as the kernel takes it without waiting, which saves handing it over. (The source's delegates are
processes with shared memory; threads do, for socket calls and kernels run without the
interpreter's lock.)
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterable
from io import BufferedReader
from typing import cast

from runtime.network.control_channel import ControlChannel
from runtime.network.mesh import connect
from runtime.network.store_exchange import StoreExchange
from runtime.pipeline.faults import Faults, due_s
from runtime.pipeline.mailbox import Arrived, Mailbox
from runtime.pipeline.messages import (
    BUFFER,
    Header,
    Name,
    Tensors,
    WireError,
    describe,
    encode,
    read,
    write,
)
from runtime.pipeline.staging import Staged, Staging
from runtime.torch_versions import Store
from verify.pipeline import parse_action

GOODBYE = Header(step=-1, action="0RECV_F0", ready_s=0.0, tensors=())
"""The last message of a connection that is closed on purpose."""
SMALL = 2**16
"""Bytes up to which a message is written at once."""
BLOCKED_S = 0.1
"""A blocking send looks this often whether the connections are gone."""


class Links:
    """One rank's connections to and from its neighbours.

    Args:
        store: for meeting; the ranks of the pipeline, and nothing else, use it.
        datagrams: gives address and token.
        to, origin: ranks to send to, and ranks to receive from.
        staging: between device and host memory.
        mailbox: where what arrives is put.
        lost: called with what was noticed when a connection fails, on that connection's thread.
        broken: called there with what this rank itself failed on.
        faults: delays to inject.
        timeout_s: how long to wait for the neighbours.

    Raises:
        RankFailure: neighbours that did not connect within ``timeout_s``.
    """

    def __init__(
        self,
        store: Store,
        datagrams: ControlChannel,
        *,
        to: Iterable[int],
        origin: Iterable[int],
        staging: Staging,
        mailbox: Mailbox,
        lost: Callable[[str], None],
        broken: Callable[[BaseException], None],
        faults: Faults,
        timeout_s: float,
    ) -> None:
        self._rank = datagrams.rank
        self._staging, self._mailbox = staging, mailbox
        self._lost, self._broken, self._faults = lost, broken, faults
        self._closing = False
        self._outgoing, self._incoming = connect(
            StoreExchange(store, datagrams.rank, datagrams.size, timeout_s),
            datagrams.address,
            datagrams.token,
            to=set(to),
            origin=set(origin),
        )
        for connection in (*self._outgoing.values(), *self._incoming.values()):
            connection.setblocking(True)
        self._queues: dict[int, queue.SimpleQueue[OutgoingMessage | None]] = {
            peer: queue.SimpleQueue() for peer in self._outgoing
        }
        # counted by the compute thread and by the sending thread: equal while that one is idle
        self._handed = dict.fromkeys(self._outgoing, 0)
        self._gone = dict.fromkeys(self._outgoing, 0)
        self._threads = [
            threading.Thread(target=self._send_to, args=(peer,), name=f"latecomer-to-{peer}")
            for peer in self._outgoing
        ] + [
            threading.Thread(target=self._receive_from, args=(peer,), name=f"latecomer-from-{peer}")
            for peer in self._incoming
        ]
        for thread in self._threads:
            thread.daemon = True
            thread.start()

    def send(self, peer: int, name: Name, tensors: Tensors) -> None:
        """Hand a message over; returns at once (unless ``faults.blocking``).

        Raises:
            TensorError: something in it that is no dense tensor.
        """
        ready_s = time.monotonic()
        header = Header(name.step, str(name.receive), ready_s, describe(tensors))
        delay = self._faults.delay_s(self._rank, peer, name.step)
        idle = self._handed[peer] == self._gone[peer]
        if idle and self._staging.direct and not any(delay) and _size(tensors) <= SMALL:
            rest = self._write_at_once(peer, header, tensors)
            if not rest:
                return
            letter = OutgoingMessage(header, Staged([]), (0.0, 0.0), rest)
        else:
            letter = OutgoingMessage(header, self._staging.take(tensors), delay, b"")
        self._handed[peer] += 1
        self._queues[peer].put(letter)
        while self._faults.blocking and not self._closing and not letter.gone.wait(BLOCKED_S):
            pass

    def _write_at_once(self, peer: int, header: Header, tensors: Tensors) -> bytes:
        """What the kernel does not take now; nothing else is being sent to ``peer``."""
        parts = encode(header, [t if t is None else t.detach().contiguous() for t in tensors])
        try:
            sent = self._outgoing[peer].sendmsg(parts, [], socket.MSG_DONTWAIT)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._broke(f"the connection to rank {peer} failed: {error}")
            return b""
        return b"".join(parts)[sent:] if sent < sum(map(len, parts)) else b""

    def abort(self) -> None:
        """End all transfers, here and at the other ends."""
        self._closing = True
        for connection in (*self._outgoing.values(), *self._incoming.values()):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for letters in self._queues.values():
            letters.put(None)

    def close(self, limit_s: float) -> None:
        """Let what was handed over leave within ``limit_s`` seconds, then disconnect."""
        for letters in self._queues.values():
            letters.put(None)
        deadline = time.monotonic() + limit_s
        for thread in self._threads[: len(self._queues)]:
            thread.join(max(0.0, deadline - time.monotonic()))
        self.abort()
        for thread in self._threads:
            thread.join(max(0.1, deadline - time.monotonic()))
        for connection in (*self._outgoing.values(), *self._incoming.values()):
            connection.close()

    def _send_to(self, peer: int) -> None:
        connection, letters, link_free_s = self._outgoing[peer], self._queues[peer], 0.0
        try:
            while (letter := letters.get()) is not None:
                tensors = self._staging.host(letter.staged)
                if any(letter.delay):
                    due, link_free_s = due_s(letter.header.ready_s, link_free_s, letter.delay)
                    time.sleep(max(0.0, due - time.monotonic()))
                if letter.rest:
                    connection.sendall(letter.rest)
                else:
                    write(connection, letter.header, tensors)
                letter.gone.set()
                self._gone[peer] += 1
            write(connection, GOODBYE, ())
        except OSError as error:
            self._broke(f"the connection to rank {peer} failed: {error}")
        except Exception as error:  # whatever it is, nobody may be left waiting
            self._failed(error)

    def _receive_from(self, peer: int) -> None:
        stream = cast(BufferedReader, self._incoming[peer].makefile("rb", BUFFER))
        try:
            while (message := read(stream, self._staging.empty)) is not None:
                header, tensors = message
                if header == GOODBYE:
                    return
                arrived_s = time.monotonic()
                flags = tuple(meta is not None and meta.requires_grad for meta in header.tensors)
                staged = self._staging.land(tensors)
                arrived = Arrived(peer, staged, flags, header.ready_s, arrived_s)
                self._mailbox.put(Name(header.step, parse_action(header.action)), arrived)
            self._broke(f"rank {peer} closed the connection")
        except (OSError, WireError) as error:
            self._broke(f"the connection from rank {peer} failed: {error}")
        except Exception as error:  # whatever it is, nobody may be left waiting
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        if not self._closing:
            self._broken(error)

    def _broke(self, noticed: str) -> None:
        if not self._closing:
            self._lost(noticed)


class OutgoingMessage:
    """A message that waits to be sent, or the rest of one that was sent in part."""

    def __init__(
        self, header: Header, staged: Staged, delay: tuple[float, float], rest: bytes
    ) -> None:
        self.header, self.staged, self.delay, self.rest = header, staged, delay, rest
        self.gone = threading.Event()


def _size(tensors: Tensors) -> int:
    return sum(t.numel() * t.element_size() for t in tensors if t is not None)
