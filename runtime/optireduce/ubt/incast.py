"""Dynamic incast: how many senders a receiver takes at once, and how many bytes of them.

Source: OptiReduce, section 3.2.3: each receiver announces a number, one more after clean stages,
less on loss or a time-out; a sender uses the smallest that it was told. Deviation: one more only
after several clean stages in a row, and half instead of one less, as in TCP, so that a number that
was too high is left at once. Ours, too: the bytes that may be underway to a receiver (its window,
shared by the senders it takes at once) move likewise, since a port's queue may hold a tenth of what
a socket's buffer does.
"""

from __future__ import annotations

from runtime.optireduce.options import Options
from runtime.optireduce.ubt.receiver import End, Stage


class Incast:
    """The numbers of one rank.

    Args:
        peers: how many other ranks there are; never more are announced.
    """

    def __init__(self, options: Options, peers: int) -> None:
        self._options, self._peers = options, max(1, peers)
        self.announced = min(options.incast, self._peers)
        self.window_bytes = options.window_bytes
        self._clean = 0
        self._told: dict[int, int] = {}

    @property
    def allowed(self) -> int:
        """To how many peers this rank may send at once."""
        return max(1, min([self._peers, *self._told.values()]))

    def told(self, rank: int, senders: int) -> None:
        """Another rank's announcement, from a header."""
        self._told[rank] = senders

    def ended(self, stage: Stage) -> None:
        """A stage is over: move the announcement."""
        if not stage.due:
            return
        options = self._options
        if stage.end is End.TIMEOUT or stage.loss > options.incast_down_loss:
            self.announced, self._clean = max(1, self.announced // 2), 0
            self.window_bytes = max(options.window_least_bytes, self.window_bytes // 2)
        elif stage.end is End.COMPLETE:
            self._clean += 1
            more = self.window_bytes + options.window_step_bytes
            self.window_bytes = min(options.window_most_bytes, more)
            if self._clean >= options.incast_up_after:
                self.announced, self._clean = min(self._peers, self.announced + 1), 0
