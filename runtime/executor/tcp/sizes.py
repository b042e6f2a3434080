"""How many bytes go at once: small where ranks share the ports of a network, large on one host.

On a network the order of bytes decides, so the units in which others may come in between are
small: these numbers were found with a simulation of 8 ports of 200 Mbit/s, and tried on such;
windows of 1 MiB cost a tenth of the time there. Among processes of one host there is no port to
share, the processor is the limit: each frame, each grant and each wake-up costs it the same
whatever the size, and more than the copying of 128 KiB. So there frames are large, and a transfer
is granted whole as soon as its place is free.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """Bytes.

    Attributes:
        frame: data in a frame, the unit in which other transfers may come in between.
        wake: data that is worth waking the receiver for, and that is passed on at once.
        due: how far a due transfer may be ahead of its place: some frames, so that the sender
            need not pause while a grant is on its way.
        nearly: left of those before it with which the next transfer counts as due.
        ahead: the most that a transfer behind the due one may be ahead.
        held: what the kernel may always hold: on a network, the windows of two due transfers.
        whole: windows begin where the place is no longer free, not where the transfer has come to.
    """

    frame: int
    wake: int
    due: int
    nearly: int
    ahead: int
    held: int
    whole: bool


KIB = 1024
NETWORK = Sizes(32 * KIB, 32 * KIB, 96 * KIB, 96 * KIB, 64 * KIB, 192 * KIB, False)
ONE_HOST = Sizes(1024 * KIB, 256 * KIB, 1024 * KIB, 4096 * KIB, 1024 * KIB, 4096 * KIB, True)
LARGEST_FRAME = ONE_HOST.frame


def fitting(connections: Iterable[socket.socket]) -> Sizes:
    """For one host, if all peers have this rank's own address; else for a network."""
    local = all(c.getsockname()[0] == c.getpeername()[0] for c in connections)
    return ONE_HOST if local else NETWORK
