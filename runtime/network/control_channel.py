"""Small messages between ranks over UDP: one socket and one listening thread for all that talk.

Whoever needs messages registers a handler for a *channel*, a short name; the thread hands it what
comes for that channel. The network may lose, double, delay and reorder datagrams: that is for the
channels to deal with (ask again, number the questions).

The store is used once, at the start, to exchange addresses and a random token, so nothing here
depends on its survival or on any rank's. The token keeps datagrams of other jobs out; it is no
authentication against an attacker who reads the network.

A datagram: token (16 bytes), sender (u16), length of the channel's name (u8), name, payload.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import socket
import struct
import threading
from collections.abc import Callable

from runtime.network.address import own_address
from runtime.network.store_exchange import require_all, tell_all
from runtime.torch_versions import Store

HEADER = struct.Struct("!16sHB")
MAX_PAYLOAD = 60_000
"""Bytes; longer payloads do not fit into one datagram with the header."""

Handler = Callable[[int, bytes], None]
"""(sender, payload), on the listening thread: must be quick; raises ValueError on a bad payload."""

logger = logging.getLogger("latecomer")


class ControlChannel:
    """One rank's UDP endpoint.

    Args:
        store: used for the exchange of addresses only.
        rank, size: place in the group.
        start_timeout_s: how long to wait for the others' addresses.

    Attributes:
        address: the IPv4 address under which the others reach this rank.
        token: 16 random bytes that only the ranks of this group know.
        dropped: datagrams that were foreign, malformed or for a channel nobody listens to.

    Raises:
        RankFailure: ranks that did not show up within ``start_timeout_s``.
    """

    def __init__(self, store: Store, rank: int, size: int, *, start_timeout_s: float) -> None:
        self.rank, self.size = rank, size
        self.address = own_address(store)
        self.dropped = 0
        self._handlers: dict[str, Handler] = {}
        self._closed = False
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self._socket.bind((self.address, 0))
            self.token, self._peers = self._meet(store, start_timeout_s)
        except BaseException:
            self._socket.close()
            raise
        self._thread = threading.Thread(
            target=self._listen, name="latecomer-datagrams", daemon=True
        )
        self._thread.start()

    def listen(self, channel: str, handler: Handler) -> None:
        """Hand payloads on ``channel`` to ``handler`` from now on, in place of any other.

        Args:
            channel: ASCII, 1 to 255 characters; the same on all ranks.
            handler: what it raises beyond ValueError is logged; the thread goes on.
        """
        assert 0 < len(channel.encode("ascii")) < 256
        self._handlers[channel] = handler

    def send(self, peer: int, channel: str, payload: bytes) -> None:
        """Send at once, without any promise that it arrives (a dead peer is no error)."""
        assert len(payload) <= MAX_PAYLOAD
        name = channel.encode("ascii")
        data = HEADER.pack(self.token, self.rank, len(name)) + name + payload
        with contextlib.suppress(OSError):  # a dead peer's port may refuse; silence tells
            self._socket.sendto(data, self._peers[peer])

    def close(self) -> None:
        """Stop listening; the rank is silent from here on."""
        if self._closed:
            return
        self._closed = True
        # wake the listener with an empty datagram of our own
        with contextlib.suppress(OSError):
            self._socket.sendto(b"", self._socket.getsockname())
        self._thread.join(timeout=1.0)
        self._socket.close()

    def _meet(self, store: Store, timeout_s: float) -> tuple[bytes, dict[int, tuple[str, int]]]:
        host, port = self._socket.getsockname()
        own = f"{host} {port} {secrets.token_hex(16)}"  # rank 0's token is that of the group
        told = tell_all(store, "address", self.rank, self.size, own, timeout_s)
        require_all(told, range(self.size), timeout_s)
        parts = {peer: said.split(" ") for peer, said in told.items()}
        peers = {peer: (host, int(port)) for peer, (host, port, _) in parts.items()}
        return bytes.fromhex(parts[0][2]), peers

    def _listen(self) -> None:
        while not self._closed:
            try:
                data, _ = self._socket.recvfrom(65536)
            except OSError:  # an earlier datagram of ours was refused
                continue
            if self._closed:
                return
            if not self._deliver(data):
                self.dropped += 1

    def _deliver(self, data: bytes) -> bool:
        """Hand one datagram to its channel; false if it is foreign or malformed."""
        if len(data) < HEADER.size:
            return False
        token, sender, length = HEADER.unpack_from(data)
        if not secrets.compare_digest(token, self.token) or sender >= self.size:
            return False
        name = data[HEADER.size : HEADER.size + length]
        handler = self._handlers.get(name.decode("ascii", "replace"))
        if handler is None or len(name) < length:
            return False
        try:
            handler(sender, data[HEADER.size + length :])
        except ValueError:
            return False
        except Exception:
            logger.exception("rank %d: channel %s failed on a datagram", self.rank, name)
        return True
