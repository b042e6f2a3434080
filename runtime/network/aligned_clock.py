"""This rank's clock at work on a control channel: pings go out, answers come in."""

from __future__ import annotations

from latecomer.runtime.host import host
from latecomer.runtime.network.clock import REFERENCE, Aligned, Alignment, Clock, Ping, Pong
from latecomer.runtime.network.control_channel import ControlChannel
from latecomer.runtime.network.protocol import ProtocolRunner


class AlignedClock(ProtocolRunner[Ping | Pong, Aligned]):
    """Aligns this rank's clock while it ``asks``; answers always."""

    def __init__(self, channel: ControlChannel, *, asks: bool = True) -> None:
        is_shared = channel.shares_clock(REFERENCE)
        self._clock = Clock(channel.rank, asks=asks, is_shared=is_shared)
        self._aligned = host.Event()
        super().__init__(self._clock, channel, "clock", Ping | Pong)

    def ask(self, asks: bool) -> None:
        """Begin, or end."""
        self.run(lambda now_s: setattr(self._clock, "asks", asks))

    def wait(self, within_s: float) -> None:
        """Wait for the first answer, no longer than ``within_s``."""
        self._aligned.wait(within_s)

    def alignment(self) -> Alignment:
        """As it is now, with a finite uncertainty."""
        return self.run(self._clock.alignment).finite

    def handle_event(self, event: Aligned) -> None:
        """It is known."""
        self._aligned.set()
