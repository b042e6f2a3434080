"""What boards send each other: questions, answers and verdicts, each in one datagram.

A datagram has a largest size and words have none, so they are told as far as they fit, and what is
left out is marked. Which ranks failed is always told whole: a bit for each rank of the group.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from runtime.health.diagnosis import RankStatus
from verify.errors import RankFailure

TEXT, EVIDENCE = 16_000, 30_000
"""Bytes of a verdict's text (or of one string of a position), and of all its evidence."""
LINES = 64
CUT = " [...]"


class Message(msgspec.Struct, omit_defaults=True):
    """``position`` answers; ``asks`` demands an answer; ``failed`` makes it a verdict.

    An answer has the number of its question: one that comes late or twice is told apart. ``failed``
    has bit ``r % 8`` of byte ``r // 8`` set for each rank ``r`` to blame.
    """

    asks: bool = False
    alarm: bool = False
    question: int = 0
    position: RankStatus | None = None
    failed: bytes | None = None
    text: str = ""
    evidence: list[str] = []


def answer(question: int, position: RankStatus) -> Message:
    """Where a rank stands."""
    waiting = position.waiting
    if waiting is not None:
        waiting = msgspec.structs.replace(waiting, phase=shortened(waiting.phase, TEXT))
    told = msgspec.structs.replace(
        position,
        waiting=waiting,
        broken=shortened(position.broken, TEXT),
        doing=shortened(position.doing, TEXT),
    )
    return Message(question=question, position=told)


def verdict(failure: RankFailure) -> Message:
    """Who failed, and why."""
    text = shortened(str(failure).split("\n", 1)[0], TEXT)
    return Message(failed=_bits(failure.ranks), text=text, evidence=_first(failure.evidence))


def failure(message: Message) -> RankFailure | None:
    """The verdict in a message, if it is one."""
    if message.failed is None:
        return None
    return RankFailure(list(_ranks(message.failed)), message.text, message.evidence)


def pack(message: Message) -> bytes:
    """A datagram's payload: at most ``runtime.network.control_channel.MAX_PAYLOAD`` bytes."""
    return msgspec.msgpack.encode(message)


def unpack(payload: bytes, size: int) -> Message:
    """The message in a datagram to a rank of a group of ``size``.

    Raises:
        ValueError: it is none, or speaks of ranks that do not exist.
    """
    try:
        message = _decoder.decode(payload)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None
    if message.failed is not None and int.from_bytes(message.failed, "little") >> size:
        raise ValueError(f"a verdict on ranks beyond {size - 1}")
    if message.position is not None:
        _require_sound(message.position, size)
    return message


def shortened(text: str, most: int) -> str:
    """``text`` in at most ``most`` bytes of UTF-8; what UTF-8 does not have is escaped."""
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= most:
        return data.decode()
    return data[: most - len(CUT)].decode("utf-8", "ignore") + CUT


def _require_sound(position: RankStatus, size: int) -> None:
    peer = position.waiting.peer if position.waiting is not None else None
    if not {peer, position.differs_from} <= {None, *range(size)}:
        raise ValueError("a position that speaks of a rank that does not exist")
    if not math.isfinite(position.idle_s):
        raise ValueError("a position since a time that is none")


def _first(lines: Sequence[str]) -> list[str]:
    """As many lines as fit, and how many more there are."""
    told: list[str] = []
    left = EVIDENCE
    for line in lines[:LINES]:
        short = shortened(line, TEXT)
        left -= len(short.encode())
        if left < 0:
            break
        told.append(short)
    more = len(lines) - len(told)
    return [*told, f"and {more} line(s) more"] if more else told


def _bits(ranks: Iterable[int]) -> bytes:
    bits = sum(1 << rank for rank in set(ranks))
    return bits.to_bytes(-(-bits.bit_length() // 8), "little")


def _ranks(bits: bytes) -> Iterator[int]:
    return (8 * at + bit for at, byte in enumerate(bits) for bit in range(8) if byte >> bit & 1)


_decoder = msgspec.msgpack.Decoder(Message)
