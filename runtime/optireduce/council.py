"""What the ranks decide together, reliably, between two steps: the bound, and the transform.

All ranks come to a council before the same steps, so nothing has to be agreed on over a network
that loses what is said. The first ends the warm-up; the others come every ``resync_steps`` steps.
"""

from __future__ import annotations

from runtime.optireduce.ledger import Ledger
from runtime.optireduce.options import Options
from runtime.optireduce.reliable import Reliable
from runtime.optireduce.ubt.bound import bound_s

UNKNOWN_S = -1.0


class Council:
    """The decisions so far.

    Attributes:
        bound_s: t_B; 0 before the end of the warm-up.
        hadamard: whether buckets are transformed from now on.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self.bound_s = options.bound_s if not options.warmup_steps else 0.0
        self.hadamard = options.hadamard == "on"

    def due(self, step: int) -> bool:
        """Whether a council comes before ``step``."""
        options = self._options
        if step == options.warmup_steps:
            return step > 0
        after = step - options.warmup_steps
        return after > 0 and bool(options.resync_steps) and after % options.resync_steps == 0

    def meet(self, step: int, reliable: Reliable, ledger: Ledger) -> None:
        """Decide. Collective; comes before ``step`` on all ranks.

        Raises:
            RankFailure: a rank is dead or silent.
        """
        options = self._options
        if step == options.warmup_steps:
            self._bound(reliable)
            return
        losses = [one for (one,) in reliable.gather([ledger.loss(options.resync_steps)])]
        if options.hadamard == "auto":
            self.hadamard = max(losses) >= options.hadamard_above

    def _bound(self, reliable: Reliable) -> None:
        """t_B from the stage times of the largest bucket, over all ranks."""
        times = reliable.stage_times.times_s
        # buckets of one size may come several times in a step; as many numbers on every rank
        own = times[max(times)] if times else []
        steps = self._options.warmup_steps
        counts = reliable.gather([float(len(own))])
        fewest = int(min(count for (count,) in counts))
        kept = own[len(own) - fewest :]
        # DDP's first, single bucket is the largest but comes once; the settled ones decide then
        if fewest <= self._options.settle_steps:
            kept = [t for size in sorted(times) for t in times[size]][-steps:]
            fewest = int(min(c for (c,) in reliable.gather([float(len(kept))])))
            kept = kept[len(kept) - fewest :]
        else:
            kept = kept[self._options.settle_steps :]
        self.bound_s = bound_s(reliable.gather(kept), self._options)
