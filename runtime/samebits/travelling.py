"""What of a sum travels between ranks: the integers of some tensors, their words, and a count."""

from __future__ import annotations

import functools

import numpy as np
import torch

from latecomer.runtime.samebits.blocks import Exponents, Layout, Precision, Words
from latecomer.runtime.samebits.conversion import INTEGERS, holding, to_integers


@functools.lru_cache(maxsize=4096)
def layout_of(sizes: tuple[int, ...]) -> Layout:
    """The layout of tensors of these sizes, made once."""
    return Layout(sizes)


class Travelling:
    """One flat tensor, ``flat``: the elements' integers, a word for each block, the count.

    The count is that of all contributions that were summed up, so that one that is missing, or was
    merged with another before, is noticed on all ranks alike.
    """

    def __init__(self, layout: Layout, dtype: torch.dtype, device: torch.device) -> None:
        self.layout = layout
        integer = INTEGERS[holding(dtype)]
        length = layout.elements + layout.blocks + 1
        self.flat = torch.empty(length, dtype=integer, device=device)
        self.integers, self._words, self._count = torch.split(
            self.flat, [layout.elements, layout.blocks, 1]
        )

    def put(
        self, contribution: torch.Tensor, exponents: Exponents, precision: Precision, count: int
    ) -> None:
        """Put down this rank's first contribution to all tensors; it makes ``count`` of them."""
        to_integers(
            contribution,
            self.layout,
            exponents,
            precision,
            adds=False,
            integers=self.integers,
            words=self._words,
        )
        self._count.fill_(count)

    def add(
        self, contribution: torch.Tensor, tensor: int, exponents: Exponents, precision: Precision
    ) -> None:
        """Add one more contribution to one of the tensors."""
        elements, of_blocks = self.layout.of_tensor(tensor)
        to_integers(
            contribution,
            layout_of((self.layout.sizes[tensor],)),
            exponents[of_blocks],
            precision,
            adds=True,
            integers=self.integers[elements],
            words=self._words[of_blocks],
        )

    def words_and_count(self) -> tuple[Words, int]:
        """The sums of the words, and of the counts, on the host."""
        tail = self.flat[self.layout.elements :].cpu().numpy().astype(np.int64)
        return tail[:-1], int(tail[-1])
