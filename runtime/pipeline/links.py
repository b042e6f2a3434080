"""Connections between neighbouring stages, each driven by threads of its own.

One TCP connection per direction of each link, so that the two never wait for each other. A message
is handed to the sending thread of its connection and the compute goes on; the receiving thread of
the other end reads at any time, so a send never waits for a receive to be posted, and a slow
connection holds up nothing but itself. (The source's delegates are processes with shared memory;
threads do, as both socket calls and kernels run without the interpreter's lock.)

How the ranks meet: everybody listens, tells its port through the store, and connects to those it
sends to, with the token of the group's datagrams as password.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from io import BufferedReader
from typing import cast

from torch._C._distributed_c10d import Store

from runtime.datagrams import Datagrams
from runtime.pipeline.faults import Faults, due_s
from runtime.pipeline.frames import (
    BUFFER,
    Header,
    Meta,
    Name,
    Tensors,
    WireError,
    describe,
    read,
    write,
)
from runtime.pipeline.mailbox import Arrived, Mailbox
from runtime.pipeline.staging import Staged, Staging
from verify.errors import RankFailure
from verify.pipeline import parse_action

GREETING = struct.Struct("!16sH")
GOODBYE = Header(step=-1, action="0RECV_F0", ready_s=0.0, tensors=())
"""The last message of a connection that is closed on purpose."""
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
        faults: delays to inject.
        timeout_s: how long to wait for the neighbours.

    Raises:
        RankFailure: neighbours that did not connect within ``timeout_s``.
    """

    def __init__(
        self,
        store: Store,
        datagrams: Datagrams,
        *,
        to: Iterable[int],
        origin: Iterable[int],
        staging: Staging,
        mailbox: Mailbox,
        lost: Callable[[str], None],
        faults: Faults,
        timeout_s: float,
    ) -> None:
        self._rank = datagrams.rank
        self._staging, self._mailbox = staging, mailbox
        self._lost, self._faults = lost, faults
        self._closing = False
        self._outgoing, self._incoming = _meet(
            store, datagrams, sorted(set(to)), sorted(set(origin)), timeout_s
        )
        self._queues: dict[int, queue.SimpleQueue[_Letter | None]] = {
            peer: queue.SimpleQueue() for peer in self._outgoing
        }
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
        letter = _Letter(name, describe(tensors), self._staging.take(tensors), time.monotonic())
        self._queues[peer].put(letter)
        while self._faults.blocking and not self._closing and not letter.gone.wait(BLOCKED_S):
            pass

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
                delay = self._faults.delay_s(self._rank, peer, letter.name.step)
                if any(delay):
                    due, link_free_s = due_s(letter.ready_s, link_free_s, delay)
                    time.sleep(max(0.0, due - time.monotonic()))
                write(connection, letter.header, tensors)
                letter.gone.set()
            write(connection, GOODBYE, ())
        except OSError as error:
            self._broke(f"the connection to rank {peer} failed: {error}")

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

    def _broke(self, noticed: str) -> None:
        if not self._closing:
            self._lost(noticed)


class _Letter:
    """A message that waits to be sent."""

    def __init__(
        self, name: Name, metas: tuple[Meta | None, ...], staged: Staged, ready_s: float
    ) -> None:
        self.name, self.staged, self.ready_s = name, staged, ready_s
        self.header = Header(name.step, str(name.receive), ready_s, metas)
        self.gone = threading.Event()


def _meet(
    store: Store, datagrams: Datagrams, to: list[int], origin: list[int], timeout_s: float
) -> tuple[dict[int, socket.socket], dict[int, socket.socket]]:
    """Connect to ``to`` and be connected to from ``origin``; (outgoing, incoming) by rank."""
    deadline = time.monotonic() + timeout_s
    outgoing: dict[int, socket.socket] = {}
    incoming: dict[int, socket.socket] = {}

    def left() -> float:
        return max(0.01, deadline - time.monotonic())

    try:
        with socket.create_server((datagrams.address, 0), backlog=len(origin) + 1) as server:
            store.set(f"port/{datagrams.rank}", f"{datagrams.address}:{server.getsockname()[1]}")
            for peer in to:
                with contextlib.suppress(RuntimeError, OSError):
                    store.wait([f"port/{peer}"], timedelta(seconds=left()))
                    host, port = store.get(f"port/{peer}").decode().rsplit(":", 1)
                    outgoing[peer] = socket.create_connection((host, int(port)), left())
                    outgoing[peer].sendall(GREETING.pack(datagrams.token, datagrams.rank))
            while set(incoming) != set(origin) and time.monotonic() < deadline:
                server.settimeout(left())
                with contextlib.suppress(OSError):
                    connection, _ = server.accept()
                    connection.settimeout(left())
                    greeting = connection.recv(GREETING.size, socket.MSG_WAITALL)
                    peer = _greeted(greeting, datagrams.token)
                    if peer in origin and peer not in incoming:
                        incoming[peer] = connection
                    else:
                        connection.close()
        absent = sorted((set(to) - set(outgoing)) | (set(origin) - set(incoming)))
        if absent:
            names = ", ".join(map(str, absent))
            raise RankFailure(absent, f"rank(s) {names}: did not connect within {timeout_s:g} s")
    except BaseException:
        for connection in (*outgoing.values(), *incoming.values()):
            connection.close()
        raise
    for connection in (*outgoing.values(), *incoming.values()):
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return outgoing, incoming


def _greeted(greeting: bytes, token: bytes) -> int:
    """Who connects; -1 for a stranger."""
    if len(greeting) != GREETING.size:
        return -1
    theirs, rank = GREETING.unpack(greeting)
    return int(rank) if theirs == token else -1
