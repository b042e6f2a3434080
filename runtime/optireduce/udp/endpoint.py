"""One rank's data path at work: a socket, and what makes events of what comes from it."""

from __future__ import annotations

from typing import Any

import numpy as np

from latecomer.runtime.optireduce.udp.events import Burst, UbtEvent, UbtMessage
from latecomer.runtime.optireduce.udp.placement import Placer
from latecomer.runtime.optireduce.udp.socket import UdpSocket


class Endpoint:
    """Carries messages of the protocol; closes the ``channel``, which has its peers."""

    def __init__(self, channel: UdpSocket, placer: Placer) -> None:
        self.placer = placer
        self._codec = placer.codec
        self._channel = channel
        self._written: tuple[Burst, Any] | None = None

    def fileno(self) -> int:
        """For poll."""
        return self._channel.fileno()

    def receive(self) -> tuple[int, list[UbtEvent]] | None:
        """(datagrams that were read at once, the events of them); ``None``: there is nothing."""
        rows = self._channel.receive()
        return None if rows is None else (len(rows), self.placer.read(rows))

    def send(self, message: UbtMessage) -> int:
        """How many datagrams of a message the kernel took (0: it is full)."""
        if not isinstance(message, Burst):
            datagram = np.frombuffer(self._codec.control(message), np.uint8)
            return self._channel.send(message.peer, datagram[None])
        # what the kernel did not take comes again: not to be written, and sealed, once more
        if self._written is None or self._written[0] is not message:
            self._written = message, self._codec.burst(message)
        taken = self._channel.send(message.header.receiver, self._written[1])
        if taken:
            self._written = None
        return taken

    def close(self) -> None:
        """Close the socket."""
        self._channel.close()
