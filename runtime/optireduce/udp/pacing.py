"""How fast to send to one peer: a light rate control in the style of TIMELY.

Source: OptiReduce, section 3.2.3, after TIMELY (SIGCOMM 2015): below ``rtt_low_s`` the rate
rises by a step, above ``rtt_high_s`` it falls in proportion, between them the trend of the round
trip decides, as a share of ``rtt_high_s`` (TIMELY: of the shortest round trip, but our clocks are
those of threads that wait for a processor). It is there to avoid congestion collapse, not to share
fairly; the credits of the receiver hold a sender back first. Pure: times and sizes in, the time of
the next burst out.
"""

from __future__ import annotations

from runtime.optireduce.options import Options

STALL_ROUND_TRIPS = 4
TREND_WEIGHT = 0.3
"""TIMELY's weight of the newest difference of round trips."""


class Pacer:
    """Rate and round trip to one peer.

    Attributes:
        most_s: see :attr:`stall_s`.
        rate: bytes per second.
        rtt_s: moving average; 0 before the first sample.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self.most_s = options.stall_s
        self.rate = min(max(options.rate_start, options.rate_least), options.rate_most)
        self.rtt_s = 0.0
        self.next_s = 0.0
        self._trend_s = 0.0
        self._last_s = 0.0

    @property
    def stall_s(self) -> float:
        """Silence after which what is underway counts as lost: a few round trips."""
        least_s = max(self._options.stall_s, STALL_ROUND_TRIPS * self.rtt_s)
        return min(self.most_s, least_s) if self.rtt_s else self.most_s

    def sent(self, size: int, now_s: float) -> None:
        """``size`` bytes were handed to the kernel."""
        self.next_s = max(self.next_s, now_s) + size / self.rate

    def answered(self, rtt_s: float) -> None:
        """A credit came back after ``rtt_s`` seconds."""
        if not 0 <= rtt_s < 60:
            return
        options = self._options
        if self._last_s:
            self._trend_s += TREND_WEIGHT * (rtt_s - self._last_s - self._trend_s)
        self._last_s = rtt_s
        self.rtt_s = rtt_s if not self.rtt_s else 0.875 * self.rtt_s + 0.125 * rtt_s
        if rtt_s < options.rtt_low_s:
            self._set(self.rate + options.rate_step)
        elif rtt_s > options.rtt_high_s:
            self._set(self.rate * (1 - options.rate_decrease * (1 - options.rtt_high_s / rtt_s)))
        elif self._trend_s <= 0:
            self._set(self.rate + options.rate_step)
        else:
            gradient = min(1.0, self._trend_s / options.rtt_high_s)
            self._set(self.rate * (1 - options.rate_decrease * gradient))

    def stalled(self) -> None:
        """Nothing came back: half the rate."""
        self._set(self.rate * self._options.rate_decrease)

    def _set(self, rate: float) -> None:
        self.rate = min(max(rate, self._options.rate_least), self._options.rate_most)
