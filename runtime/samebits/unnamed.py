"""Which tensor of the step before a tensor is, where nobody says: all-reduces through the backend.

A training step repeats itself: the same all-reduces, of tensors of the same sizes, in the same
order. So the sizes of all tensors have a period, and the tensor one period before is the same one,
a step earlier. A period is taken to be one when it has come twice in a row, and as long as it goes
on; of several the one that has gone on for longest, since a step may repeat itself within, too.
Where there is none, the last tensor of the same size and dtype has to do. A wrong guess costs
accuracy or another sum, never the bits: all ranks see the same sequence, in every mode.
"""

from __future__ import annotations

from collections import deque

import torch

from latecomer.runtime.samebits.contributions import TensorExponents

LONGEST_PERIOD = 4096  # tensors in a step; more are known by their sizes only

IN_DOUBT = 64  # tensors after which a period is trusted, and exponents before it are let go

Key = tuple[int, torch.dtype]


class UnnamedTensors:
    """The exponents of tensors that come without a name, in order."""

    def __init__(self, contributions: int) -> None:
        self._contributions = contributions
        self._keys: list[Key] = []  # the latest
        self._exponents: deque[TensorExponents] = deque(maxlen=LONGEST_PERIOD)  # theirs
        self._period = 0  # none
        self._has_lasted = 0  # for so many tensors
        self._last: dict[Key, TensorExponents] = {}

    def next(self, tensor: torch.Tensor) -> TensorExponents:
        """The exponents of the tensor that comes now: those that its predecessor will have left."""
        key = (tensor.numel(), tensor.dtype)
        self._keys.append(key)
        self._has_lasted += 1
        if self._period == 0 or self._keys[-1 - self._period] != key:
            self._period = self._best_period()
            self._has_lasted = 0
        if len(self._keys) > 4 * LONGEST_PERIOD:
            del self._keys[: -2 * LONGEST_PERIOD]

        predecessor = self._last.get(key)
        if 0 < self._period <= len(self._exponents):
            predecessor = self._exponents[-self._period]
        exponents = TensorExponents(*key, self._contributions, after=predecessor)
        self._exponents.append(exponents)
        if self._has_lasted > IN_DOUBT:
            while len(self._exponents) > self._period:
                self._exponents.popleft()
        self._last[key] = exponents
        return exponents

    def _best_period(self) -> int:
        """That of what repeats itself for longest at the end of the sequence; 0 if nothing does."""
        best = 0
        longest_run = 0
        for period in range(1, min(LONGEST_PERIOD, len(self._keys) // 2) + 1):
            run = self._run_of(period)
            if run >= period and run > longest_run:
                best = period
                longest_run = run
        return best

    def _run_of(self, period: int) -> int:
        """How many tensors at the end of the sequence are like those one period before."""
        keys = self._keys
        run = 0
        while run < len(keys) - period and keys[-1 - run] == keys[-1 - run - period]:
            run += 1
        return run
