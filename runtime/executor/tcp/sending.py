"""What this rank sends, and in which order.

A port is used best by one transfer at a time: two that share it delay each other. But it must
never stand idle while a later transfer could use it. So of all transfers that may go (there is
credit, and their data is there) the first in the order of operations and rounds goes, and the
kernel is never given more than keeps the port busy (``runtime.executor.tcp.flow_control``), since
nothing overtakes what it holds. A full connection is not overtaken either.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Mapping

from runtime.executor.tcp.connection import Connection, Mismatch, PeerLost
from runtime.executor.tcp.flow_control import SendBacklog
from runtime.executor.tcp.frames import Sizes
from runtime.executor.tcp.transfer import TransferState


class Sender:
    """The sends of a rank for which there is credit.

    Attributes:
        held_back: something may go as soon as the port is less full.
        moved_s: ``time.monotonic()`` when something last went.
    """

    def __init__(
        self,
        connections: Mapping[int, Connection],
        states: Mapping[int, TransferState],
        sizes: Sizes,
    ) -> None:
        self._connections, self._states = connections, states
        self._backlog = SendBacklog(connections.values(), sizes.held)
        self._ready: list[tuple[int, int]] = []  # (operation, end), in order
        self.held_back = False
        self.moved_s = time.monotonic()

    def receive_credit(
        self, state: TransferState, peer: int, transfer: int, upto: int, digest: int
    ) -> None:
        """``peer`` allows a transfer to it up to byte ``upto``.

        Raises:
            Mismatch: it takes the operation to be another.
            PeerLost: that credit makes no sense.
        """
        if state.digest != digest:
            raise Mismatch(state.number, peer)
        i = state.program.at.get(transfer, -1)
        fits = i >= 0 and state.program.ends[i].send and state.program.ends[i].peer == peer
        if not fits or upto > state.size[i]:
            raise PeerLost(f"rank {peer} gave credit for what it does not receive")
        if upto > state.credit[i]:
            if state.credit[i] == state.done[i]:
                bisect.insort(self._ready, (state.number, i))
            state.credit[i] = upto

    def go_on(self) -> bool:
        """Send what may go, in order, until the port or a connection is full; false: nothing went.

        Raises:
            PeerLost: a connection that is needed is closed.
        """
        at, went = 0, False
        self.held_back = False
        while at < len(self._ready):
            number, i = self._ready[at]
            state = self._states[number]
            connection = self._connections[state.program.ends[i].peer]
            while not connection.blocked and (length := state.sendable(i)):
                if self._backlog.full():
                    self.held_back = True
                    return went
                state.touch(i)
                connection.send(state, i, length)
                self.moved_s, went = time.monotonic(), True
            if state.done[i] == state.credit[i]:
                del self._ready[at]
            else:
                at += 1
            if connection.blocked:
                break
        return went
