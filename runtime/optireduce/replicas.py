"""Replicas may drift apart: measured, and bounded by averaging the parameters now and then.

A piece that is lost in the second stage is lost at one rank: it applies another gradient there than
the others do. The distance grows with every such step until the ranks' parameters (and, where it
is known, the optimizer's state) are averaged over the reliable sibling, after which all ranks hold
the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from runtime.optireduce.reliable import Reliable


class Replicas:
    """What all ranks should hold alike.

    Args:
        parameters: of the model, on the CPU.
        optimizer: its state is averaged, too.

    Attributes:
        drift: at the last re-synchronization, before it: the largest, over the ranks, of
            |x - mean| / |mean| (Euclidean norms over all parameters).
        resyncs: how many there were.
    """

    def __init__(
        self,
        parameters: Sequence[torch.nn.Parameter],
        reliable: Reliable,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        self._parameters, self._reliable, self._optimizer = parameters, reliable, optimizer
        self.drift = 0.0
        self.resyncs = 0

    def resync(self) -> float:
        """Measure the drift, then average. Collective, between two steps.

        Raises:
            RankFailure: a rank is dead or silent.
        """
        tensors = [p.detach() for p in self._parameters if p.requires_grad]
        distance, norm = self._average(tensors)
        state = self._state()
        sizes = [float(len(state)), float(sum(t.numel() for t in state))]
        if all(told == sizes for told in self._reliable.gather(sizes)):
            self._average(state)  # not where a rank has no state yet: it skipped its first updates
        drifts = self._reliable.gather([distance / norm if norm else 0.0])
        self.drift = max(drift for (drift,) in drifts)
        self.resyncs += 1
        return self.drift

    def _average(self, tensors: Sequence[torch.Tensor]) -> tuple[float, float]:
        """(distance from the mean before, norm of the mean)"""
        if not tensors:
            return 0.0, 0.0
        own = torch.cat([t.reshape(-1).to(torch.float32) for t in tensors])
        mean = self._reliable.average(own.clone())
        start = 0
        for tensor in tensors:
            part = mean[start : start + tensor.numel()]
            tensor.copy_(part.view_as(tensor))
            start += tensor.numel()
        return float((own - mean).norm()), float(mean.norm())

    def _state(self) -> list[torch.Tensor]:
        if self._optimizer is None:
            return []
        return [
            value
            for group in self._optimizer.param_groups
            for parameter in group["params"]
            for _, value in sorted(self._optimizer.state.get(parameter, {}).items())
            if isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel() > 1
        ]
