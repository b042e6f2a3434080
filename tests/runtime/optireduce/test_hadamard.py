"""The transform against its definition; its inverse; what it does to lost runs, on average."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from latecomer.runtime.optireduce import hadamard
from latecomer.verify.errors import ArgumentError, TensorError


def _definition(x, signs, block):
    """By popcount: H[i, j] = (-1)^|i & j| / sqrt(b); the rest in powers of two."""
    transformed = np.empty_like(x)
    start = 0
    sizes = [block] * (len(x) // block)
    sizes += [1 << bit for bit in range(16, -1, -1) if (len(x) % block) >> bit & 1]
    for size in sizes:
        part = slice(start, start + size)
        transformed[part] = _matrix(size) @ (signs * x)[part]
        start += size
    return transformed


def _matrix(size):
    matrix = np.empty((size, size))
    for i in range(size):
        for j in range(size):
            matrix[i, j] = (-1.0) ** (i & j).bit_count() / np.sqrt(size)
    return matrix


@pytest.mark.parametrize("numel", [0, 1, 2, 63, 64, 65, 127, 200])
def test_it_is_the_transform_it_says(numel):
    x = torch.randn(numel, dtype=torch.float64)
    signs = hadamard._signs(3, numel, torch.device("cpu")).double().numpy()
    expected = _definition(x.numpy().copy(), signs, 64)
    hadamard.transform(x, 3, block=64)
    np.testing.assert_allclose(x.numpy(), expected, atol=1e-12)
    assert set(np.unique(signs)) <= {-1.0, 1.0}


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from([0, 1, 7, 4095, 40_001, 2**17, 2**17 + 1]),
    st.sampled_from([2, 32, 4096, 16384]),
    st.sampled_from([torch.float64, torch.float32, torch.float16, torch.bfloat16]),
    st.integers(0, 2**62),
)
def test_the_inverse_gives_the_tensor_back_up_to_rounding(numel, block, dtype, seed):
    x = torch.randn(numel, generator=torch.Generator().manual_seed(seed)).to(dtype)
    y = x.clone()
    hadamard.transform(y, seed, block=block)
    norm = x.double().norm()
    rounding = 4 * torch.finfo(dtype).eps + 1e-12
    assert abs(norm - y.double().norm()) <= rounding * norm  # orthonormal

    hadamard.transform(y, seed, block=block, inverse=True)
    if numel:
        assert (x - y).abs().max() <= 64 * torch.finfo(dtype).eps


def test_lost_runs_leave_the_estimate_unbiased_and_small_everywhere():
    """A tenth of the coefficients is lost, in one run, and the rest scaled up, in many blocks.

    Without the transform the large coordinates there would lose everything: 10.
    """
    size = 1024
    lost = slice(100, 202)
    blocks = hadamard.CHUNK // 1024
    x = torch.randn(size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    x[:8] = 10.0
    errors = torch.empty(12, blocks, size, dtype=torch.float64)
    for seed in range(12):
        y = x.repeat(blocks)  # each has signs of its own
        hadamard.transform(y, seed, block=size)
        y.view(blocks, size)[:, lost] = 0
        y *= size / (size - 102)
        hadamard.transform(y, seed, block=size, inverse=True)
        errors[seed] = y.view(blocks, size) - x

    deviation = errors.square().mean((0, 1)).sqrt()
    assert (errors.mean((0, 1)).abs() < 6 * deviation / (12 * blocks) ** 0.5).all()
    assert deviation.max() < 2


def test_ranks_draw_the_same_signs_and_operations_different_ones():
    seeds = [hadamard.operation_seed(5, step, bucket) for step in range(20) for bucket in range(20)]
    assert len(set(seeds)) == 400

    first, same_seed, another_seed = torch.ones(3, 1000)
    hadamard.transform(first, seeds[0])
    hadamard.transform(same_seed, seeds[0])
    hadamard.transform(another_seed, seeds[1])
    assert torch.equal(first, same_seed)
    assert not torch.equal(first, another_seed)


def test_mistakes_are_named():
    with pytest.raises(TensorError, match="int64"):
        hadamard.transform(torch.arange(4), 0)
    with pytest.raises(TensorError, match="contiguous"):
        hadamard.transform(torch.ones(4, 4)[:, 0], 0)
    with pytest.raises(ArgumentError, match="power of two"):
        hadamard.transform(torch.ones(4), 0, block=12)
