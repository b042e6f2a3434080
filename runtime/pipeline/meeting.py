"""How neighbours connect: everybody listens, tells its port, and calls those it sends to.

Ports go through the store; a caller shows the token of the group's datagrams and its rank, so
strangers are sent away. Every wait has the same deadline.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from datetime import timedelta

from runtime.datagrams import Datagrams
from runtime.torch_versions import Store
from verify.errors import RankFailure

GREETING = struct.Struct("!16sH")


def meet(
    store: Store, datagrams: Datagrams, to: list[int], origin: list[int], timeout_s: float
) -> tuple[dict[int, socket.socket], dict[int, socket.socket]]:
    """Connect to ``to`` and be connected to from ``origin``; (outgoing, incoming) by rank.

    Raises:
        RankFailure: neighbours that did not connect within ``timeout_s``.
    """
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
