"""What the ranks decide together, reliably, between two steps: the bound, and the transform.

All ranks come to a council before the same steps, so nothing has to be agreed on over a network
that loses what is said. The first ends the warm-up; the others come every ``resync_steps`` steps.
"""

from __future__ import annotations

from runtime.optireduce.ledger import Ledger
from runtime.optireduce.options import Options
from runtime.optireduce.reliable import Reliable
from runtime.optireduce.ubt.bound import bound_s

LEAST_RATE = 10e6
"""Bytes per second that a rank moves by UBT at least, on processors that ranks share."""


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
        """t_B from the stage times of the largest bucket that came regularly, over all ranks.

        DDP's first step has one bucket with everything, which never comes again. Where TCP is
        limited by nothing but the processor it is several times faster than UBT, which therefore
        has at least the time to move the bucket at ``LEAST_RATE``.
        """
        times, settling = reliable.stage_times.times_s, self._options.settle_steps
        regular = [size for size in times if len(times[size]) > settling]
        own = times[max(regular)][settling:] if regular else [t for s in times for t in times[s]]
        told = reliable.gather([float(len(own)), float(max(regular, default=0))])
        fewest, largest = int(min(count for count, _ in told)), max(size for _, size in told)
        known = reliable.gather(own[len(own) - fewest :]) if fewest else [[0.0]]
        moved = largest * (len(told) - 1) / len(told)
        self.bound_s = bound_s(known, self._options, moved / LEAST_RATE)
