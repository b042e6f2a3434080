"""What ranks send each other about operations and epochs (msgpack, a few dozen bytes).

All messages may be lost, doubled, delayed and reordered. They carry the number of the operation or
the version of the epoch they are about, and mean the same however often they come.
"""

from __future__ import annotations

import msgspec

from runtime.network.clock import Ping, Pong

NATIVE = -1
"""The candidate that stands for the library's own all-reduce."""


class Decision(msgspec.Struct, frozen=True, array_like=True):
    """How one operation runs: the same on all ranks.

    Attributes:
        candidate: index of the schedule, or ``NATIVE``.
        late: the ranks that take the late ranks' places, in the expected order of their arrival.
        reason: why.
    """

    candidate: int
    late: tuple[int, ...]
    reason: str


class Epoch(msgspec.Struct, frozen=True, array_like=True):
    """What all operations from ``first`` on are run under, until the next epoch's first.

    Attributes:
        version: epochs are numbered; numbers of those that failed are not used again.
        first: the first operation it holds for.
        coordinator: the rank that hears of arrivals, decides, and proposes the next epoch.
        late, delay_s: who is predicted to be late, and by how much (mode predict).
        quiet: every operation runs natively and nobody asks; arrivals are reported now and then
            (mode auto, while there is no straggler).
        reason: why.
    """

    version: int
    first: int
    coordinator: int
    late: tuple[int, ...] = ()
    delay_s: float = 0.0
    reason: str = ""
    quiet: bool = False


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
    """A rank has come to an operation (and repeats it while it has no decision).

    Attributes:
        at_s: when, on the reference rank's clock (NaN: it is not aligned yet).
        nbytes, kind: of its buffer; must be the same on all ranks.
        consumed: operations below need no decision any more on this rank.
        done: operations that are done since the last message, and when (reference clock).
    """

    operation: int
    at_s: float
    nbytes: int
    kind: str
    consumed: int
    done: tuple[tuple[int, float], ...] = ()


class Report(_Message, frozen=True):
    """In a quiet epoch: what a rank did since its last report. Sent once; it may be lost.

    Attributes:
        arrivals: operation, when (as in ``Arrive``), bytes and kind of the buffer.
        consumed, done: as in ``Arrive``.
    """

    arrivals: tuple[tuple[int, float, int, str], ...]
    consumed: int
    done: tuple[tuple[int, float], ...] = ()


class Decide(_Message, frozen=True):
    """The coordinator's decision, and for what buffer it was made."""

    operation: int
    nbytes: int
    kind: str
    decision: Decision


EpochMessage = Propose | Answer | Ask | Outcome
Message = Ping | Pong | EpochMessage | Arrive | Report | Decide
