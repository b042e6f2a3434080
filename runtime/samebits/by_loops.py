"""The conversions on the CPU by the compiled loops; the same functions as ``by_torch`` has.

Importing this module compiles nothing; the first call does, for its dtypes.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch

from latecomer.runtime.samebits import loops
from latecomer.runtime.samebits.blocks import Layout, Scales

PATTERNS: dict[int, Any] = {4: np.int32, 8: np.int64}  # by bytes of a float
FLOATS: dict[int, Any] = {4: np.float32, 8: np.float64}


def to_integers(
    floats: torch.Tensor,
    layout: Layout,
    scales: Scales,
    word_scales: Scales,
    refused: int,
    *,
    adds: bool,
    integers: torch.Tensor,
    words: torch.Tensor,
) -> None:
    """Each x as ``rint(x * scale)``, and the words, put down or added to what is there."""
    numbers = floats.numpy()
    itemsize = numbers.itemsize
    scratch = np.zeros(1, PATTERNS[itemsize])
    loops.to_integers(
        numbers,
        numbers.view(PATTERNS[itemsize]),
        layout.starts,
        scales,
        word_scales,
        _special_patterns(itemsize),
        refused,
        adds,
        integers.numpy(),
        words.numpy(),
        (scratch, scratch.view(FLOATS[itemsize])),
    )


def to_magnitudes(
    floats: torch.Tensor, layout: Layout, *, adds: bool, greatest: torch.Tensor
) -> None:
    """The bit pattern of the greatest |x| of each block, or of it and what is there."""
    numbers = floats.numpy()
    patterns = numbers.view(PATTERNS[numbers.itemsize])
    special = _special_patterns(numbers.itemsize)
    loops.to_magnitudes(patterns, layout.starts, special, adds, greatest.numpy())


def to_wide_integers(
    floats: torch.Tensor, layout: Layout, scales: Scales, *, adds: bool, integers: torch.Tensor
) -> None:
    """Each x as ``rint(x * scale)`` in 64 bits; nothing of a block whose scale is 0."""
    loops.to_wide_integers(floats.numpy(), layout.starts, scales, adds, integers.numpy())


def to_floats(
    integers: torch.Tensor, layout: Layout, factors: Scales, floats: torch.Tensor
) -> None:
    """Each sum times the factor of its block, in float64, and rounded once to the format."""
    loops.to_floats(integers.numpy(), layout.starts, factors, floats.numpy())


@functools.cache
def _special_patterns(itemsize: int) -> tuple[Any, Any, Any]:
    """Bit patterns: all bits but the sign, inf, the smallest normal number."""
    pattern = PATTERNS[itemsize]
    number = FLOATS[itemsize]
    sign_off = pattern(np.iinfo(pattern).max)
    infinity = number(np.inf).view(pattern)
    smallest = np.finfo(number).tiny.view(pattern)
    return sign_off, infinity, smallest
