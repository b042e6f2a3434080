"""The conversions by torch operations: on devices, and where there is no numba.

The same functions as :mod:`latecomer.runtime.samebits.by_loops` has, with the same bits. Blocks
become the rows of a matrix, the last one of each tensor filled up with zeros, so that a conversion
takes few operations however many blocks there are.
"""

from __future__ import annotations

import torch

from latecomer.runtime.samebits.blocks import Layout, Scales

PATTERNS = {torch.float32: torch.int32, torch.float64: torch.int64}


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
    rows = _rows(floats, layout)
    greatest = _greatest(rows)
    is_finite = greatest < torch.inf
    scaled = torch.ceil(greatest.double() * _on(word_scales, floats))
    own_words = torch.where(is_finite, scaled, float(refused)).clamp(max=float(refused))
    own_words = own_words.to(words.dtype)

    is_taken = (own_words < refused).unsqueeze(1)
    products = torch.round(rows * _on(scales, floats).to(rows.dtype).unsqueeze(1))
    own_integers = torch.where(is_taken, products, 0).to(integers.dtype)
    _put(own_integers, layout, integers, adds=adds)
    if adds:
        words += own_words
    else:
        words.copy_(own_words)


def to_magnitudes(
    floats: torch.Tensor, layout: Layout, *, adds: bool, greatest: torch.Tensor
) -> None:
    """The bit pattern of the greatest |x| of each block, or of it and what is there."""
    patterns = _greatest(_rows(floats, layout)).view(greatest.dtype)
    if adds:
        torch.maximum(greatest, patterns, out=greatest)
    else:
        greatest.copy_(patterns)


def to_wide_integers(
    floats: torch.Tensor, layout: Layout, scales: Scales, *, adds: bool, integers: torch.Tensor
) -> None:
    """Each x as ``rint(x * scale)`` in 64 bits; nothing of a block whose scale is 0."""
    rows = _rows(floats, layout).double()
    of_rows = _on(scales, floats).unsqueeze(1)
    products = torch.round(rows * of_rows)
    _put(torch.where(of_rows != 0, products, 0).long(), layout, integers, adds=adds)


def to_floats(
    integers: torch.Tensor, layout: Layout, factors: Scales, floats: torch.Tensor
) -> None:
    """Each sum times the factor of its block, in float64, and rounded once to the format."""
    products = _rows(integers, layout).double() * _on(factors, floats).unsqueeze(1)
    _put(products.to(floats.dtype), layout, floats, adds=False)


def _greatest(rows: torch.Tensor) -> torch.Tensor:
    """The greatest |x| of each row; inf if there is inf or nan, 0 below the normal numbers."""
    patterns = rows.view(PATTERNS[rows.dtype])
    greatest = (patterns & torch.iinfo(patterns.dtype).max).amax(dim=1)
    infinity = torch.tensor(torch.inf, dtype=rows.dtype, device=rows.device)
    smallest = torch.tensor(torch.finfo(rows.dtype).tiny, dtype=rows.dtype, device=rows.device)
    greatest = torch.minimum(greatest, infinity.view(patterns.dtype))
    is_normal = greatest >= smallest.view(patterns.dtype)
    return torch.where(is_normal, greatest, 0).view(rows.dtype)


def _rows(flat: torch.Tensor, layout: Layout) -> torch.Tensor:
    """A matrix with a block in each row; a copy, unless the blocks are full."""
    if layout.elements == layout.blocks * layout.block:
        return flat.view(layout.blocks, layout.block)
    rows = torch.zeros(layout.blocks, layout.block, dtype=flat.dtype, device=flat.device)
    torch._foreach_copy_(_of_tensors(rows.view(-1), layout), _split(flat, layout))
    return rows


def _put(rows: torch.Tensor, layout: Layout, flat: torch.Tensor, *, adds: bool) -> None:
    """The opposite of :func:`_rows`: write the matrix to ``flat``, or add it there."""
    tensors = _of_tensors(rows.view(-1), layout)
    there = _split(flat, layout)
    if adds:
        torch._foreach_add_(there, tensors)
    else:
        torch._foreach_copy_(there, tensors)


def _of_tensors(rows: torch.Tensor, layout: Layout) -> list[torch.Tensor]:
    """The elements of each tensor in the rows that are its blocks."""
    firsts = [int(block) * layout.block for block in layout.first_blocks]
    return [rows[first : first + size] for first, size in zip(firsts, layout.sizes, strict=True)]


def _split(flat: torch.Tensor, layout: Layout) -> list[torch.Tensor]:
    """The tensors of a flat buffer."""
    return list(torch.split(flat, list(layout.sizes)))


def _on(scales: Scales, tensor: torch.Tensor) -> torch.Tensor:
    """``scales`` where the tensor is."""
    return torch.from_numpy(scales).to(tensor.device)
