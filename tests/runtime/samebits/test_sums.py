"""What a sum is, against exact arithmetic: fractions, one element at a time."""

from __future__ import annotations

import functools
import math
import struct
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from latecomer.runtime.samebits import blocks, by_torch, conversion
from latecomer.runtime.samebits.blocks import BLOCK, Layout
from latecomer.runtime.samebits.conversion import INTEGERS, holding, precision_of
from latecomer.runtime.samebits.repetition import RepetitionAlone
from latecomer.runtime.samebits.summing import Contributions, SameBits, TensorExponents
from latecomer.runtime.samebits.travelling import Travelling, layout_of
from latecomer.runtime.work import AllReduceWork
from latecomer.verify.errors import ArgumentError, LatecomerError, TensorError

CPU = torch.device("cpu")
FORMATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
SIZES = (1, 5, 300, BLOCK, BLOCK + 3, 2 * BLOCK + 1)


class Ring:
    """An engine that adds up what it was given for other ranks; what travels is seen."""

    def __init__(self):
        self.others = []
        self.travelled = []
        self.held = []  # works that are not settled, if it holds them
        self.holds = False
        self.number = 0

    def start(self, tensor):
        for other in self.others:
            tensor += other
        self.travelled.append(tensor.dtype)
        work = AllReduceWork(self.number, tensor, average=False)
        self.number += 1
        if self.holds:
            self.held.append(work)
        else:
            work.settle()
        return work


@functools.cache
def rounded(x, exponent):
    """x * 2**e, rounded half to even, exactly."""
    return round(Fraction(x) * Fraction(2) ** exponent)


def number(bits):
    return struct.unpack("<f", struct.pack("<I", bits))[0]


finite = st.integers(0, 2**32 - 1).map(number).filter(math.isfinite)
of_one_scale = st.floats(-8, 8, width=32)


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.one_of(finite, of_one_scale), min_size=1, max_size=40),
    repeats=st.sampled_from([1, 70]),
    exponent=st.integers(-100, 120),
    contributions=st.sampled_from([1, 2, 3, 8, 100, 2047]),
)
@example([1e-45, -0.0, 0.0, 1.1754944e-38], 1, 120, 3)  # denormal
@example([3.4e38, -3.4e38], 1, -110, 2047)
def test_integers_and_words_are_what_fractions_say(values, repeats, exponent, contributions):
    precision = precision_of(torch.float32, contributions)
    exponent = min(exponent, precision.highest)
    floats = torch.tensor(values * repeats, dtype=torch.float32)
    layout = Layout((floats.numel(),))
    exponents = np.full(layout.blocks, exponent, np.int32)
    for module in (conversion.on_cpu(), by_torch):
        integers = torch.zeros(layout.elements, dtype=torch.int32)
        words = torch.zeros(layout.blocks, dtype=torch.int32)
        module.to_integers(
            floats,
            layout,
            np.ldexp(1.0, exponents),
            np.ldexp(1.0, exponents - precision.unit),
            precision.refused,
            adds=False,
            integers=integers,
            words=words,
        )
        for block in range(layout.blocks):
            part = floats[block * BLOCK : (block + 1) * BLOCK].tolist()
            top = max(abs(x) for x in part)
            top = top if top >= 2.0**-126 else 0.0
            exact = math.ceil(Fraction(top) * Fraction(2) ** (exponent - precision.unit))
            word = min(exact, precision.refused)
            assert words[block] == word
            expected = [rounded(x, exponent) if word < precision.refused else 0 for x in part]
            assert integers[block * BLOCK : (block + 1) * BLOCK].tolist() == expected
            if word < precision.refused:
                assert max(map(abs, expected)) <= word << precision.unit


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("sizes", [(1,), (5, BLOCK, 7), (2 * BLOCK,), (BLOCK + 3, 1, 1)])
def test_loops_and_torch_operations_give_the_same_bits(dtype, sizes):
    generator = torch.Generator().manual_seed(len(sizes))
    layout = Layout(sizes)
    precision = precision_of(dtype, 8)
    held = holding(dtype)
    floats = torch.randn(layout.elements, generator=generator).to(dtype).to(held)
    floats[0] = torch.inf
    exponents = np.arange(layout.blocks, dtype=np.int32) + precision.full - 3
    results = []
    for module in (conversion.on_cpu(), by_torch):
        integers = torch.zeros(layout.elements, dtype=INTEGERS[held])
        words = torch.zeros(layout.blocks, dtype=INTEGERS[held])
        greatest = torch.zeros(layout.blocks, dtype=INTEGERS[held])
        wide = torch.zeros(layout.elements, dtype=torch.int64)
        back = torch.zeros(layout.elements, dtype=held)
        scales = np.ldexp(1.0, exponents)
        for adds in (False, True):
            module.to_integers(
                floats, layout, scales, scales / 16, precision.refused,
                adds=adds, integers=integers, words=words,
            )  # fmt: skip
            module.to_magnitudes(floats, layout, adds=adds, greatest=greatest)
            some = np.where(np.arange(layout.blocks) > 0, scales * 2.0**20, 0.0)
            module.to_wide_integers(floats, layout, some, adds=adds, integers=wide)
        module.to_floats(wide, layout, 1 / (3 * scales), back)
        results.append((integers, words, greatest, wide, back))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)
    assert results[0][1][0] == 2 * precision.refused  # inf


