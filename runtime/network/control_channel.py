"""Small messages between ranks over UDP: one socket and one control thread for all protocols.

Whoever needs messages registers a handler for a *channel*, a short name; the control loop hands it
what comes for that channel. The network may lose, double, delay and reorder datagrams: that is for
the channels to deal with (ask again, number the questions).

The store is used once, at the start, to exchange addresses and a random token, so nothing here
depends on its survival or on any rank's. The token keeps datagrams of other jobs out; it is no
authentication against an attacker who reads the network.

A datagram: token (16 bytes), sender (u16), length of the channel's name (u8), name, payload.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import struct
from collections.abc import Callable

from latecomer.runtime.host import MSG_DONTWAIT, host
from latecomer.runtime.network.addresses import datagram_socket, own_address
from latecomer.runtime.network.control_loop import ControlLoop
from latecomer.runtime.network.store_exchange import StoreExchange

HEADER = struct.Struct("!16sHB")
LARGEST_DATAGRAM = 65_536  # bytes that are read: more than UDP over IPv4 can carry
MAX_PAYLOAD = 60_000  # bytes; longer payloads do not fit into one datagram with the header

Handler = Callable[[int, bytes], None]
"""(sender, payload), on the control loop: must be quick; raises ValueError on a bad payload.
What else it raises is logged, and the loop goes on."""

logger = logging.getLogger("latecomer")


class ControlChannel:
    """One rank's UDP socket, and the ``loop`` that reads it and drives the protocols on it.

    ``token`` are 16 random bytes that only the ranks of this group know.

    RankFailure is raised for ranks that did not join within the group's time-out.
    """

    def __init__(self, group: StoreExchange) -> None:
        self.rank = group.rank
        self.size = group.world_size
        self.address = own_address(group.store)  # the others reach this rank there
        self.dropped = 0  # datagrams: foreign, malformed or for a channel nobody listens to
        self._handlers: dict[str, Handler] = {}
        self._heard_hosts: set[str] = set()
        self._clocks: dict[int, str] = {}  # by rank: the clock that it reads, if that has a name
        self._closed = False
        self._socket = datagram_socket(self.address)
        try:
            self.token, self._peers = self._meet(group)
        except BaseException:
            self._socket.close()
            raise
        self.loop = ControlLoop({self._socket: self._receive})

    def listen(self, channel: str, handler: Handler) -> None:
        """Hand payloads on ``channel`` (ASCII, up to 255 characters) to ``handler`` from now on."""
        assert 0 < len(channel.encode("ascii")) < 256
        self._handlers[channel] = handler

    def send(self, peer: int, channel: str, payload: bytes) -> None:
        """Send at once, without any promise that it arrives (a dead peer is no error)."""
        assert len(payload) <= MAX_PAYLOAD
        name = channel.encode("ascii")
        data = HEADER.pack(self.token, self.rank, len(name)) + name + payload
        with contextlib.suppress(OSError):  # a dead peer's port may refuse; silence tells
            self._socket.sendto(data, self._peers[peer])

    def never_heard(self) -> list[int]:
        """Ranks of hosts from which no datagram has ever come to this rank.

        They have met this rank through the store, so either nobody there has had anything to say,
        or something between drops datagrams.
        """
        hosts = self._heard_hosts | {self.address}
        return [rank for rank, (address, _) in self._peers.items() if address not in hosts]

    def shares_clock(self, peer: int) -> bool:
        """Whether this rank reads the same clock as ``peer``, by what they say."""
        return self._clocks[peer] == self._clocks[self.rank] != ""

    def close(self) -> None:
        """Stop listening; the rank is silent from here on."""
        if self._closed:
            return
        self._closed = True
        self.loop.close()
        self._socket.close()

    def _meet(self, group: StoreExchange) -> tuple[bytes, dict[int, tuple[str, int]]]:
        address, port, *_ = self._socket.getsockname()
        # rank 0's token is that of the group
        own_text = f"{address} {port} {host.random_token(16)} {host.clock_name()}"
        texts = group.all_gather("address", own_text)
        peers = {}
        for peer, text in texts.items():
            address, port, _, self._clocks[peer] = text.split(" ")
            peers[peer] = (address, int(port))
        _, _, token, _ = texts[0].split(" ")
        return bytes.fromhex(token), peers

    def _receive(self) -> None:
        """Take one datagram, if there is one."""
        try:
            data = self._socket.recv(LARGEST_DATAGRAM, MSG_DONTWAIT)
        except OSError:  # nothing there after all, or an earlier datagram of ours was refused
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
        self._heard_hosts.add(self._peers[sender][0])
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
