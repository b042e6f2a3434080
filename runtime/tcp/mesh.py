"""The connections of a rank: one to each other rank, made at the start and kept.

Every rank listens on the address that it uses for datagrams, connects to all lower ranks and is
connected to by all higher ones. The one that connects says the group's token and its rank, the
other answers with the token; whoever doesn't is not of this group and is dropped.
"""

from __future__ import annotations

import contextlib
import secrets
import selectors
import socket
import struct
import time
from datetime import timedelta

from runtime.torch_versions import Store
from verify.errors import RankFailure

HELLO = struct.Struct("<16sI")


def connect(
    store: Store, address: str, token: bytes, rank: int, size: int, timeout_s: float
) -> dict[int, socket.socket]:
    """Connections by rank, non-blocking.

    Raises:
        RankFailure: ranks without a connection after ``timeout_s``.
    """
    deadline = time.monotonic() + timeout_s
    made: dict[int, socket.socket] = {}
    listener = socket.create_server((address, 0), backlog=size)
    try:
        store.set(f"tcp/{rank}", f"{address}:{listener.getsockname()[1]}")
        for peer in range(rank):
            with contextlib.suppress(RuntimeError, OSError):  # who is missing is seen below
                made[peer] = _call(store, peer, token, rank, deadline)
        _answer(listener, made, token, rank, size, deadline)
        for peer in [peer for peer in made if peer < rank]:
            if not _welcome(made[peer], token, deadline):
                made.pop(peer).close()
    finally:
        listener.close()
    absent = sorted(set(range(size)) - {rank} - set(made))
    if absent:
        for connection in made.values():
            connection.close()
        names = ", ".join(map(str, absent))
        raise RankFailure(absent, f"rank(s) {names}: no connection within {timeout_s:g} s")
    for connection in made.values():
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def _call(store: Store, peer: int, token: bytes, rank: int, deadline: float) -> socket.socket:
    store.wait([f"tcp/{peer}"], timedelta(seconds=_left(deadline)))
    host, port = store.get(f"tcp/{peer}").decode().rsplit(":", 1)
    connection = socket.create_connection((host, int(port)), timeout=_left(deadline))
    connection.sendall(HELLO.pack(token, rank))
    return connection


def _welcome(connection: socket.socket, token: bytes, deadline: float) -> bool:
    connection.settimeout(_left(deadline))
    try:
        return _read(connection, len(token)) == token
    except OSError:
        return False


def _answer(
    listener: socket.socket,
    made: dict[int, socket.socket],
    token: bytes,
    rank: int,
    size: int,
    deadline: float,
) -> None:
    """Take connections until all higher ranks have one; strangers can't hold this up."""
    with selectors.DefaultSelector() as ready:
        ready.register(listener, selectors.EVENT_READ)
        higher = set(range(rank + 1, size))
        while not higher <= set(made) and time.monotonic() < deadline:
            for key, _ in ready.select(_left(deadline)):
                if key.fileobj is listener:
                    stranger, _ = listener.accept()
                    ready.register(stranger, selectors.EVENT_READ)
                    continue
                stranger = key.fileobj  # type: ignore[assignment]
                ready.unregister(stranger)
                stranger.settimeout(1.0)
                try:
                    said, peer = HELLO.unpack(_read(stranger, HELLO.size))
                    welcome = secrets.compare_digest(said, token) and rank < peer < size
                    if welcome and peer not in made:
                        stranger.sendall(token)
                        made[peer] = stranger
                        continue
                except (OSError, struct.error):
                    pass
                stranger.close()
        for key in list(ready.get_map().values()):
            if key.fileobj is not listener:
                key.fileobj.close()  # type: ignore[union-attr]


def _read(connection: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length and (more := connection.recv(length - len(data))):
        data += more
    return data


def _left(deadline: float) -> float:
    return max(0.01, deadline - time.monotonic())
