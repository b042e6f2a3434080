"""What an all-reduce must give, element by element, known on each rank without any transfer.

The element i of rank r in operation s is a small integer that is hashed from (i, r, s), so that a
contribution that is missing, or is counted twice, or stands in another place, is seen. The sum of
all ranks' elements is exact, in any order, for up to 9 ranks in bfloat16, 26 in float16, thousands
in the others, and so is their average: it is asked for with n times the integers, so sums reach
n * n * LARGEST, and integers are exact up to 2 / eps. Nothing here is shared with what is tested.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

LARGEST = 3  # of the integers, and the smallest is -LARGEST
SLICE = 2**22  # elements that are hashed at a time; a hash has 8 bytes


def fill(tensor: torch.Tensor, rank: int, world_size: int, operation: int, average: bool) -> None:
    """Write what ``rank`` brings to ``operation`` into a one-dimensional ``tensor``."""
    factor = world_size if average else 1
    for first_index, elements in _slices(tensor):
        elements.copy_(_integers(first_index, elements, rank, operation) * factor)


def wrong_elements(result: torch.Tensor, world_size: int, operation: int) -> int:
    """How many elements of ``result`` are not the sum (or average) of what all ranks brought."""
    count = torch.zeros((), dtype=torch.int64, device=result.device)
    for first_index, elements in _slices(result):
        expected = sum(
            _integers(first_index, elements, rank, operation) for rank in range(world_size)
        )
        count += (elements.to(torch.float64) != expected).sum()  # unequal where it is NaN, too
    return int(count)


def _slices(tensor: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """The tensor in parts, each with the index of its first element."""
    for first_index in range(0, tensor.numel(), SLICE):
        yield first_index, tensor[first_index : first_index + SLICE]


def _integers(first_index: int, like: torch.Tensor, rank: int, operation: int) -> torch.Tensor:
    """What ``rank`` brings, for as many elements as ``like`` has, on its device."""
    hashed = torch.arange(first_index, first_index + len(like), device=like.device)
    hashed = (hashed * 2654435761 + rank * 40503001 + operation * 97003) & 0x7FFFFFFF
    hashed ^= hashed >> 15
    hashed = (hashed * 739982445) & 0x7FFFFFFF
    hashed ^= hashed >> 12
    return hashed % (2 * LARGEST + 1) - LARGEST
