"""What ranks send each other about operations and epochs (msgpack, a few dozen bytes).

All messages may be lost, doubled, delayed and reordered. They carry the number of the operation or
the version of the epoch they are about, and mean the same however often they come.
"""

from __future__ import annotations

import msgspec

from latecomer.runtime.network.clock import Ping, Pong
from latecomer.runtime.policy.arrivals import Arrival, BufferSignature

NATIVE = -1  # the candidate that stands for the library's own all-reduce

OnTime = tuple[tuple[int, int], ...]
"""By class of sizes, in order, the candidate that was settled on, or NATIVE."""


class Decision(msgspec.Struct, frozen=True, array_like=True):
    """How one operation runs, and why: the same on all ranks."""

    candidate: int  # index of the schedule, or NATIVE
    late: tuple[int, ...]  # in the late ranks' places, in the expected order of their arrival
    reason: str


class Epoch(msgspec.Struct, frozen=True, array_like=True):
    """What all operations from ``first`` on are run under, until the next epoch's first.

    ``quiet``: every operation waits for all ranks and nobody asks; arrivals are reported now and
    then (mode auto, while there is no straggler).
    """

    version: int  # epochs are numbered; numbers of those that failed are not used again
    first: int
    coordinator: int  # the rank that hears of arrivals, decides, and proposes the next epoch
    late: tuple[int, ...] = ()  # who is predicted to be late (mode predict),
    delay_s: float = 0.0  # by how much,
    reason: str = ""  # and why
    quiet: bool = False
    made: int = -1  # bits: the candidates that all ranks have made (mode predict)
    on_time: OnTime = ()  # how operations run for which all are waited for


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=str.lower):
    pass


class Propose(_Message, frozen=True):
    """An epoch, to be accepted or refused."""

    epoch: Epoch


class Answer(_Message, frozen=True):
    """Accepts the version, or refuses it because an operation of it is bound already."""

    version: int
    accepts: bool


class Ask(_Message, frozen=True):
    """What became of this version?"""

    version: int


class Outcome(_Message, frozen=True):
    """Whether the version holds."""

    version: int
    holds: bool


class Arrive(_Message, frozen=True):
    """Ranks (the sender, or those it heads) have come to operations: one, or in reports many."""

    arrivals: tuple[Arrival, ...]
    asks: bool  # for a decision; in a quiet epoch no rank does, and what is told once may be lost
    consumed: int  # operations below need no decision any more on these ranks
    made: int  # bits: the candidates that these ranks have made
    done: tuple[tuple[int, float], ...] = ()  # since the last message, and when (reference clock)
    to: int | None = None  # the coordinator, if the receiver has to pass it on


class Decide(_Message, frozen=True):
    """The coordinator's decision, and for what buffer it was made."""

    operation: int
    buffer: BufferSignature
    decision: Decision


EpochMessage = Propose | Answer | Ask | Outcome
PolicyMessage = Ping | Pong | EpochMessage | Arrive | Decide
