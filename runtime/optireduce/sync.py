"""What must not be lost goes over TCP: the first steps, decisions, and making replicas equal.

All ranks come to a sync point before the same steps, so nothing has to be agreed on before it. The
first ends the warm-up; the others come every ``resync_steps`` steps.

Source of the bound: OptiReduce (arXiv 2310.06993), section 3.2.1. Deviations: the stage times are
those of UBT itself; and every sync point sets the bound anew, by the latest operations on the
largest bucket so far. A stage that timed out counts with the bound that it had, so where more than
the percentile allows time out the bound grows by ``bound_factor``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch

from latecomer.runtime.executor.executor import Executor
from latecomer.runtime.optireduce.loss import LossStats
from latecomer.runtime.optireduce.options import Options
from latecomer.runtime.optireduce.udp.adaptive import hard_bound_s
from latecomer.runtime.work import CollectiveWork
from latecomer.verify.errors import LatecomerError

LATEST = 256  # operations of a rank that count


class Reliable(Executor):
    """TAR over TCP on a group of ranks; see :class:`Executor`, also for what it raises."""

    def average(self, tensor: torch.Tensor) -> torch.Tensor:
        """The average over the ranks, in place, the same bits everywhere. Collective."""
        return self._wait(self.submit(tensor, average=True))

    def gather(self, values: list[float]) -> list[list[float]]:
        """What each rank has given: as many numbers on every rank. Collective."""
        table = torch.zeros(self.size, len(values), dtype=torch.float64)
        table[self.rank] = torch.tensor(values, dtype=torch.float64)
        rows: list[list[float]] = self._wait(self.submit(table)).tolist()
        return rows

    def _wait(self, work: CollectiveWork) -> torch.Tensor:
        """Its result; LatecomerError if there is none in time, whatever holds up the executor.

        That gives up within its own time; the margin is for a loaded machine. A rank that was
        stopped for longer finds its wait over before it has heard that the others gave up.
        """
        try:
            return work.wait(timedelta(seconds=2 * self.timeout_s + 10))
        except TimeoutError as error:
            raise self.find_silent(str(error)) or LatecomerError(str(error)) from None


class SyncPoint:
    """The decisions so far: ``bound_s``, t_B, and whether buckets go through ``hadamard``."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._largest = 0
        self._times_s: deque[float] = deque(maxlen=LATEST)
        self.bound_s = options.bound_s or options.warmup_bound_s
        self.hadamard = options.hadamard == "on"

    def is_due(self, step: int) -> bool:
        """Whether the ranks meet before ``step``."""
        after = step - self._options.warmup_steps
        if after == 0:
            return step > 0
        every = self._options.resync_steps
        return after > 0 and every > 0 and after % every == 0

    def took(self, nbytes: int, stage_s: float) -> None:
        """A bucket of so many bytes is over; a stage took the first's time, or half of both."""
        if nbytes > self._largest:
            self._largest = nbytes  # times of smaller buckets say nothing of it
            self._times_s.clear()
        if nbytes == self._largest:
            self._times_s.append(stage_s)

    def decide(self, reliable: Reliable, losses: LossStats) -> None:
        """Set the bound and the transform anew. Collective; RankFailure for dead ranks."""
        options = self._options
        own_times_s = list(self._times_s)
        gathered = reliable.gather([float(len(own_times_s)), losses.loss(options.resync_steps)])
        if options.hadamard == "auto":
            self.hadamard = max(loss for _, loss in gathered) >= options.hadamard_above
        fewest = int(min(count for count, _ in gathered))  # all have to bring as many
        if fewest and not options.bound_s:
            self.bound_s = hard_bound_s(reliable.gather(own_times_s[-fewest:]), options)


@dataclass(eq=False)
class Replicas:
    """What all ranks should hold alike: parameters on the CPU, the state of an optimizer.

    A piece that is lost in the second stage is lost at one rank: it applies another gradient there
    than the others do. So replicas drift apart until they are averaged. ``drift`` before the last
    of the ``resyncs``: the largest of all ranks' |x - mean| / |mean| (Euclidean, all parameters).
    """

    parameters: Sequence[torch.nn.Parameter]
    reliable: Reliable
    optimizer: torch.optim.Optimizer | None = None
    drift: float = 0.0
    resyncs: int = 0

    def resync(self) -> float:
        """Measure the drift, then average. Collective, between two steps; may raise RankFailure."""
        distance, norm = self._average([p.detach() for p in self.parameters if p.requires_grad])
        state = self._state()
        sizes = [float(len(state)), float(sum(t.numel() for t in state))]
        if all(theirs == sizes for theirs in self.reliable.gather(sizes)):
            self._average(state)  # not where a rank has no state yet: it skipped its first updates
        drifts = self.reliable.gather([distance / norm if norm else 0.0])
        self.drift = max(drift for (drift,) in drifts)
        self.resyncs += 1
        return self.drift

    def _average(self, tensors: Sequence[torch.Tensor]) -> tuple[float, float]:
        """(distance from the mean before, norm of the mean)"""
        if not tensors:
            return 0.0, 0.0
        own = torch.cat([t.reshape(-1).to(torch.float32) for t in tensors])
        mean = self.reliable.average(own.clone())
        parts = torch.split(mean, [tensor.numel() for tensor in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view_as(tensor))
        return float((own - mean).norm()), float(mean.norm())

    def _state(self) -> list[torch.Tensor]:
        if self.optimizer is None:
            return []
        # Without what is one element, such as Adam's count of steps: it is no average of anything.
        return [
            value
            for group in self.optimizer.param_groups
            for parameter in group["params"]
            for _, value in sorted(self.optimizer.state.get(parameter, {}).items())
            if isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel() > 1
        ]
