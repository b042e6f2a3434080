"""What passes between UBT's protocol and what is below it: two events up, two messages down.

Below it a data path reads datagrams, refuses what is not right, and puts payloads where they
belong; the protocol is told by :class:`Placed` how many those were, and gets every other datagram
as a :class:`Control`. Down go a :class:`Burst` of a shard and, again, a :class:`Control`.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

import numpy as np

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
ShardKey = tuple[int, int, int]
"""Operation, stage, and the rank at the other end: the sender of what comes, else the receiver."""

# flags of a credit
OVER = 2  # its stage is over here
GONE = 4  # its operation is over here


class Type(IntEnum):
    """What a datagram is for."""

    DATA = 1
    CREDIT = 2
    END = 3


class DatagramHeader(NamedTuple):
    """What datagrams to one peer have in common; the field ``operation`` is bucket and step."""

    stage: int
    receiver: int
    operation: int
    incast: int = 1
    expected_us: int = 0


class Placed(NamedTuple):
    """Data of one shard has come; what was new of it lies in its place."""

    stage: int
    peer: int  # who sent it
    operation: int
    datagrams: int  # that came
    fresh: int  # of these, new and in their place: 0 where the stage is over, or not open at all
    marked: bool  # one of those belongs to the last percentile of its shard
    incast: int  # and the next two: what the last datagram announced
    expected_us: int
    passed: int


class Control(NamedTuple):
    """A credit, or "all is sent", from or to ``peer``.

    A credit says how many datagrams of its receiver's shard are known to have left the network
    (``passed``), how many may be underway (``window``, where it is not 0), and by its ``flags``
    (``OVER``, ``GONE``) what takes no more. Of several that came together there is one event.
    """

    type: Type
    stage: int
    peer: int
    operation: int
    passed: int = 0
    window: int = 0
    flags: int = 0
    incast: int = 1  # and the next one: what its sender announces
    expected_us: int = 0

    @property
    def datagrams(self) -> int:
        """How many datagrams it is."""
        return 1


class Burst(NamedTuple):
    """Consecutive datagrams of a shard, to be sent together."""

    header: DatagramHeader
    source: Bytes  # all of the shard
    first: int  # number of the first datagram
    marks_from: int  # datagrams from this number on are marked as the shard's last
    passed: np.ndarray  # int64 [datagrams]: how many of the shard were sent with each, and before

    @property
    def datagrams(self) -> int:
        """How many datagrams it is."""
        return len(self.passed)


UbtEvent = Placed | Control
UbtMessage = Burst | Control


class ExpectedShard(NamedTuple):
    """What one sender has to send in one stage, and where that belongs."""

    stage: int
    sender: int
    arrived: np.ndarray  # bool [datagrams]: set for those that lie in their place
    into: Bytes  # all bytes of the shard


class ShardPlacer(Protocol):
    """What the protocol needs from below: to say what may be placed."""

    def open(self, operation: int, shards: Iterable[ExpectedShard]) -> Iterable[UbtEvent]:
        """Place what comes of these from now on; the events of what came before."""

    def close(self, operation: int, stage: int) -> None:
        """Place nothing of this stage any more."""


def operation_id(step: int, bucket: int) -> int:
    """Step and bucket as the one number that is on the wire."""
    return (step % 2**32) << 32 | bucket % 2**32


def is_before(a: int, b: int) -> bool:
    """Whether operation ``a`` is older than ``b``: serial number arithmetic (RFC 1982), 64 bits."""
    return 0 < (b - a) % 2**64 < 2**63
