"""A newcomer gets the parameters, and all else that training needs, from one of the others.

The giver takes a copy at once, while all main threads stand still, and sends it from a thread of
its own: the others go on meanwhile, until they need the newcomer's gradients.
"""

from __future__ import annotations

import contextlib
import io
import logging
import secrets
from typing import Any

import torch

from latecomer.runtime.elastic.readiness import is_ready
from latecomer.runtime.host import EPOLLIN, EPOLLOUT, SOCK_STREAM, Socket, host
from latecomer.runtime.network.addresses import family_of, listening_socket
from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.verify.errors import RankFailure

PIECE = 2**20  # bytes that are sent or read at once
TOKEN_BYTES = 16

logger = logging.getLogger("latecomer")


def pack(state: dict[str, Any]) -> bytes:
    """A copy of it."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def unpack(data: bytes) -> dict[str, Any]:
    """What was packed; tensors, numbers, texts and what holds them, nothing that could be run."""
    state: dict[str, Any] = torch.load(io.BytesIO(data), weights_only=True)
    return state


def give(data: bytes, address: str, exchange: StoreExchange, newcomers: int) -> None:
    """Send it to so many newcomers, from a thread of its own, within the exchange's time-out."""
    listener = listening_socket(address)
    listener.setblocking(False)
    token = host.random_token(TOKEN_BYTES)
    exchange.send("state", f"{address} {listener.getsockname()[1]} {token} {len(data)}")

    def serve() -> None:
        deadline_s = host.monotonic() + exchange.timeout_s
        served = 0
        with listener:
            while served < newcomers:
                if not is_ready(listener, EPOLLIN, deadline_s - host.monotonic()):
                    break
                with contextlib.suppress(OSError):
                    connection, _ = listener.accept()
                    with connection:
                        connection.setblocking(False)
                        asked = _received(connection, TOKEN_BYTES, deadline_s)
                        if secrets.compare_digest(asked, bytes.fromhex(token)):
                            _send(connection, data, deadline_s)
                            served += 1
        if served < newcomers:
            logger.warning("%d newcomer(s) have not fetched the state", newcomers - served)

    host.Thread(target=serve, name="latecomer-state", daemon=True).start()


def receive(giver: int, exchange: StoreExchange) -> bytes:
    """What ``giver`` sends; RankFailure names it if that does not come within the time-out."""
    deadline_s = host.monotonic() + exchange.timeout_s
    address, port, token, length = exchange.receive_from(giver, "state").split(" ")
    try:
        with host.socket(family_of(address), SOCK_STREAM) as connection:
            connection.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                connection.connect((address, int(port)))
            _send(connection, bytes.fromhex(token), deadline_s)
            return _received(connection, int(length), deadline_s)
    except OSError as error:
        text = f"rank {giver}: its state has not arrived: {error}"
        raise RankFailure([giver], text) from None


def _send(connection: Socket, data: bytes, deadline_s: float) -> None:
    left = memoryview(data)
    while left:
        _require_ready(connection, EPOLLOUT, deadline_s)
        with contextlib.suppress(BlockingIOError):
            left = left[connection.send(left[:PIECE]) :]


def _received(connection: Socket, length: int, deadline_s: float) -> bytes:
    data = bytearray()
    while len(data) < length:
        _require_ready(connection, EPOLLIN, deadline_s)
        with contextlib.suppress(BlockingIOError):
            piece = connection.recv(min(PIECE, length - len(data)))
            if not piece:
                raise ConnectionResetError("the connection was closed")
            data += piece
    return bytes(data)


def _require_ready(connection: Socket, event: int, deadline_s: float) -> None:
    if not is_ready(connection, event, deadline_s - host.monotonic()):
        raise TimeoutError("timed out")
