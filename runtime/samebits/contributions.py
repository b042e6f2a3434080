"""What one rank adds to a sum, and what is known of its tensors from one sum to the next."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from latecomer.runtime.samebits.blocks import Exponents, Layout
from latecomer.runtime.samebits.conversion import precision_of
from latecomer.runtime.samebits.travelling import layout_of


class TensorExponents:
    """The exponents of one tensor's blocks, from one sum of it to the next.

    ``after``: they are those that the sum with these will have left.
    """

    def __init__(
        self,
        elements: int,
        dtype: torch.dtype,
        contributions: int,
        *,
        after: TensorExponents | None = None,
    ) -> None:
        precision = precision_of(dtype, contributions)
        blocks = layout_of((elements,), precision.block).blocks
        self.values: Exponents = np.full(blocks, precision.first, np.int32)
        self.is_under_way = False  # a sum that will change them
        self._after = after

    @property
    def are_known(self) -> bool:
        """Whether no sum is under way that will change them."""
        return not (self.is_under_way or (self._after is not None and self._after.is_under_way))

    def enter(self) -> None:
        """A sum with these begins, which will change them."""
        if self._after is not None:
            self.values = self._after.values
            self._after = None
        self.is_under_way = True


@dataclass(eq=False)
class Contributions:
    """What one rank adds to the sum of some tensors that lie in one buffer."""

    flat: torch.Tensor  # the buffer: one contribution to every tensor, and the result in the end
    sizes: tuple[int, ...]  # elements of the tensors, one after the other
    count: int = 1  # of contributions in all
    others: dict[int, list[torch.Tensor]] = field(default_factory=dict)
    """By tensor, the further contributions to it; one that is missing is a zero."""

    def to(self, tensor: int, layout: Layout) -> list[torch.Tensor]:
        """All contributions to one tensor."""
        elements, _ = layout.of_tensor(tensor)
        return [self.flat[elements], *self.others.get(tensor, ())]
