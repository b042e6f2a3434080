"""TCP connections between ranks, made at the start and kept.

Every rank listens on the address that it uses for datagrams and sends its port through the store;
one of two ranks calls the other. The one that calls sends the group's token and its rank, the other
answers with the token; whoever doesn't is not of this group and is dropped. Everything happens in
one loop that waits for no rank in particular: a stranger that connects and sends nothing, or less
than it should, holds up nobody, and neither does a rank that is absent.
"""

from __future__ import annotations

import contextlib
import secrets
import selectors
import socket
import struct
import time
from collections.abc import Collection

from runtime.network.store_exchange import StoreExchange
from verify.errors import RankFailure

HELLO = struct.Struct("<16sI")
Connections = dict[int, socket.socket]
"""By rank."""


def connect(
    group: StoreExchange,
    address: str,
    token: bytes,
    *,
    to: Collection[int],
    origin: Collection[int],
) -> tuple[Connections, Connections]:
    """Call the ranks ``to`` and be called by ``origin``. Collective: all ranks take part.

    Returns:
        The connections to ``to`` and those from ``origin``, non-blocking.

    Raises:
        RankFailure: ranks that did not join, or without a connection after the group's time-out.
    """
    deadline = time.monotonic() + group.timeout_s
    with (
        socket.create_server((address, 0), backlog=socket.SOMAXCONN) as listener,
        contextlib.closing(_Handshakes(listener, token, group.rank, origin)) as made,
        contextlib.ExitStack() as failed,
    ):
        failed.callback(made.abandon)
        where = group.all_gather("tcp", f"{address}:{listener.getsockname()[1]}")
        for peer in to:
            made.call(peer, where[peer])
        while made.missing and time.monotonic() < deadline:
            made.turn(max(0.01, deadline - time.monotonic()))
        if absent := sorted(made.missing):
            names = ", ".join(map(str, absent))
            text = f"rank(s) {names}: no connection within {group.timeout_s:g} s"
            raise RankFailure(absent, text)
        failed.pop_all()
    for connection in made.connections():
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made.outgoing, made.incoming


class _Handshakes:
    """Connections that are being made; ``outgoing`` and ``incoming`` are those that are."""

    def __init__(
        self, listener: socket.socket, token: bytes, rank: int, origin: Collection[int]
    ) -> None:
        self.outgoing: Connections = {}
        self.incoming: Connections = {}
        self._listener, self._token, self._rank = listener, token, rank
        self._to: set[int] = set()
        self._origin = set(origin)
        self._called: dict[socket.socket, int] = {}
        self._received: dict[socket.socket, bytes] = {}  # so far
        self._ready = selectors.DefaultSelector()
        listener.setblocking(False)
        self._ready.register(listener, selectors.EVENT_READ)

    def connections(self) -> list[socket.socket]:
        """Those that are made."""
        return [*self.outgoing.values(), *self.incoming.values()]

    def abandon(self) -> None:
        """Close those that are made."""
        for connection in self.connections():
            connection.close()

    @property
    def missing(self) -> set[int]:
        """Ranks to and from which a connection is still to be made."""
        return self._to - set(self.outgoing) | self._origin - set(self.incoming)

    def call(self, peer: int, where: str) -> None:
        """Begin to connect to ``peer``."""
        host, port = where.rsplit(":", 1)
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        connection.setblocking(False)
        connection.connect_ex((host, int(port)))  # how it went is seen at the first write
        self._to.add(peer)
        self._called[connection] = peer
        self._ready.register(connection, selectors.EVENT_WRITE)

    def turn(self, limit_s: float) -> None:
        """Wait for something to happen, and do what follows from it."""
        for key, events in self._ready.select(limit_s):
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            try:
                if connection is self._listener:
                    self._accept()
                elif events & selectors.EVENT_WRITE:
                    connection.sendall(HELLO.pack(self._token, self._rank))
                    self._ready.modify(connection, selectors.EVENT_READ)
                else:
                    self._receive(connection)
            except OSError:
                self._drop(connection)

    def close(self) -> None:
        """Close what has not become a connection."""
        for key in list(self._ready.get_map().values()):
            if key.fileobj is not self._listener:
                key.fileobj.close()  # type: ignore[union-attr]
        self._ready.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it has hung up again
            stranger, _ = self._listener.accept()
            stranger.setblocking(False)
            self._ready.register(stranger, selectors.EVENT_READ)

    def _receive(self, connection: socket.socket) -> None:
        """Take what the other end sends, no more than it has to, and judge it when it is all."""
        called = self._called.get(connection)
        length = HELLO.size if called is None else len(self._token)
        so_far = self._received.get(connection, b"")
        more = connection.recv(length - len(so_far))
        received = self._received[connection] = so_far + more
        if not more:
            self._drop(connection)
            return
        if len(received) < length:
            return
        if called is None:
            token, peer = HELLO.unpack(received)
            made, expected = self.incoming, peer in self._origin and peer not in self.incoming
        else:
            token, peer, made, expected = received, called, self.outgoing, True
        if not expected or not secrets.compare_digest(token, self._token):
            self._drop(connection)
            return
        if called is None:
            connection.sendall(self._token)
        self._ready.unregister(connection)
        made[peer] = connection

    def _drop(self, connection: socket.socket) -> None:
        self._ready.unregister(connection)
        connection.close()
