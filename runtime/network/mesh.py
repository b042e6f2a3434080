"""TCP connections between ranks, made at the start and kept.

Every rank listens on the address that it uses for datagrams and sends its port through the store;
one of two ranks calls the other. The one that calls sends the group's token and its rank, the other
answers with the token; whoever doesn't is not of this group and is dropped. Each handshake goes on
by itself, when its connection is ready: a stranger that connects and sends nothing, or less than it
should, holds up no rank, and neither does a rank that is absent.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import struct
from collections.abc import Collection, Generator, Iterator, Mapping

from latecomer.runtime.host import (
    EPOLLIN,
    EPOLLOUT,
    IPPROTO_TCP,
    SO_ERROR,
    SOCK_STREAM,
    SOL_SOCKET,
    TCP_NODELAY,
    Socket,
    host,
)
from latecomer.runtime.network.addresses import family_of, listening_socket
from latecomer.runtime.network.store_exchange import LOOK_S, StoreExchange
from latecomer.verify.errors import RankFailure

HELLO = struct.Struct("<16sI")
PAUSE_S = 0.01  # after an accept that failed: the next might fail at once, too
Sockets = dict[int, Socket]  # by rank
Steps = Generator[tuple[Socket, int], None, None]
"""A handshake: goes on once its connection is ready for what it waits for (EPOLLIN, EPOLLOUT)."""


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
        RankFailure: ranks that did not join, or without a connection after the group's time-out;
            those that are proved gone before that.
    """
    deadline = host.monotonic() + group.timeout_s
    with (
        listening_socket(address) as listener,
        contextlib.ExitStack() as failed,
    ):
        listener.setblocking(False)
        where = group.all_gather("tcp", f"{address}:{listener.getsockname()[1]}")
        called = {peer: where[peer] for peer in to}
        handshakes = _Handshakes(token, group.rank, called, set(origin))
        failed.callback(handshakes.abandon)
        handshakes.run(listener, max(0.01, deadline - host.monotonic()), group)
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
        connection.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
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
        self._waiting: dict[int, Steps] = {}  # by the descriptor of what they wait for

    def connections(self) -> list[Socket]:
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

    def run(self, listener: Socket, limit_s: float, group: StoreExchange) -> None:
        """Make them within ``limit_s``; what has not become a connection by then is closed.

        RankFailure: a rank of the group that is missing is proved gone.
        """
        deadline_s = host.monotonic() + limit_s
        self._poll = host.epoll()
        self._go_on(self._accept(listener))
        for peer, where in self._to.items():
            self._go_on(self._call(peer, where))

        try:
            while self.missing and (left_s := deadline_s - host.monotonic()) > 0:
                ready = self._poll.poll(left_s if group.is_gone is None else min(left_s, LOOK_S))
                for number, _ in ready:
                    self._poll.unregister(number)
                    self._go_on(self._waiting.pop(number))
                if not ready:
                    group.require_alive(self.missing)
        finally:
            for steps in self._waiting.values():
                steps.close()
            self._poll.close()

    def _go_on(self, steps: Steps) -> None:
        """Let a handshake go on to where it has to wait."""
        wait = next(steps, None)
        if wait is not None:
            connection, event = wait
            self._waiting[connection.fileno()] = steps
            self._poll.register(connection.fileno(), event)

    def _accept(self, listener: Socket) -> Steps:
        while True:
            yield listener, EPOLLIN
            try:
                stranger, _ = listener.accept()
            except OSError:  # it has hung up again, or no descriptor is left for it
                host.sleep(PAUSE_S)
            else:
                stranger.setblocking(False)
                self._go_on(self._answer(stranger))

    def _answer(self, stranger: Socket) -> Steps:
        with self._handshake(stranger):
            token, peer = HELLO.unpack((yield from _received(stranger, HELLO.size)))
            is_expected = peer in self._origin and peer not in self.incoming
            if is_expected and secrets.compare_digest(token, self._token):
                yield from _sent(stranger, self._token)
                self.incoming.setdefault(peer, stranger)

    def _call(self, peer: int, where: str) -> Steps:
        address, port = where.rsplit(":", 1)
        connection = host.socket(family_of(address), SOCK_STREAM)
        connection.setblocking(False)
        with self._handshake(connection):
            with contextlib.suppress(BlockingIOError):
                connection.connect((address, int(port)))
            yield connection, EPOLLOUT
            if problem := connection.getsockopt(SOL_SOCKET, SO_ERROR):
                raise OSError(problem, os.strerror(problem))
            yield from _sent(connection, HELLO.pack(self._token, self._rank))
            answer = yield from _received(connection, len(self._token))
            if secrets.compare_digest(answer, self._token):
                self.outgoing[peer] = connection

    @contextlib.contextmanager
    def _handshake(self, connection: Socket) -> Iterator[None]:
        """What has not become a connection at its end is closed."""
        with contextlib.suppress(OSError):
            try:
                yield
            finally:
                if connection not in self.connections():
                    connection.close()


def _sent(connection: Socket, data: bytes) -> Steps:
    """Send all of it."""
    while data:
        yield connection, EPOLLOUT
        with contextlib.suppress(BlockingIOError):
            data = data[connection.send(data) :]


def _received(connection: Socket, length: int) -> Generator[tuple[Socket, int], None, bytes]:
    """What the other end sends, and no more than it has to."""
    data = b""
    while len(data) < length:
        yield connection, EPOLLIN
        try:
            received = connection.recv(length - len(data))
        except BlockingIOError:
            continue
        if not received:
            raise ConnectionResetError
        data += received
    return data
