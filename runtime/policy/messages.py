"""What ranks say to each other about operations, and how it is packed (msgpack, a few dozen bytes).

All messages may be lost, doubled, delayed and reordered. They carry the number of the operation or
the version of the plan they are about, and mean the same however often they come.
"""

from __future__ import annotations

import msgspec

from runtime.network.clock import Ping, Pong
from runtime.policy.decision import Decision
from runtime.policy.epochs import Answer, Ask, Outcome, Propose


class Arrive(msgspec.Struct, frozen=True, array_like=True, tag="arrive"):
    """A rank has come to an operation (and repeats it while it has no decision).

    Attributes:
        at_s: when, on the reference rank's clock (NaN: it is not aligned yet).
        bytes, kind: of its buffer; must be the same on all ranks.
        consumed: operations below need no decision any more on this rank.
        done: operations that are done since the last message, and when (reference clock).
    """

    operation: int
    at_s: float
    bytes: int
    kind: str
    consumed: int
    done: tuple[tuple[int, float], ...] = ()


class Report(msgspec.Struct, frozen=True, array_like=True, tag="report"):
    """Where nobody asks: what a rank did since its last report. Said once; it may be lost.

    Attributes:
        arrivals: operation, when (as in ``Arrive``), bytes and kind of the buffer.
        consumed, done: as in ``Arrive``.
    """

    arrivals: tuple[tuple[int, float, int, str], ...]
    consumed: int
    done: tuple[tuple[int, float], ...] = ()


class Decide(msgspec.Struct, frozen=True, array_like=True, tag="decide"):
    """The coordinator's decision, and for what buffer it was made."""

    operation: int
    bytes: int
    kind: str
    decision: Decision


Message = Ping | Pong | Propose | Answer | Ask | Outcome | Arrive | Report | Decide
Send = tuple[int, Message]
"""(to whom, what)"""

_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def pack(message: Message) -> bytes:
    """One datagram's payload."""
    return msgspec.msgpack.encode(message)


def unpack(payload: bytes) -> Message:
    """The message in a datagram.

    Raises:
        ValueError: it is none.
    """
    try:
        return _decoder.decode(payload)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None
