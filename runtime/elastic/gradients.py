"""A model's gradients, microbatch by microbatch, in flat buffers that are summed.

Each microbatch is a contribution of its own to the average over a step's microbatches, so it makes
no difference which replica has computed it. Contributions are kept until the step is done: should a
replica die in it, the others compute what it owes, and sum everything again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

BUCKET_BYTES = 25 * 2**20  # as DDP's


@dataclass(eq=False)
class Bucket:
    """Parameters whose gradients lie in one flat buffer."""

    names: list[str] = field(default_factory=list)
    parameters: list[torch.nn.Parameter] = field(default_factory=list)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The elements of each parameter."""
        return tuple(parameter.numel() for parameter in self.parameters)

    @property
    def elements(self) -> int:
        """Of all parameters."""
        return sum(self.sizes)

    @property
    def dtype(self) -> torch.dtype:
        """Of all parameters."""
        return self.parameters[0].dtype

    def empty(self) -> torch.Tensor:
        """A flat buffer."""
        return torch.empty(self.elements, dtype=self.dtype, device=self.parameters[0].device)

    def zeros(self) -> torch.Tensor:
        """A flat buffer of zeros."""
        return self.empty().zero_()

    def take(self) -> torch.Tensor:
        """The parameters' gradients, flat; a parameter without one has had no part in the loss."""
        flat = self.empty()
        for part, parameter in self._parts(flat):
            if parameter.grad is None:
                part.zero_()
            else:
                part.view_as(parameter).copy_(parameter.grad)
        return flat

    def put(self, flat: torch.Tensor) -> None:
        """Make a flat buffer's elements the parameters' gradients; copies them."""
        for part, parameter in self._parts(flat):
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.copy_(part.view_as(parameter))

    def _parts(self, flat: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.nn.Parameter]]:
        return zip(torch.split(flat, list(self.sizes)), self.parameters, strict=True)


def buckets_of(model: torch.nn.Module, most_bytes: int = BUCKET_BYTES) -> list[Bucket]:
    """The model's parameters that have gradients, the last ones first, as backward makes them.

    A bucket has one dtype and device, and at most so many bytes, unless it is one parameter.
    """
    buckets: list[Bucket] = []
    open_of: dict[tuple[torch.dtype, torch.device], Bucket] = {}
    for name, parameter in reversed(list(model.named_parameters())):
        if not parameter.requires_grad or parameter.numel() == 0:
            continue
        kind = parameter.dtype, parameter.device
        bucket = open_of.get(kind)
        nbytes = parameter.numel() * parameter.element_size()
        if bucket is None or bucket.elements * parameter.element_size() + nbytes > most_bytes:
            bucket = open_of[kind] = Bucket()
            buckets.append(bucket)
        bucket.names.append(name)
        bucket.parameters.append(parameter)
    return buckets
