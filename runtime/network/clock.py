"""How this rank's clock relates to the reference rank's, and how sure that is.

Source: the offset of NTP (RFC 5905) and Cristian's bound. A ping leaves at ``sent``, is heard by
the reference at ``heard`` and answered at ``replied`` (its clock), and the answer is back at
``back``. Whatever the network does, the true offset lies within half the round trip of

    offset = ((heard - sent) + (replied - back)) / 2        reference = own + offset

so the ping with the shortest round trip is the best. Deviation: no averaging and no steering of a
clock; an old ping loses by ``DRIFT`` per second of its age, which is more than quartz clocks of two
machines drift apart. Invariant: the true offset is within ``uncertainty_s`` while they do not.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import msgspec

DRIFT = 100e-6
"""Seconds per second by which two clocks may drift apart."""
KEPT = 32
BURST = 8
BURST_GAP_S = 0.02
PERIOD_S = 2.0
OUTSTANDING = 64
UNKNOWN_S = 3600.0
"""The uncertainty of a clock that could not be aligned, as it is told: infinity can't be."""
REFERENCE = 0
"""The rank whose clock all stamps are given in."""


class Ping(msgspec.Struct, frozen=True, array_like=True, tag="ping"):
    """Sent at ``sent_s`` on the asking rank's clock."""

    sent_s: float


class Pong(msgspec.Struct, frozen=True, array_like=True, tag="pong"):
    """The answer: heard and replied on the reference's clock."""

    sent_s: float
    heard_s: float
    replied_s: float


@dataclass(frozen=True)
class Alignment:
    """reference clock = own clock + ``offset_s``, within ``uncertainty_s`` (infinite: unknown)."""

    offset_s: float
    uncertainty_s: float

    @property
    def told(self) -> Alignment:
        """The same with a finite uncertainty."""
        return Alignment(self.offset_s, min(self.uncertainty_s, UNKNOWN_S))


@dataclass(frozen=True)
class _Sample:
    offset_s: float
    half_s: float
    asked_s: float

    def uncertainty_s(self, now_s: float) -> float:
        return self.half_s + DRIFT * max(0.0, now_s - self.asked_s)


class Clock:
    """A rank's estimate, and when to ask again.

    Args:
        rank: the own; the reference is aligned by definition.
    """

    def __init__(self, rank: int) -> None:
        self._exact = rank == REFERENCE
        self._samples: deque[_Sample] = deque(maxlen=KEPT)
        self._outstanding: deque[float] = deque(maxlen=OUTSTANDING)
        self._asked = 0
        self._next_s = float("inf") if self._exact else float("-inf")

    @property
    def wake_s(self) -> float:
        """When the next ping is due, on the own clock."""
        return self._next_s

    def tick(self, now_s: float) -> Ping | None:
        """A ping for the reference, if one is due: a burst first, then now and then.

        The burst goes on until it is answered, ever more slowly: the reference may not listen yet.
        """
        if now_s < self._next_s:
            return None
        gap_s = PERIOD_S
        if self._asked < BURST - 1 or not self._samples:
            gap_s = min(PERIOD_S, BURST_GAP_S * 2 ** (self._asked // BURST))
        self._asked += 1
        self._next_s = now_s + gap_s
        self._outstanding.append(now_s)
        return Ping(now_s)

    @staticmethod
    def answer(ping: Ping, now_s: float) -> Pong:
        """What the reference says."""
        return Pong(ping.sent_s, now_s, now_s)

    def receive(self, pong: Pong, now_s: float) -> None:
        """Use an answer; one that comes twice, or was not asked for, is ignored."""
        if pong.sent_s not in self._outstanding:
            return
        self._outstanding.remove(pong.sent_s)
        trip_s = (now_s - pong.sent_s) - (pong.replied_s - pong.heard_s)
        if trip_s < 0:
            return
        offset_s = ((pong.heard_s - pong.sent_s) + (pong.replied_s - now_s)) / 2
        self._samples.append(_Sample(offset_s, trip_s / 2, pong.sent_s))

    def alignment(self, now_s: float) -> Alignment:
        """The best that is known at ``now_s``."""
        if self._exact:
            return Alignment(0.0, 0.0)
        best = min(self._samples, key=lambda s: s.uncertainty_s(now_s), default=None)
        if best is None:
            return Alignment(0.0, float("inf"))
        return Alignment(best.offset_s, best.uncertainty_s(now_s))
