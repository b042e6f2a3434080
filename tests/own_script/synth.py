"""Synthetic batches."""

from collections.abc import Iterator

import torch


def batches(rank: int, steps: int) -> Iterator[torch.Tensor]:
    """Other numbers on every rank, the same in every run."""
    generator = torch.Generator().manual_seed(rank)
    for _ in range(steps):
        yield torch.randn(32, 512, generator=generator)
