"""Dynamic incast: how many senders a receiver takes at once, and how many bytes of them.

Source: OptiReduce, section 3.2.3: each receiver announces a number, one more after clean stages,
less on loss or a time-out; a sender uses the smallest that it was told. Deviations: it begins with
all, since senders that take turns leave ports idle; one more only after several clean stages in a
row, and half instead of one less, as in TCP. Ours, too: the bytes that may be underway to a
receiver (its window, shared by the senders it takes at once) move likewise and first, since a
smaller window costs little and fewer senders cost much; so senders become fewer only where the
window is what it began with. Losses are looked at in periods, as one stage's luck is no sign. And a
half that does not help is taken back: where the next period's mean loss is not half of what it was,
it is not its cause, and losses of that size are excused from then on.
"""

from __future__ import annotations

from runtime.optireduce.options import Options
from runtime.optireduce.udp.reassembly import End, StageReceiver

PERIOD = 8
"""Stages whose mean loss counts."""
EXCUSED_FACTOR = 2.0
"""A loss up to so many times the excused one is excused."""
EXCUSED_DECAY = 0.9
"""Per period."""


class Incast:
    """The numbers of one rank.

    Args:
        peers: how many other ranks there are; never more are announced.

    Attributes:
        excused: the share lost that has not to do with incast.
    """

    def __init__(self, options: Options, peers: int) -> None:
        self._options, self._peers = options, max(1, peers)
        self.announced = min(options.incast, self._peers)
        self.window_bytes = options.window_bytes
        self.excused = 0.0
        self._clean = 0
        self._told: dict[int, int] = {}
        self._losses: list[float] = []
        self._before: tuple[int, int, float] | None = None

    @property
    def allowed(self) -> int:
        """To how many peers this rank may send at once."""
        return max(1, min([self._peers, *self._told.values()]))

    def told(self, rank: int, senders: int) -> None:
        """Another rank's announcement, from a header."""
        self._told[rank] = senders

    def ended(self, stage: StageReceiver) -> None:
        """A stage is over: move the announcement."""
        if not stage.due:
            return
        self._losses.append(stage.loss)
        if stage.end is End.TIMEOUT:
            self._halve()
            self._before, self._clean, self._losses = None, 0, []
            return
        if self._before is None:
            self._rise(stage.loss)
        if len(self._losses) == PERIOD:
            self._judge(sum(self._losses) / PERIOD)
            self._losses = []

    @property
    def _limit(self) -> float:
        return max(self._options.incast_down_loss, EXCUSED_FACTOR * self.excused)

    def _rise(self, loss: float) -> None:
        options = self._options
        if loss > self._limit:
            self._clean = 0
            return
        self._clean += 1
        more = self.window_bytes + options.window_step_bytes
        self.window_bytes = min(options.window_most_bytes, more)
        if self._clean >= options.incast_up_after:
            self.announced, self._clean = min(self._peers, self.announced + 1), 0

    def _halve(self) -> None:
        least = self._options.window_bytes
        if self.window_bytes > least:
            self.window_bytes = max(least, self.window_bytes // 2)
        else:
            self.announced = max(1, self.announced // 2)

    def _judge(self, mean: float) -> None:
        """A period is over: halve, or see whether that has helped."""
        limit, self.excused = self._limit, self.excused * EXCUSED_DECAY
        if self._before is not None:
            announced, window_bytes, before = self._before
            self._before = None
            if mean > before / 2:
                self.announced, self.window_bytes = announced, window_bytes
                self.excused = max(self.excused, before, mean)
        elif mean > limit:
            self._before = self.announced, self.window_bytes, mean
            self._halve()
