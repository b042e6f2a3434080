"""TCP connections between ranks, made at the start and kept.

Every rank listens on the address that it uses for datagrams and sends its port through the store;
one of two ranks calls the other. The one that calls sends the group's token and its rank, the other
answers with the token; whoever doesn't is not of this group and is dropped. Each handshake is a
task of its own: a stranger that connects and sends nothing, or less than it should, holds up no
rank, and neither does a rank that is absent.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import struct
import threading
import time
from collections.abc import Collection, Iterator, Mapping

from latecomer.runtime.network.addresses import listening_socket
from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.verify.errors import RankFailure

HELLO = struct.Struct("<16sI")
PAUSE_S = 0.01  # after an accept that failed: the next might fail at once, too
Sockets = dict[int, socket.socket]  # by rank


def connect(
    group: StoreExchange,
    address: str,
    token: bytes,
    *,
    to: Collection[int],
    origin: Collection[int],
) -> tuple[Sockets, Sockets]:
    """Call the ranks ``to`` and be called by ``origin``. Collective: all ranks take part.

    Returns:
        The connections to ``to`` and those from ``origin``, non-blocking.

    Raises:
        RankFailure: ranks that did not join, or without a connection after the group's time-out.
    """
    deadline = time.monotonic() + group.timeout_s
    with (
        listening_socket(address) as listener,
        contextlib.ExitStack() as failed,
    ):
        listener.setblocking(False)
        where = group.all_gather("tcp", f"{address}:{listener.getsockname()[1]}")
        called = {peer: where[peer] for peer in to}
        handshakes = _Handshakes(token, group.rank, called, set(origin))
        failed.callback(handshakes.abandon)
        attempt = handshakes.run(listener, max(0.01, deadline - time.monotonic()))
        # a thread of its own: the caller's may have an event loop already, as in a notebook
        apart = threading.Thread(target=asyncio.run, args=(attempt,), daemon=True)
        apart.start()
        apart.join()
        if absent := sorted(handshakes.missing):
            names = ", ".join(map(str, absent))
            text = (
                f"rank(s) {names}: no connection within {group.timeout_s:g} s: "
                "is a firewall between?"
            )
            raise RankFailure(absent, text, handshakes.unanswered(own=where[group.rank]))
        failed.pop_all()
    for connection in handshakes.connections():
        # credits and headers are small, and must not wait for the acknowledgement of what is before
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return handshakes.outgoing, handshakes.incoming


class _Handshakes:
    """Connections that are being made; ``outgoing`` and ``incoming`` are those that are."""

    def __init__(self, token: bytes, rank: int, to: Mapping[int, str], origin: set[int]) -> None:
        self.outgoing: Sockets = {}
        self.incoming: Sockets = {}
        self._token = token
        self._rank = rank
        self._to = to
        self._origin = origin

    def connections(self) -> list[socket.socket]:
        return [*self.outgoing.values(), *self.incoming.values()]

    def abandon(self) -> None:
        for connection in self.connections():
            connection.close()

    @property
    def missing(self) -> set[int]:
        """Ranks to and from which a connection is still to be made."""
        return set(self._to) - set(self.outgoing) | self._origin - set(self.incoming)

    def unanswered(self, own: str) -> list[str]:
        """Where a connection is missing, a line each; ``own`` is where this rank listens."""
        lines = []
        for peer, where in self._to.items():
            if peer not in self.outgoing:
                lines.append(f"rank {peer} does not answer on TCP at {where}")
        for peer in sorted(self._origin - set(self.incoming)):
            lines.append(f"rank {peer} has not called rank {self._rank} on TCP at {own}")
        return lines

    async def run(self, listener: socket.socket, limit_s: float) -> None:
        """Make them within ``limit_s``; what has not become a connection by then is closed."""
        self._loop = asyncio.get_running_loop()
        self._is_complete = asyncio.Event()
        self._tasks = [self._loop.create_task(self._accept(listener))]
        for peer, where in self._to.items():
            self._tasks.append(self._loop.create_task(self._call(peer, where)))
        if self.missing:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_complete.wait(), limit_s)

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                stranger, _ = await self._loop.sock_accept(listener)
            except OSError:  # it has hung up again
                await asyncio.sleep(PAUSE_S)
            else:
                self._tasks.append(self._loop.create_task(self._answer(stranger)))

    async def _answer(self, stranger: socket.socket) -> None:
        with self._handshake(stranger):
            token, peer = HELLO.unpack(await self._receive(stranger, HELLO.size))
            is_expected = peer in self._origin and peer not in self.incoming
            if is_expected and secrets.compare_digest(token, self._token):
                await self._loop.sock_sendall(stranger, self._token)
                self.incoming.setdefault(peer, stranger)

    async def _call(self, peer: int, where: str) -> None:
        host, port = where.rsplit(":", 1)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        connection = socket.socket(family, socket.SOCK_STREAM)
        connection.setblocking(False)
        with self._handshake(connection):
            await self._loop.sock_connect(connection, (host, int(port)))
            await self._loop.sock_sendall(connection, HELLO.pack(self._token, self._rank))
            answer = await self._receive(connection, len(self._token))
            if secrets.compare_digest(answer, self._token):
                self.outgoing[peer] = connection

    async def _receive(self, connection: socket.socket, length: int) -> bytes:
        """What the other end sends, and no more than it has to."""
        data = b""
        while len(data) < length:
            received = await self._loop.sock_recv(connection, length - len(data))
            if not received:
                raise ConnectionResetError
            data += received
        return data

    @contextlib.contextmanager
    def _handshake(self, connection: socket.socket) -> Iterator[None]:
        """What has not become a connection at its end is closed."""
        with contextlib.suppress(OSError):
            try:
                yield
            finally:
                if connection not in self.connections():
                    connection.close()
        if not self.missing:
            self._is_complete.set()
