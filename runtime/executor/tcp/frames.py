"""What travels on a connection, and how many bytes of it go at once.

    credit   the receiver of a transfer allows its sender to send it up to byte ``offset``
    data     ``length`` bytes of a transfer, from byte ``offset``; never beyond the credit

A sender without credit sends nothing, so what arrives always has a place, no connection is ever
blocked by bytes that can't be taken yet, and a rank that has not entered the operation receives
none of it. A small operation has all its credit from the start (as MPI implementations send short
messages eagerly, and agree on long ones first): a credit would take as long as its data, and what
comes before its receiver has entered it is kept. Each header carries a digest of what the sender
takes the operation to be: ranks that submit different things find out at the first frame.

Header (32 bytes, little endian): length u32, transfer u32 (the highest bit set: a credit),
operation u64, offset u64, digest u64.

On a network the order of bytes decides, so the units in which others may come in between are
small: these numbers were found with a simulation of 8 ports of 200 Mbit/s, and tried on such;
windows of 1 MiB cost a tenth of the time there. Among processes of one host the processor is the
limit: each frame, credit and wake-up costs it the same whatever the size, and more than the copying
of 128 KiB. So there frames are large, a transfer gets all its credit once its place is free, and
the kernel may hold what it likes.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from dataclasses import dataclass

from latecomer.runtime.host import IPPROTO_TCP, TCP_CONGESTION, Socket

HEADER = struct.Struct("<IIQQQ")
Header = tuple[int, int, int, int, int, int]
"""Whose it is and what it says: peer, transfer, operation, offset, length, digest."""
CREDIT = 0x80000000
KIB = 1024


@dataclass(frozen=True)
class Sizes:
    """Bytes."""

    frame: int  # data in a frame, the unit in which other transfers may come in between
    wake: int  # data that is worth waking the receiver for, and that is passed on at once
    due: int  # how far a due transfer may be ahead of its place, while a credit is on its way
    nearly: int  # left of those before it with which the next transfer counts as due
    ahead: int  # the most that a transfer behind the due one may be ahead
    held: int  # what the kernel may always hold: on a network, the windows of two due transfers
    whole: bool  # windows begin where the place is not free yet, not at what has come


NETWORK = Sizes(
    frame=32 * KIB,
    wake=32 * KIB,
    due=96 * KIB,
    nearly=96 * KIB,
    ahead=64 * KIB,
    held=192 * KIB,
    whole=False,
)
ONE_HOST = Sizes(
    frame=4096 * KIB,
    wake=256 * KIB,
    due=4096 * KIB,
    nearly=4096 * KIB,
    ahead=1024 * KIB,
    held=2**62,
    whole=True,
)
LARGEST_FRAME = ONE_HOST.frame


def fitting(sockets: Collection[Socket]) -> Sizes:
    """For one host, if all peers have this rank's own address; else for a network.

    On one host the sockets are given Reno, which every kernel has and any user may choose: nothing
    is lost or to be paced, and BBR, where it is the default, would spend the processor's time.
    """
    local = all(s.getsockname()[0] == s.getpeername()[0] for s in sockets)
    if not local:
        return NETWORK
    for tcp in sockets:
        tcp.setsockopt(IPPROTO_TCP, TCP_CONGESTION, b"reno")
    return ONE_HOST