def test_loops_that_are_wrong_are_found_out():
    class Wrong:
        def __getattr__(self, name):
            return getattr(by_torch, name)

        def to_floats(self, integers, layout, factors, floats):
            by_torch.to_floats(integers, layout, factors * 2, floats)

    assert "other bits" in conversion.fault(Wrong())
    assert conversion.fault(by_torch) == ""


def summed(dtype, steps, sizes, buckets, holders, contributions):
    """The results of some steps; ``holders``: how contributions are shared out, the last is ours.

    ``steps``: for each step, for each contribution, all tensors in one.
    """
    exponents = [TensorExponents(size, dtype, contributions) for size in sizes]
    ring = Ring()
    sums = SameBits(contributions, CPU, OfAll(holders), None)
    results = []
    ends = np.cumsum([0, *sizes])
    for step in steps:
        parts = []
        for first, last in buckets:
            own_sizes = tuple(sizes[first:last])
            layout = layout_of(own_sizes)
            own = [exponents[index] for index in range(first, last)]
            cut = [each[ends[first] : ends[last]] for each in step]
            ring.others = []
            sums._repetition.contributions = []
            for holder in holders[:-1]:
                travelling = Travelling(layout, dtype, CPU)
                values = np.concatenate([each.values for each in own])
                precision = precision_of(dtype, contributions)
                travelling.put(cut[holder[0]], values, precision, len(holder))
                for other in holder[1:]:
                    for index in range(len(own_sizes)):
                        elements, _ = layout.of_tensor(index)
                        travelling.add(cut[other][elements], index, values, precision)
                ring.others.append(travelling.flat)
            sums._repetition.others = [cut[index] for holder in holders[:-1] for index in holder]
            sums._repetition.layout = layout
            mine = holders[-1]
            flat = cut[mine[0]].clone()
            others = {}
            for index in range(len(own_sizes)):
                elements, _ = layout.of_tensor(index)
                if len(mine) > 1:
                    others[index] = [cut[other][elements] for other in mine[1:]]
            given = Contributions(flat, own_sizes, len(mine), others)
            sums.submit(given, own, ring.start, average=True).wait()
            parts.append(flat)
        results.append(torch.cat(parts))
    repeated = sums.repeated
    sums.close()
    return results, repeated


class OfAll(RepetitionAlone):
    """Repeats for all holders: finds out from the shapes which tensors are summed again."""

    def __init__(self, holders):
        self.others = []
        self.layout = None
        self.chosen = None

    def maximum(self, tensor, operation):
        self.chosen = self._matching(tensor)
        dtype = self.others[0].dtype if self.others else None
        for other in self.others:
            at = 0
            for index in self.chosen:
                elements, of_blocks = self.layout.of_tensor(index)
                count = of_blocks.stop - of_blocks.start
                one = layout_of((self.layout.sizes[index],))
                conversion.to_magnitudes(
                    other[elements], one, adds=True, greatest=tensor[at : at + count]
                )
                at += count
        self.tops = tensor.view(holding(dtype)).clone() if self.others else None

    def total(self, tensor, operation):
        if not self.others:
            return
        precision = precision_of(self.others[0].dtype, self.contributions)
        tops = self.tops.double().numpy()
        lengths = np.frexp(np.where(np.isfinite(tops), tops, 0.0))[1].astype(np.int64)
        scales = np.ldexp(1.0, blocks.wide_exponents(lengths, precision))
        scales = np.where(np.isfinite(tops), scales, 0.0)
        for other in self.others:
            at = at_block = 0
            for index in self.chosen:
                elements, of_blocks = self.layout.of_tensor(index)
                count = of_blocks.stop - of_blocks.start
                size = self.layout.sizes[index]
                conversion.to_wide_integers(
                    other[elements],
                    layout_of((size,)),
                    scales[at_block : at_block + count],
                    adds=True,
                    integers=tensor[at : at + size],
                )
                at += size
                at_block += count

    def _matching(self, tensor):
        return self.repeated_tensors
