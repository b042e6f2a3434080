"""How this rank's clock relates to the reference rank's, and how sure that is.

Source: the offset of NTP (RFC 5905) and Cristian's bound. A ping leaves at ``sent``, is heard by
the reference at ``heard`` and answered at ``replied`` (its clock), and the answer is back at
``back``. Whatever the network does, the true offset lies within half the round trip of

    offset = ((heard - sent) + (replied - back)) / 2        reference = own + offset

so the ping with the shortest round trip is the best. Deviation: no averaging and no steering of a
clock; an old ping loses by ``DRIFT`` per second of its age, which is more than quartz clocks of two
machines drift apart. Invariant: the true offset is within ``uncertainty_s`` while they do not.

Ranks of one machine read one clock: nothing has to be estimated there, which would be wrong by as
much as a busy processor delays an answer. It is believed only if the first answers agree with it: a
machine that was copied while it ran has the name of another one's clock.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from latecomer.runtime.network.protocol import Protocol

DRIFT = 100e-6  # seconds per second by which two clocks may drift apart
KEPT = 32  # answered pings
OUTSTANDING = 64
"""Pings that may still be answered. A burst goes on until the reference answers: one that was ready
a moment later would else have lost all of it."""
BURST = 8  # pings at first, since the best of several is taken
BURST_GAP_S = 0.02
PERIOD_S = 2.0  # between two pings after that, in which clocks drift apart by 0.2 ms at most
ROUNDING_S = 1e-6  # more than the differences of such times are wrong by
UNKNOWN_S = 3600.0  # the finite uncertainty of a clock that could not be aligned
REFERENCE = 0  # the rank whose clock all stamps are given in


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
    def finite(self) -> Alignment:
        """The same with a finite uncertainty, as JSON and tables need it."""
        return Alignment(self.offset_s, min(self.uncertainty_s, UNKNOWN_S))


@dataclass(frozen=True)
class Aligned:
    """The event that the alignment is known."""


class _Sample(NamedTuple):
    """A ping that was answered."""

    asked_s: float  # own clock
    half_trip_s: float  # of what went by from there to the answer, beside the reference's own time
    offset_s: float

    def order_s(self) -> float:
        """Less is better, at any time: all samples age alike."""
        return self.half_trip_s - DRIFT * self.asked_s


class Clock(Protocol[Ping | Pong, Aligned]):
    """A rank's estimate; the reference is aligned by definition, and answers.

    ``is_shared``: this rank says that it reads the reference's own clock.
    """

    def __init__(self, rank: int, *, asks: bool = True, is_shared: bool = False) -> None:
        super().__init__()
        self._is_shared = is_shared
        self.asks = asks  # may be set at any time: pings are sent, a burst first, then now and then
        self._exact = rank == REFERENCE
        self._samples: deque[_Sample] = deque(maxlen=KEPT)
        self._best = _Sample(asked_s=0.0, half_trip_s=math.inf, offset_s=0.0)  # of the samples
        self._outstanding: deque[float] = deque(maxlen=OUTSTANDING)
        self._asked = 0
        self._next_s = -math.inf
        if self._exact:
            self._events.append(Aligned())

    def get_timer(self) -> float | None:
        """When the next ping is due."""
        return self._next_s if self.asks and not self._exact else None

    def handle_timer(self, now_s: float) -> None:
        """Ask, if it is time; the burst goes on, ever more slowly, until it is answered."""
        if (timer_s := self.get_timer()) is None or now_s < timer_s:
            return
        gap_s = PERIOD_S
        if self._asked < BURST - 1 or not self._samples:
            gap_s = min(PERIOD_S, BURST_GAP_S * 2 ** (self._asked // BURST))
        self._asked += 1
        self._next_s = now_s + gap_s
        self._outstanding.append(now_s)
        self._send(REFERENCE, Ping(now_s))

    def receive_message(self, message: Ping | Pong, sender: int, now_s: float) -> None:
        """Answer a ping; use an answer, unless it comes twice or was not asked for."""
        if isinstance(message, Ping):
            self._send(sender, Pong(message.sent_s, now_s, now_s))
        elif message.sent_s in self._outstanding:
            self._outstanding.remove(message.sent_s)
            trip_s = (now_s - message.sent_s) - (message.replied_s - message.heard_s)
            if trip_s >= 0:
                offset_s = (message.heard_s - message.sent_s + (message.replied_s - now_s)) / 2
                if not self._samples:
                    self._events.append(Aligned())
                self._is_shared = self._is_shared and abs(offset_s) <= trip_s / 2 + ROUNDING_S
                self._samples.append(_Sample(message.sent_s, trip_s / 2, offset_s))
                self._best = min(self._samples, key=_Sample.order_s)

    def alignment(self, now_s: float) -> Alignment:
        """The best that is known at ``now_s``."""
        if self._exact or (self._is_shared and self._samples):
            return Alignment(0.0, 0.0)
        age_s = max(0.0, now_s - self._best.asked_s)
        return Alignment(self._best.offset_s, self._best.half_trip_s + DRIFT * age_s)
