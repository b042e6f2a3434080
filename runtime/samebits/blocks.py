"""Blocks of elements that share an exponent: what their words say, and which exponent comes next.

A tensor is cut into blocks of 1,024 elements; blocks begin anew with each tensor. A block has an
exponent e that all ranks know, and x counts as ``rint(x * 2**e)``. Beside the integers travels one
*word* for each block, ``ceil(max |x| * 2**e / 2**unit)``. Two rules follow from the sums of the
words over all contributions, which all ranks hold alike:

- While a sum is at most ``limit``, nothing can overflow, in whatever order it was summed up
  (``SameSums.words_bound``).
- The next exponents: down at once where a block grew, up by :data:`RISE` a sum where it shrank.

A tensor of which a block does not fit, or which has become so small that too few bits are left, is
summed again with 64 bits, by exponents that follow from the greatest magnitudes of all ranks.
Whether that happens, and all exponents, depend on the tensor's own contributions alone: not on the
bucket in which it travels, nor on who brings which contribution.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

SHRINKING = 6  # bits by which a tensor may shrink until it is summed again
RISE = 1  # by how much an exponent grows at most, from one sum to the next
WIDE_BITS = 62  # of the integers of a sum that is done again
MOST_CONTRIBUTIONS = 2047  # from there on too few bits are left
MOST_IN_HALVES = 15  # contributions in halves of 16 bits: from there on too few bits are left

Exponents = npt.NDArray[np.int32]
Words = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Scales = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Precision:
    """How numbers of one format are summed as integers, for a number of contributions."""

    contributions: int
    bits: int  # of the integers that travel; those of 16 bits travel in pairs
    normal: int  # the format's smallest normal number is 2**normal
    first: int  # the exponents of the first sum; most likely it is done again with better ones
    block: int = 1024  # elements
    headroom: int = 4  # bits by which a block may grow from one sum to the next
    spread: int = 6  # by which an exponent may exceed that of its tensor's coarsest block

    @property
    def unit(self) -> int:
        """A word counts in units of ``2**unit``, which is more than there are contributions."""
        return self.contributions.bit_length()

    @property
    def limit(self) -> int:
        """While a sum of words is no larger, nothing overflows."""
        return (1 << (self.bits - 1 - self.unit)) - 1

    @property
    def refused(self) -> int:
        """The word of a block that does not fit (or holds inf or nan) and counts as zeros."""
        return self.limit + 1

    @property
    def full(self) -> int:
        """The bits of a sum of words, as exponents are chosen: ``headroom`` fewer than fit."""
        return self.bits - 1 - self.unit - self.headroom

    @property
    def least(self) -> int:
        """A tensor whose largest sum of words is smaller has become too small.

        Each contribution that is not zero counts as 1 at least: hence the second bound.
        """
        bits = max(self.full - SHRINKING, self.unit + 2)
        return 1 << bits

    @property
    def highest(self) -> int:
        """Exponents are no higher: what is smaller than a normal number counts as 0.

        So a result is a normal number or 0, even divided by the number of contributions, and it
        makes no difference whether the processor flushes others to 0.
        """
        return -self.normal - 1 - self.unit


def float32(contributions: int) -> Precision:
    """For float32, and for float16, which it holds."""
    return Precision(contributions, bits=32, normal=-126, first=40)


def bfloat16(contributions: int) -> Precision:
    """For bfloat16: as many bytes as its numbers have, if the contributions are few.

    Smaller blocks make up for the bits that are lacking.
    """
    if contributions > MOST_IN_HALVES:
        return float32(contributions)
    return Precision(contributions, bits=16, normal=-126, first=24, block=64, headroom=2, spread=3)


def float64(contributions: int) -> Precision:
    """For float64."""
    return Precision(contributions, bits=64, normal=-1022, first=70)


@dataclass(frozen=True)
class Layout:
    """Where the blocks of some tensors lie that are one after the other in a flat buffer."""

    sizes: tuple[int, ...]  # elements of each tensor; 1 or more
    block: int  # elements of a block
    starts: npt.NDArray[np.int64] = field(init=False, compare=False, repr=False)
    """The first element of each block; at the end the number of all elements."""

    def __post_init__(self) -> None:
        assert all(size > 0 for size in self.sizes), self.sizes
        ends = np.cumsum([0, *self.sizes])
        starts = [np.arange(begin, end, self.block) for begin, end in itertools.pairwise(ends)]
        object.__setattr__(self, "starts", np.concatenate([*starts, ends[-1:]]).astype(np.int64))

    @cached_property
    def elements(self) -> int:
        """Of all tensors."""
        return sum(self.sizes)

    @cached_property
    def blocks(self) -> int:
        """Of all tensors."""
        return len(self.starts) - 1

    @cached_property
    def blocks_of(self) -> npt.NDArray[np.int64]:
        """The number of blocks of each tensor."""
        return np.array([-(-size // self.block) for size in self.sizes])

    @cached_property
    def first_blocks(self) -> npt.NDArray[np.int64]:
        """The first block of each tensor."""
        return np.cumsum([0, *self.blocks_of[:-1]])

    def of_tensor(self, tensor: int) -> tuple[slice, slice]:
        """The elements and the blocks of one tensor."""
        first_block = int(self.first_blocks[tensor])
        first = int(self.starts[first_block])
        elements = slice(first, first + self.sizes[tensor])
        return elements, slice(first_block, first_block + int(self.blocks_of[tensor]))

    def maxima(self, of_blocks: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """For each block, the greatest value of the blocks of its tensor."""
        greatest = np.maximum.reduceat(of_blocks, self.first_blocks)
        return np.repeat(greatest, self.blocks_of)

    def of_tensors(self, of_blocks: Flags) -> Flags:
        """For each tensor, whether any of its blocks is marked."""
        return np.logical_or.reduceat(of_blocks, self.first_blocks)


def misfits(words: Words, exponents: Exponents, layout: Layout, precision: Precision) -> Flags:
    """For each tensor, whether it has to be summed again: it does not fit, or is too small."""
    greatest = layout.maxima(words)
    is_too_small = (greatest > 0) & (greatest < precision.least)
    can_be_finer = (words > 0) & (exponents < precision.highest)
    return layout.of_tensors((words > precision.limit) | (is_too_small & can_be_finer))


def next_exponents(
    words: Words, exponents: Exponents, layout: Layout, precision: Precision
) -> Exponents:
    """The exponents for the next sums of these tensors, all of which fit."""
    _, length = np.frexp(words.astype(np.float64))
    finer = np.minimum(precision.full - length, RISE)
    return _spread(exponents + finer, exponents, words > 0, layout, precision)


def wide_exponents(magnitudes: Words, precision: Precision) -> Exponents:
    """The exponents with which tensors are summed again, in 64 bits.

    ``magnitudes``: for each block the e for which the greatest |x| of all contributions lies in
    [2**(e-1), 2**e). So no contribution exceeds ``2**(62 - unit)``, and no sum ``2**62``.
    """
    finest = WIDE_BITS - precision.unit - magnitudes
    return np.minimum(finest, precision.highest).astype(np.int32)


def exponents_of(
    magnitudes: Words,
    is_finite: Flags,
    before: Exponents,
    layout: Layout,
    precision: Precision,
) -> Exponents:
    """The next exponents of tensors that were summed again; see :func:`wide_exponents`.

    Where all was zero, inf or nan, there is nothing to learn from.
    """
    return _spread(precision.full - magnitudes, before, is_finite, layout, precision)


def _spread(
    wanted: npt.NDArray[np.int64],
    before: Exponents,
    is_known: Flags,
    layout: Layout,
    precision: Precision,
) -> Exponents:
    """``wanted`` within its bounds; blocks of which nothing is known are like the coarsest.

    A block that is rarely large overflows rarely, if it is no finer than its tensor's coarsest
    block by more than ``spread``.
    """
    unknown = np.iinfo(np.int32).max
    known = np.where(is_known, np.minimum(wanted, precision.highest), unknown)
    coarsest = np.repeat(np.minimum.reduceat(known, layout.first_blocks), layout.blocks_of)
    exponents = np.where(is_known, np.minimum(known, coarsest + precision.spread), coarsest)
    return np.where(coarsest == unknown, before, exponents).astype(np.int32)
