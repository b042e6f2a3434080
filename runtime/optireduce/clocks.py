"""Aligns this rank's clock with the reference rank's while somebody watches; else silent.

Pings travel on the engine's control plane; :mod:`runtime.network.clock` makes of them what can be
known. The reference answers always, the others ask only between :meth:`Clocks.begin` and
:meth:`Clocks.end`.
"""

from __future__ import annotations

import math
import threading
import time

import msgspec

from runtime.network.clock import REFERENCE, Alignment, Clock, Ping, Pong
from runtime.network.control_channel import ControlChannel

CHANNEL = "clock"
ALIGN_S = 2.0
"""How long the beginning waits for a first answer."""


class Clocks:
    """One rank's clock.

    Args:
        datagrams: carry the pings; closed by their owner.
    """

    def __init__(self, datagrams: ControlChannel) -> None:
        self._datagrams = datagrams
        self._clock = Clock(datagrams.rank)
        self._news = threading.Condition()
        self._watched = False
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(Ping | Pong)
        datagrams.listen(CHANNEL, self._hear)

    def begin(self) -> None:
        """Ask from now on; waits a little for the first answer."""
        with self._news:
            self._watched = True
            threading.Thread(target=self._ask, name="latecomer-clock", daemon=True).start()
            self._news.wait_for(self._aligned, ALIGN_S)

    def end(self) -> None:
        """Be silent again."""
        with self._news:
            self._watched = False
            self._news.notify_all()

    def alignment(self) -> Alignment:
        """How the clock relates to the reference's now."""
        with self._news:
            return self._clock.alignment(time.monotonic()).told

    def _aligned(self) -> bool:
        return math.isfinite(self._clock.alignment(time.monotonic()).uncertainty_s)

    def _ask(self) -> None:
        with self._news:
            while self._watched and self._clock.wake_s < math.inf:
                if (ping := self._clock.tick(time.monotonic())) is not None:
                    self._datagrams.send(REFERENCE, CHANNEL, self._encoder.encode(ping))
                self._news.wait(max(0.001, self._clock.wake_s - time.monotonic()))

    def _hear(self, sender: int, payload: bytes) -> None:
        now_s = time.monotonic()
        try:
            message = self._decoder.decode(payload)
        except msgspec.DecodeError as error:
            raise ValueError(str(error)) from None
        if isinstance(message, Ping):
            answer = Clock.answer(message, now_s)
            self._datagrams.send(sender, CHANNEL, self._encoder.encode(answer))
            return
        with self._news:
            self._clock.receive(message, now_s)
            self._news.notify_all()
