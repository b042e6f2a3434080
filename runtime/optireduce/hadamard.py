"""Randomized Hadamard transform: a lost run of datagrams becomes small noise over a whole block.

Random signs (from a seed that all ranks share), then an orthonormal Walsh-Hadamard transform of
each block; the inverse is the same, signs last. Source: OptiReduce, section 3.3. Deviation:
block-wise, since a whole bucket costs several times as much; what is left over after the last whole
block is cut into powers of two, so that any length works in place. It is done as Kronecker factors
of up to 16 by matmul, in chunks that stay in cache; signs have a period of one chunk.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch

from latecomer.verify.errors import ArgumentError, TensorError

CHUNK = 2**17  # elements that are transformed at a time: 512 KiB in float32, so they stay in cache
FACTOR = 16  # of a Kronecker product: the rows of the largest matrix
FLOATS = frozenset({torch.float32, torch.float64, torch.float16, torch.bfloat16})


def transform(flat: torch.Tensor, seed: int, *, block: int = 4096, inverse: bool = False) -> None:
    """Transform ``flat`` in place; ``inverse`` undoes it up to rounding.

    It is contiguous, of one dimension, floating point (TensorError if not); the narrow types are
    computed in float32 and rounded once. A float16 value may grow by up to sqrt(``block``), which
    is a power of two (ArgumentError if not).
    """
    if flat.dim() != 1 or not flat.is_contiguous() or flat.dtype not in FLOATS:
        raise TensorError(
            f"{flat.dtype} of shape {tuple(flat.shape)}: must be floating point, contiguous, 1-D"
        )
    if block < 1 or block & (block - 1) or block > CHUNK:
        raise ArgumentError("block", block, f"must be a power of two up to {CHUNK}")
    signs = _signs(seed, min(CHUNK, flat.numel()), flat.device)
    for part in torch.split(flat, CHUNK):
        wide = part.to(torch.promote_types(part.dtype, torch.float32), copy=True)
        chunk_signs = signs[: len(wide)].to(wide.dtype)
        if not inverse:
            wide *= chunk_signs
        start = 0
        size = block
        while start < len(wide):  # whole blocks, then the rest in powers of two
            count = (len(wide) - start) // size
            piece = wide[start : start + count * size]
            if count:
                piece.copy_(_hadamard(piece.view(count, size)).reshape(-1))
            start = start + count * size
            size = size // 2
        if inverse:
            wide *= chunk_signs
        part.copy_(wide)


def operation_seed(seed: int, step: int, bucket: int) -> int:
    """A seed for one bucket of one step."""
    # odd 64-bit constants, of the golden ratio and of xxHash: neighbours get seeds far apart
    mixed = seed * 0x9E3779B97F4A7C15 + step * 0xC2B2AE3D27D4EB4F + bucket * 0x165667B19E3779F9
    return mixed % 2**63


def _hadamard(rows: torch.Tensor) -> torch.Tensor:
    """The orthonormal transform of each row of [count, b], b a power of two."""
    count, size = rows.shape
    inner = 1
    while inner < size:
        factor = min(FACTOR, size // inner)
        matrix = _matrix(factor, rows.dtype, rows.device)
        if inner == 1:
            rows = rows.reshape(-1, factor) @ matrix
        else:
            rows = torch.matmul(matrix, rows.reshape(-1, factor, inner))
        inner *= factor
    return rows.reshape(count, size)


@lru_cache(maxsize=64)
def _matrix(size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The orthonormal Hadamard matrix (Sylvester), symmetric."""
    matrix = torch.ones(1, 1, dtype=dtype)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return (matrix / math.sqrt(size)).to(device)


def _signs(seed: int, count: int, device: torch.device) -> torch.Tensor:
    """Random +1 and -1, float32; drawn on the CPU so that all devices agree."""
    generator = torch.Generator().manual_seed(seed)
    bits = torch.randint(0, 2, (count,), generator=generator, dtype=torch.int8)
    return (bits * 2 - 1).to(torch.float32).to(device)
