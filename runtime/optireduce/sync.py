"""What the ranks decide together, reliably, between two steps: the bound, and the transform.

All ranks come to a council before the same steps, so nothing has to be agreed on over a network
that loses what is said. The first ends the warm-up; the others come every ``resync_steps`` steps.

Source of the bound: OptiReduce (arXiv 2310.06993), section 3.2.1, see ``ubt.bound``. Deviation:
every council sets it anew, by the latest operations on the largest bucket so far. A stage that
timed out counts with the bound that it had, so where more than the percentile allows time out the
bound grows by ``bound_factor``.
"""

from __future__ import annotations

from collections import deque

from runtime.optireduce.loss import LossStats
from runtime.optireduce.options import Options
from runtime.optireduce.reliable import Reliable
from runtime.optireduce.udp.bound import bound_s

LATEST = 256
"""Operations of a rank that count."""


class SyncPoint:
    """The decisions so far.

    Attributes:
        bound_s: t_B.
        hadamard: whether buckets are transformed from now on.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._largest = 0
        self._times_s: deque[float] = deque(maxlen=LATEST)
        self.bound_s = options.bound_s or options.warmup_bound_s
        self.hadamard = options.hadamard == "on"

    def due(self, step: int) -> bool:
        """Whether a council comes before ``step``."""
        options = self._options
        if step == options.warmup_steps:
            return step > 0
        after = step - options.warmup_steps
        return after > 0 and bool(options.resync_steps) and after % options.resync_steps == 0

    def took(self, size: int, stage_s: float) -> None:
        """An operation over UBT is over.

        Args:
            size: bytes of the bucket.
            stage_s: time of a stage: the first's, or half of both if that is more.
        """
        if size > self._largest:
            self._largest = size
            self._times_s.clear()
        if size == self._largest:
            self._times_s.append(stage_s)

    def meet(self, reliable: Reliable, ledger: LossStats) -> None:
        """Decide. Collective.

        Raises:
            RankFailure: a rank is dead or silent.
        """
        options, own = self._options, list(self._times_s)
        told = reliable.gather([float(len(own)), ledger.loss(options.resync_steps)])
        if options.hadamard == "auto":
            self.hadamard = max(loss for _, loss in told) >= options.hadamard_above
        fewest = int(min(count for count, _ in told))
        if fewest and not options.bound_s:
            self.bound_s = bound_s(reliable.gather(own[-fewest:]), options)
