"""The tensors of a sum that are summed again: this rank's part of it, with as many bits as can be.

All ranks find the greatest magnitude of each block first. From these follow exponents with which
nothing overflows 64 bits, and nothing is lost that a float of the result's format could hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from latecomer.runtime.samebits.blocks import Layout, Scales
from latecomer.runtime.samebits.contributions import Contributions
from latecomer.runtime.samebits.conversion import (
    INTEGERS,
    holding,
    to_floats,
    to_magnitudes,
    to_wide_integers,
)
from latecomer.runtime.samebits.travelling import layout_of


class RepeatedTensors:
    """Some tensors of a sum (their places among all), as one rank has them."""

    def __init__(self, given: Contributions, layout: Layout, tensors: Sequence[int]) -> None:
        self.tensors = tensors
        sizes = tuple(layout.sizes[tensor] for tensor in tensors)
        self.layout = layout_of(sizes, layout.block)
        self._given = given
        self._all = layout
        self._dtype = given.flat.dtype
        self._device = given.flat.device

    def blocks(self) -> Iterator[tuple[slice, slice]]:
        """For each tensor, its blocks in the sum and among those of the tensors here."""
        for index, tensor in enumerate(self.tensors):
            yield self._all.of_tensor(tensor)[1], self.layout.of_tensor(index)[1]

    def magnitudes(self) -> torch.Tensor:
        """For each block, the bit pattern of this rank's greatest |x|, on the host."""
        patterns = INTEGERS[holding(self._dtype)]
        greatest = torch.zeros(self.layout.blocks, dtype=patterns, device=self._device)
        for index, tensor in enumerate(self.tensors):
            _, of_blocks = self.layout.of_tensor(index)
            one = layout_of((self.layout.sizes[index],), self.layout.block)
            for contribution in self._given.to(tensor, self._all):
                to_magnitudes(contribution, one, adds=True, greatest=greatest[of_blocks])
        return greatest.cpu()

    def wide_integers(self, scales: Scales) -> torch.Tensor:
        """The sums of this rank's contributions with 64 bits, on the host."""
        sums = torch.zeros(self.layout.elements, dtype=torch.int64, device=self._device)
        for index, tensor in enumerate(self.tensors):
            elements, of_blocks = self.layout.of_tensor(index)
            one = layout_of((self.layout.sizes[index],), self.layout.block)
            for contribution in self._given.to(tensor, self._all):
                to_wide_integers(
                    contribution, one, scales[of_blocks], adds=True, integers=sums[elements]
                )
        return sums.cpu()

    def put(self, totals: torch.Tensor, factors: Scales) -> None:
        """Put the results in place of what the sum has of these tensors."""
        results = torch.empty(self.layout.elements, dtype=self._dtype, device=self._device)
        to_floats(totals.to(self._device), self.layout, factors, results)
        for index, tensor in enumerate(self.tensors):
            elements, _ = self._all.of_tensor(tensor)
            of_chosen, _ = self.layout.of_tensor(index)
            self._given.flat[elements] = results[of_chosen]
