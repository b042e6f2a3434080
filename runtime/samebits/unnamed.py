"""Which tensor of the step before a tensor is, where nobody says: all-reduces through the backend.

A training step repeats itself: the same all-reduces, of tensors of the same sizes, in the same
order. So the sizes of all tensors since the start are a sequence with a period, and the tensor one
period before is the same one, a step earlier. The period follows from the longest border of the
sequence (Knuth, Morris and Pratt, "Fast pattern matching in strings", 1977). Where there is none
yet, the last tensor of the same size and dtype has to do. A wrong guess costs accuracy or another
sum, never the bits: all ranks see the same sequence, in every mode.
"""

from __future__ import annotations

import torch

from latecomer.runtime.samebits.summing import TensorExponents

MOST_KEPT = 65_536  # sizes that are remembered; then only those of the last two periods

Key = tuple[int, torch.dtype]


class UnnamedTensors:
    """The exponents of tensors that come without a name, in order."""

    def __init__(self, contributions: int) -> None:
        self._contributions = contributions
        self._keys: list[Key] = []  # of the sequence, which begins anew if nothing repeats it
        self._borders: list[int] = []  # of each beginning of it, the longest that is also its end
        self._seen: set[Key] = set()  # in the sequence
        self._exponents: dict[int, TensorExponents] = {}  # by place in it, the latest only
        self._last: dict[Key, TensorExponents] = {}

    def next(self, tensor: torch.Tensor) -> TensorExponents:
        """The exponents of the tensor that comes now: those that its predecessor will have left."""
        key = (tensor.numel(), tensor.dtype)
        border = self._border_with(key)
        if border == 0 and key in self._seen:
            self._begin_anew()  # what came before is not repeated: perhaps from here on
        elif len(self._keys) == MOST_KEPT:
            self._shorten()
            border = self._border_with(key)

        predecessor = self._exponents.get(border - 1, self._last.get(key))
        exponents = TensorExponents(*key, self._contributions, after=predecessor)
        self._exponents[len(self._keys)] = exponents
        self._exponents.pop(border - 1, None)  # the next one's predecessor comes after it
        self._append(key, border)
        self._last[key] = exponents
        return exponents

    def _border_with(self, key: Key) -> int:
        """The longest border of the sequence with ``key`` at its end."""
        if not self._keys:
            return 0
        border = self._borders[-1]
        while border > 0 and self._keys[border] != key:
            border = self._borders[border - 1]
        return border + 1 if self._keys[border] == key else 0

    def _append(self, key: Key, border: int) -> None:
        self._keys.append(key)
        self._borders.append(border)
        self._seen.add(key)

    def _begin_anew(self) -> None:
        self._keys.clear()
        self._borders.clear()
        self._seen.clear()
        self._exponents.clear()

    def _shorten(self) -> None:
        """Keep the last two periods, from which the next keys find their predecessors."""
        period = len(self._keys) - self._borders[-1]
        dropped = max(0, len(self._keys) - 2 * period)
        keys = self._keys[dropped:]
        exponents = {place - dropped: each for place, each in self._exponents.items()}
        self._begin_anew()
        for key in keys:
            self._append(key, self._border_with(key))
        self._exponents = {place: each for place, each in exponents.items() if place >= 0}
