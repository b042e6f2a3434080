"""What of a sum travels between ranks: the integers of some tensors, their words, and a count.

Its memory is used again. The kernel hands out fresh memory page by page, and clears it: to write
integers there takes four times as long as to write them where others were before.
"""

from __future__ import annotations

import functools

import numpy as np
import torch

from latecomer.runtime.samebits.blocks import Exponents, Layout, Precision, Words
from latecomer.runtime.samebits.conversion import INTEGERS, holding, to_integers

HALF = 16  # bits


@functools.lru_cache(maxsize=4096)
def layout_of(sizes: tuple[int, ...], block: int) -> Layout:
    """The layout of tensors of these sizes, made once."""
    return Layout(sizes, block)


class Travelling:
    """One flat tensor, ``flat``: the elements' integers, a word for each block, the count.

    The count is that of all contributions that were summed up, so that one that is missing, or was
    merged with another before, is noticed on all ranks alike.

    Integers of 16 bits travel in pairs: ``low + high * 2**16`` in one of 32 bits. Sums of pairs are
    pairs of sums, and can be told apart again, as long as both fit. Each tensor begins with a pair
    of its own: what does not fit harms no other tensor.
    """

    def __init__(
        self, layout: Layout, precision: Precision, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.layout = layout
        self.dtype = dtype
        self._precision = precision
        self._in_pairs = precision.bits == HALF
        lengths = [-(-size // 2) for size in layout.sizes] if self._in_pairs else layout.sizes
        self._ends = np.cumsum([0, *lengths]).tolist()
        travelling = self._ends[-1]
        integer = INTEGERS[holding(dtype)]
        self.flat = torch.empty(travelling + layout.blocks + 1, dtype=integer, device=device)
        self._integers, self._words, self._count = torch.split(
            self.flat, [travelling, layout.blocks, 1]
        )

    def put(self, contribution: torch.Tensor, exponents: Exponents, count: int) -> None:
        """Put down this rank's first contribution to all tensors; it makes ``count`` of them."""
        self._count.fill_(count)
        if not self._in_pairs:
            self._convert(
                contribution, self.layout, exponents, self._integers, self._words, adds=False
            )
            return
        integers = self._empty(self.layout)
        self._convert(contribution, self.layout, exponents, integers, self._words, adds=False)
        for tensor in range(len(self.layout.sizes)):
            elements, _ = self.layout.of_tensor(tensor)
            self._of_tensor(tensor).copy_(_paired(integers[elements]))

    def add(self, contribution: torch.Tensor, tensor: int, exponents: Exponents) -> None:
        """Add one more contribution to one of the tensors."""
        _, of_blocks = self.layout.of_tensor(tensor)
        layout = layout_of((self.layout.sizes[tensor],), self.layout.block)
        there = self._of_tensor(tensor)
        integers = self._empty(layout).zero_() if self._in_pairs else there
        words = self._words[of_blocks]
        self._convert(contribution, layout, exponents[of_blocks], integers, words, adds=True)
        if self._in_pairs:
            there.add_(_paired(integers))

    def integers(self) -> torch.Tensor:
        """The integers of all tensors, one after the other."""
        if not self._in_pairs:
            return self._integers
        sizes = self.layout.sizes
        return torch.cat(
            [_unpaired(self._of_tensor(tensor), size) for tensor, size in enumerate(sizes)]
        )

    def words_and_count(self) -> tuple[Words, int]:
        """The sums of the words, and of the counts, on the host."""
        tail = self.flat[len(self._integers) :].cpu().numpy().astype(np.int64)
        return tail[:-1], int(tail[-1])

    def _convert(
        self,
        contribution: torch.Tensor,
        layout: Layout,
        exponents: Exponents,
        integers: torch.Tensor,
        words: torch.Tensor,
        *,
        adds: bool,
    ) -> None:
        to_integers(
            contribution,
            layout,
            exponents,
            self._precision,
            adds=adds,
            integers=integers,
            words=words,
        )

    def _of_tensor(self, tensor: int) -> torch.Tensor:
        """What travels of a tensor's elements."""
        return self._integers[self._ends[tensor] : self._ends[tensor + 1]]

    def _empty(self, layout: Layout) -> torch.Tensor:
        """Room for the integers of all elements."""
        return torch.empty(layout.elements, dtype=self.flat.dtype, device=self.flat.device)


class Spare:
    """What has travelled, for the next sums of the same sizes."""

    def __init__(self) -> None:
        self._by_kind: dict[tuple[Layout, torch.dtype], list[Travelling]] = {}
        self._count = 0

    def take(
        self, layout: Layout, precision: Precision, dtype: torch.dtype, device: torch.device
    ) -> Travelling:
        """One that is there, or else a new one."""
        kind = layout, dtype
        if kind in self._by_kind:
            return self._take_away(kind)
        return Travelling(layout, precision, dtype, device)

    def give_back(self, travelling: Travelling, most: int) -> None:
        """Keep one that nobody uses any more, and of all ``most`` at most, the latest."""
        kind = travelling.layout, travelling.dtype
        of_kind = self._by_kind.pop(kind, [])
        self._by_kind[kind] = [*of_kind, travelling]  # the last kind now
        self._count += 1
        while self._count > most:
            self._take_away(next(iter(self._by_kind)))

    def _take_away(self, kind: tuple[Layout, torch.dtype]) -> Travelling:
        of_kind = self._by_kind[kind]
        taken = of_kind.pop()
        self._count -= 1
        if not of_kind:
            del self._by_kind[kind]
        return taken


def _paired(integers: torch.Tensor) -> torch.Tensor:
    """Each two of them in one; an odd one is alone."""
    pairs = integers[0::2].clone()
    high = integers[1::2]
    pairs[: len(high)] += high << HALF
    return pairs


def _unpaired(pairs: torch.Tensor, length: int) -> torch.Tensor:
    """The opposite of :func:`_paired`."""
    integers = torch.empty(length, dtype=pairs.dtype, device=pairs.device)
    low = pairs << HALF >> HALF  # with its sign
    integers[0::2] = low
    high = integers[1::2]
    high.copy_((pairs - low)[: len(high)] >> HALF)
    return integers
