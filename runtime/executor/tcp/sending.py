"""What this rank sends, and in which order.

A port is used best by one transfer at a time: two that share it delay each other. But it must
never stand idle while a later transfer could use it. So of all transfers that may go (granted, and
their data is there) the first in the order of operations and rounds goes, and the kernel is never
given more than keeps the port busy (``runtime.executor.tcp.backlog``), since nothing overtakes what
it holds. A full connection is not overtaken either. ``runtime.executor.tcp.credits`` sees to the
receiving side.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Mapping

from runtime.executor.operation import Mismatch, PeerLost
from runtime.executor.tcp.backlog import SendBacklog
from runtime.executor.tcp.connection import Connection
from runtime.executor.tcp.sizes import Sizes
from runtime.executor.tcp.transfer import TransferState


class Sending:
    """The sends of a rank that have grants.

    Args:
        links: all connections.
        flows: the operations under way, by number.
        sizes: of frames, and of what the kernel may hold.

    Attributes:
        held_back: something may go as soon as the port is less full.
        moved_s: ``time.monotonic()`` when something last went.
    """

    def __init__(
        self, links: Mapping[int, Connection], flows: Mapping[int, TransferState], sizes: Sizes
    ) -> None:
        self._links, self._flows = links, flows
        self._port = SendBacklog(links.values(), sizes.held)
        self._granted: list[tuple[int, int]] = []  # (operation, move), in order
        self.held_back = False
        self.moved_s = time.monotonic()

    def granted(
        self, flow: TransferState, peer: int, transfer: int, upto: int, digest: int
    ) -> None:
        """A peer allows a transfer to it up to byte ``upto``.

        Raises:
            Mismatch: it takes the operation to be another.
            PeerLost: that grant makes no sense.
        """
        if flow.digest != digest:
            raise Mismatch(flow.number, peer)
        i = flow.plan.at.get(transfer, -1)
        fits = i >= 0 and flow.plan.all[i].send and flow.plan.all[i].peer == peer
        if not fits or upto > flow.size[i]:
            raise PeerLost(f"rank {peer} granted what nobody asked for")
        if upto > flow.granted[i]:
            if flow.granted[i] == flow.done[i]:
                bisect.insort(self._granted, (flow.number, i))
            flow.granted[i] = upto

    def go_on(self) -> bool:
        """Send what may go, in order, until the port or a connection is full; false: nothing went.

        Raises:
            PeerLost: a connection that is needed is closed.
        """
        at, went = 0, False
        self.held_back = False
        while at < len(self._granted):
            number, i = self._granted[at]
            flow = self._flows[number]
            link = self._links[flow.plan.all[i].peer]
            while not link.blocked and (length := flow.sendable(i)):
                if self._port.full():
                    self.held_back = True
                    return went
                flow.touch(i)
                link.send(flow, i, length)
                self.moved_s, went = time.monotonic(), True
            if flow.done[i] == flow.granted[i]:
                del self._granted[at]
            else:
                at += 1
            if link.blocked:
                break
        return went
