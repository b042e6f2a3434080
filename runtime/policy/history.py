"""Who was late lately, and how long operations really took: what predictions are made from.

Lateness is counted from the arrival of the last rank that is not missing: what a rank, or the last
q ranks, kept the others waiting beyond what they needed for themselves.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

KEPT = 64  # operations that are remembered
LATELY = 12  # operations that waits are learned from: few, to forget soon who is late no longer
FORGET_EVERY = 16  # operations of one method after which the other's oldest one is forgotten
DOUBT = (1.0,) * 2  # counts as seen: one operation or two that took long say nothing yet
LEAST = {True: 0.5, False: 1.0}
MOST = 16.0
"""Limits of what one observation may say about the model's error: of native operations (True), and
of schedules. These seem faster than they are while several are in flight, since the waiting phases
of one run beside the completion of another, and take its bandwidth."""


class History:
    """Arrivals of the last operations on one clock; ``added`` is how many there ever were."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.added = 0
        self._arrivals = np.zeros((KEPT, world_size))  # a row per operation, round and round
        self._in_order = np.zeros((KEPT, world_size))  # each row sorted
        self._behind = np.zeros((KEPT, world_size))  # each row from its first arrival on

    def __len__(self) -> int:
        return min(self.added, KEPT)

    def add(self, at_s: NDArray[np.float64]) -> None:
        """An operation at which all ranks have arrived: when, by rank."""
        row = self.added % KEPT
        self._arrivals[row] = self._in_order[row] = at_s
        self._in_order[row].sort()
        self._behind[row] = at_s - self._in_order[row, 0]
        self.added += 1

    def last(self, recent: int) -> NDArray[np.float64]:
        """Of the last operations, oldest first, a row each: seconds after the first, by rank."""
        behind: NDArray[np.float64] = self._behind[self._last(recent)].copy()
        return behind

    def gaps(self, late: int, recent: int) -> list[float]:
        """Per operation: from the last but ``late`` arrival to the next one; 0 or more."""
        rows = self._last(recent)
        return list((self._in_order[rows, -late] - self._in_order[rows, -1 - late]).tolist())

    def lateness(self, ranks: Collection[int], recent: int, *, first: bool = False) -> list[float]:
        """Per operation: from the last arrival of all others to the last (first) of ``ranks``."""
        rows = self._last(recent)
        arrivals_of_ranks = self._arrivals[rows[:, None], list(ranks)].tolist()
        # One more than ``ranks``, so one at least is another rank's. Nothing else is looked at: in
        # a job of 1,024 ranks a row of all arrivals is long.
        last_arrivals = self._in_order[rows, -1 - len(ranks) :].tolist()
        lateness_s = []
        for theirs, last in zip(arrivals_of_ranks, last_arrivals, strict=True):
            for at_s in theirs:
                if at_s in last:
                    last.remove(at_s)
            last_of_others = last[-1]
            until = min(theirs) if first else max(theirs)
            lateness_s.append(until - last_of_others)
        return lateness_s

    def usual_order(self) -> list[int]:
        """All ranks, the one that is usually earliest first; equal ones by number."""
        typical: NDArray[np.float64] = self._behind[: max(1, len(self))].mean(axis=0)
        return list(np.argsort(typical, kind="stable").tolist())

    def _last(self, recent: int) -> NDArray[np.intp]:
        """The rows of the last operations, oldest first."""
        return np.arange(self.added - min(recent, len(self)), self.added) % KEPT


class ModelCorrection:
    """How much longer operations took than predicted, by class of sizes; how late messages come.

    A small operation on busy processors may take ten times what links need for it, while a large
    one takes what is predicted: so each class has a factor of its own.
    """

    def __init__(self) -> None:
        self._delays: deque[float] = deque(maxlen=KEPT // 4)
        self._ratios: dict[int, _Ratios] = {}  # by class

    def add_delay(self, delay_s: float) -> None:
        """A message from another rank was so long on its way (NaN: not known)."""
        if not math.isnan(delay_s):
            self._delays.append(max(0.0, delay_s))

    @property
    def latency_s(self) -> float:
        """What a decision takes: there and back, the median of what was seen; 0 at first."""
        return 2 * statistics.median(self._delays or (0.0,))

    def add(self, of_class: int, native: bool, predicted_s: float, taken_s: float) -> None:
        """One operation: predicted and taken from the last arrival on."""
        if predicted_s > 0:
            ratio = min(MOST, max(LEAST[native], taken_s / predicted_s))
            self._ratios.setdefault(of_class, _Ratios()).add(native, ratio)

    def factor(self, of_class: int, native: bool) -> float:
        """What to multiply a prediction with: the median of what was seen, 1 at first."""
        ratios = self._ratios.get(of_class)
        return 1.0 if ratios is None else ratios.median(native)


class _Ratios:
    """Of one class, what its last operations took over what was predicted: a row per method.

    While only one method runs, what the other showed is forgotten: a bad hour does not rule it out.
    """

    def __init__(self) -> None:
        self._of: dict[bool, deque[float]] = {  # native ones under True
            False: deque(maxlen=KEPT // 4),
            True: deque(maxlen=KEPT // 4),
        }
        self._count = 0

    def add(self, native: bool, ratio: float) -> None:
        """One operation."""
        self._of[native].append(ratio)
        self._count += 1
        if self._count % FORGET_EVERY == 0 and self._of[not native]:
            self._of[not native].popleft()

    def median(self, native: bool) -> float:
        """Of what was seen; two that took long say nothing yet."""
        return statistics.median((*self._of[native], *DOUBT))
