"""The two times of UBT: the hard bound t_B, and t_C, when a stage is expected to be complete.

Source: OptiReduce, section 3.2.1 (t_B: the 95th percentile of the stage times of a warm-up over a
reliable transport, over all ranks) and 3.2.2 (t_C and the moving share x of it that is waited for
stragglers among the datagrams). Deviation: x doubles only where waiting longer would have helped,
that is where datagrams came after the end of their stage; what the network has lost does not come
however long one waits. Pure functions of what is told.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from runtime.optireduce.options import Options
from runtime.optireduce.ubt.receiver import End, Stage


def bound_s(times_s: Iterable[Sequence[float]], options: Options, least_s: float = 0.0) -> float:
    """t_B from the stage times of all ranks, at least ``least_s``; ``options.bound_s`` if set."""
    if options.bound_s:
        return options.bound_s
    times = sorted(time for rank in times_s for time in rank)
    assert times, "the warm-up leaves at least one step that is measured"
    at = min(len(times) - 1, int(len(times) * options.bound_percentile / 100))
    return max(options.bound_floor_s, least_s, options.bound_factor * times[at])


class Expectation:
    """t_C and x of one stage (first or second), on one rank.

    Args:
        most_s: t_B: t_C never exceeds it.
    """

    def __init__(self, options: Options, most_s: float) -> None:
        self._options, self.most_s = options, most_s
        self.own_s = most_s
        self.percent = options.grace_percent
        self._told_s: dict[int, float] = {}
        self._late = 0

    @property
    def expected_s(self) -> float:
        """t_C: the median over the ranks, of what they said last."""
        return statistics.median([self.own_s, *self._told_s.values()])

    @property
    def grace_s(self) -> float:
        """How long to wait on after the last marks: x % of t_C, but not less than the floor."""
        return max(self._options.grace_floor_s, self.expected_s * self.percent / 100)

    def told(self, rank: int, expected_s: float) -> None:
        """Another rank's t_C, from a header (0: it says nothing); held to t_B."""
        if expected_s > 0:
            self._told_s[rank] = min(expected_s, self.most_s)

    def late(self, count: int) -> None:
        """So many datagrams came when their stage was over."""
        self._late += count

    def ended(self, stage: Stage) -> None:
        """A stage is over: move t_C and x."""
        if not stage.due:
            return
        late, self._late = self._late / stage.due, 0
        received = 1 - stage.loss
        if stage.end is End.COMPLETE:
            sample_s = stage.elapsed_s
        elif stage.end is End.TIMEOUT or not received:
            sample_s = self.most_s
        else:
            sample_s = stage.elapsed_s / received
        options = self._options
        sample_s = min(sample_s, self.most_s)
        self.own_s += options.expected_weight * (sample_s - self.own_s)
        if late > options.grace_up_loss:
            self.percent = min(options.grace_most_percent, self.percent * 2)
        elif late < options.grace_down_loss:
            self.percent = max(1.0, self.percent - 1)
