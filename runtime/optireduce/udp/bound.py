"""The two times of UBT: the hard bound t_B, and t_C, when a stage is expected to be complete.

Source: OptiReduce, section 3.2.1 (t_B: the 95th percentile of the stage times of a warm-up over a
reliable transport, over all ranks) and 3.2.2 (t_C and the moving share x of it that is waited for
stragglers among the datagrams). Deviations: the stage times are those of UBT itself, which depend
on other things than a reliable transport's; before the first stage t_C is the time of that stage so
far; and x doubles only where waiting longer would have helped, that is where datagrams came after
the end of their stage and within the longest wait that x allows. What the network has lost, or
holds back for longer, does not come however long one waits. Pure functions of what is told.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

from runtime.optireduce.options import Options
from runtime.optireduce.udp.reassembly import End, StageReceiver

LEAST_S = 1e-6
"""Of t_C: the unit in which it travels, where 0 means that it is not known."""


def bound_s(times_s: Iterable[Sequence[float]], options: Options) -> float:
    """t_B from the stage times of all ranks, of which there is one at least."""
    times = sorted(time for rank in times_s for time in rank)
    at = min(len(times) - 1, int(len(times) * options.bound_percentile / 100))
    return max(options.bound_floor_s, options.bound_factor * times[at])


class CompletionEstimator:
    """t_C and x of one stage (first or second), on one rank.

    Args:
        most_s: t_B: t_C never exceeds it.

    Attributes:
        own_s: this rank's t_C; 0 before its first stage is over.
        expected_s: t_C: the median over the ranks, of what they said last; 0: nobody has yet.
        percent: x.
    """

    def __init__(self, options: Options, most_s: float) -> None:
        self._options, self.most_s = options, most_s
        self.own_s = self.expected_s = 0.0
        self.percent = options.grace_percent
        self._told_s: dict[int, float] = {}
        self._reach_s: dict[int, float] = {}
        self._late = 0

    def grace_s(self, elapsed_s: float) -> float:
        """How long to wait on after the last marks: x % of t_C, but not less than the floor.

        Args:
            elapsed_s: stands in for a t_C that is not known yet.
        """
        expected_s = self.expected_s or elapsed_s
        return max(self._options.grace_floor_s, expected_s * self.percent / 100)

    def told(self, rank: int, expected_s: float) -> None:
        """Another rank's t_C, from a header (0: it says nothing); held to t_B."""
        if expected_s > 0 and self._told_s.get(rank) != expected_s:
            self._told_s[rank] = expected_s
            self._moved()

    def late(self, operation: int, count: int, now_s: float) -> None:
        """So many datagrams came when their stage was over."""
        if now_s <= self._reach_s.get(operation, -math.inf):
            self._late += count

    def ended(self, stage: StageReceiver, operation: int, now_s: float) -> None:
        """A stage is over: move t_C and x."""
        if not stage.due:
            return
        late, self._late = self._late / stage.due, 0
        self._reach_s = {o: until_s for o, until_s in self._reach_s.items() if until_s >= now_s}
        most_s = self.expected_s * self._options.grace_most_percent / 100
        self._reach_s[operation] = stage.quiet_s + most_s
        received = 1 - stage.loss
        if stage.end is End.COMPLETE:
            sample_s = stage.elapsed_s
        elif stage.end is End.TIMEOUT or not received:
            sample_s = self.most_s
        else:
            sample_s = stage.elapsed_s / received
        options = self._options
        sample_s = max(LEAST_S, min(sample_s, self.most_s))
        weight = options.expected_weight if self.own_s else 1.0
        self.own_s += weight * (sample_s - self.own_s)
        self._moved()
        if late > options.grace_up_loss:
            self.percent = min(options.grace_most_percent, self.percent * 2)
        elif late < options.grace_down_loss:
            self.percent = max(1.0, self.percent - 1)

    def _moved(self) -> None:
        known = [time for time in (self.own_s, *self._told_s.values()) if time]
        self.expected_s = min(self.most_s, statistics.median(known))
