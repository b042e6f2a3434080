"""Every instruction on registers that our builds contain, against the PTX ISA's words and torch.

The oracle takes single numbers: Python's integers for integers, torch's tensors of one element for
floating point, fractions where torch has no such operation. Sections are those of the PTX ISA 9.1.
"""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runtime.device.ptx.allreduce import shipped
from tests.runtime.device.ptx.arithmetic import TABLE, UNSIGNED, operation
from tests.runtime.device.ptx.builds import ALL_BUILDS
from tests.runtime.device.ptx.parser import BadText, parse
from tests.runtime.device.ptx.program import STRONG, Program

KINDS = {16: (torch.float16, torch.int16), 32: (torch.float32, torch.int32)}
KINDS[64] = (torch.float64, torch.int64)


def signed(x, bits):
    return x - (1 << bits) if x >> (bits - 1) else x


def number(x, dtype):
    """The floating point number of one element that bits stand for."""
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    return torch.tensor([signed(x, 8 * dtype.itemsize)], dtype=kind).view(dtype)


def bits_of(tensor):
    """And back; None for NaN, which has many."""
    if tensor.isnan().any():
        return None
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.itemsize]
    return int(tensor.view(kind)) & (1 << 8 * tensor.itemsize) - 1


def two(narrow):
    """On both halves of 32 bits (9.7.4)."""

    def both(*values):
        low = narrow(*(v & 0xFFFF for v in values))
        high = narrow(*(v >> 16 for v in values))
        return low, high

    return both


def floating(dtype, calculate):
    return lambda *values: bits_of(calculate(*(number(v, dtype) for v in values)))


def converted(source, target):
    return lambda a: bits_of(number(a, source).to(target))


def fraction(x, dtype):
    return Fraction(number(x, dtype).double().item())


def fma_bf16(a, b, c):
    """9.7.4.4: exactly a * b + c, rounded once, to nearest, ties to even."""
    if not all(number(v, torch.bfloat16).isfinite() for v in (a, b, c)):
        product = number(a, torch.bfloat16).double() * number(b, torch.bfloat16).double()
        return bits_of((product + number(c, torch.bfloat16).double()).bfloat16())
    exact = fraction(a, torch.bfloat16) * fraction(b, torch.bfloat16)
    exact += fraction(c, torch.bfloat16)
    if exact == 0:
        product = number(a, torch.bfloat16).double() * number(b, torch.bfloat16).double()
        # a product below the smallest double is none of two bfloat16
        return bits_of((product + number(c, torch.bfloat16).double()).bfloat16())
    sign = 0x8000 if exact < 0 else 0
    low, high = 0, 0x7F80  # positive bit patterns are in the order of the numbers; infinity: 2^128
    while high - low > 1:
        middle = (low + high) // 2
        if fraction(middle, torch.bfloat16) <= abs(exact):
            low = middle
        else:
            high = middle
    above = Fraction(2) ** 128 if high == 0x7F80 else fraction(high, torch.bfloat16)
    below = abs(exact) - fraction(low, torch.bfloat16)
    rest = above - abs(exact)
    nearest = low if below < rest or (below == rest and low % 2 == 0) else high
    return sign | nearest


BF16 = torch.bfloat16
ADD_F16 = floating(torch.float16, torch.add)
ADD_BF16 = floating(BF16, torch.add)
M32 = (1 << 32) - 1
M64 = (1 << 64) - 1

SPECIFIED = {
    # 9.7.1: arithmetic of integers, modulo the width
    **{
        name.format(w): (function, (w,) * count, w)
        for w in (32, 64)
        for name, count, function in (
            ("add.s{}", 2, lambda a, b, w=w: (a + b) % (1 << w)),
            ("sub.s{}", 2, lambda a, b, w=w: (a - b) % (1 << w)),
            ("mul.lo.s{}", 2, lambda a, b, w=w: (signed(a, w) * signed(b, w)) % (1 << w)),
            (
                "mad.lo.s{}",
                3,
                lambda a, b, c, w=w: (signed(a, w) * signed(b, w) + signed(c, w)) % (1 << w),
            ),
            # 9.7.8
            ("and.b{}", 2, lambda a, b: a & b),
            ("or.b{}", 2, lambda a, b: a | b),
        )
    },
    **{
        f"setp.{how}.{kind}{w}": (
            lambda a, b, w=w, kind=kind, compare=compare: compare(
                signed(a, w) if kind == "s" else a, signed(b, w) if kind == "s" else b
            ),
            (w, w),
            1,
        )
        for w in (32, 64)
        for how, kind, compare in (  # 9.7.6.2
            ("eq", "b", lambda a, b: a == b),
            ("ne", "b", lambda a, b: a != b),
            ("lt", "s", lambda a, b: a < b),
            ("le", "s", lambda a, b: a <= b),
            ("gt", "s", lambda a, b: a > b),
            ("ge", "s", lambda a, b: a >= b),
        )
    },
    "setp.lt.u64": (lambda a, b: a < b, (64, 64), 1),
    "min.s64": (lambda a, b: min(a, b, key=lambda x: signed(x, 64)), (64, 64), 64),
    "max.s64": (lambda a, b: max(a, b, key=lambda x: signed(x, 64)), (64, 64), 64),
    "mul.wide.u32": (lambda a, b: a * b, (32, 32), 64),
    "mad.wide.s32": (
        lambda a, b, c: (signed(a, 32) * signed(b, 32) + c) % (1 << 64),
        (32, 32, 64),
        64,
    ),
    "selp.b32": (lambda a, b, c: a if c else b, (32, 32, 1), 32),
    "and.pred": (lambda a, b: a and b, (1, 1), 1),
    "or.pred": (lambda a, b: a or b, (1, 1), 1),
    "not.pred": (lambda a: not a, (1,), 1),
    "mov.pred": (lambda a: a, (1,), 1),
    **{f"mov.{kind}{w}": (lambda a: a, (w,), w) for kind in "bu" for w in (16, 32, 64)},
    # 9.7.9.21: cvt between integers extends by the source's sign, or cuts off
    "cvt.s64.s32": (lambda a: signed(a, 32) % (1 << 64), (32,), 64),
    "cvt.u64.u32": (lambda a: a, (32,), 64),
    "cvt.u32.u64": (lambda a: a % (1 << 32), (64,), 32),
    # 9.7.9.21: and to and from floating point; of two sources the first goes into the upper half
    "cvt.f32.bf16": (converted(BF16, torch.float32), (16,), 32),
    "cvt.f32.f16": (converted(torch.float16, torch.float32), (16,), 32),
    "cvt.rn.bf16.f32": (converted(torch.float32, BF16), (32,), 16),
    "cvt.rn.f16.f32": (converted(torch.float32, torch.float16), (32,), 16),
    "cvt.rn.bf16x2.f32": (
        lambda a, b: (converted(torch.float32, BF16)(b), converted(torch.float32, BF16)(a)),
        (32, 32),
        32,
    ),
    "cvt.rn.f16x2.f32": (
        lambda a, b: tuple(converted(torch.float32, torch.float16)(x) for x in (b, a)),
        (32, 32),
        32,
    ),
    "cvt.rn.f32.s32": (
        lambda a: bits_of(torch.tensor([signed(a, 32)], dtype=torch.int32).float()),
        (32,),
        32,
    ),
    "cvt.rn.f64.s32": (
        lambda a: bits_of(torch.tensor([signed(a, 32)], dtype=torch.int32).double()),
        (32,),
        64,
    ),
    # 9.7.3 and 9.7.4
    "add.f32": (floating(torch.float32, torch.add), (32, 32), 32),
    "add.f64": (floating(torch.float64, torch.add), (64, 64), 64),
    "div.rn.f32": (floating(torch.float32, torch.div), (32, 32), 32),
    "div.rn.f64": (floating(torch.float64, torch.div), (64, 64), 64),
    "add.f16": (ADD_F16, (16, 16), 16),
    "add.f16x2": (two(ADD_F16), (32, 32), 32),
    "add.bf16": (ADD_BF16, (16, 16), 16),
    "add.bf16x2": (two(ADD_BF16), (32, 32), 32),
    "fma.rn.bf16": (fma_bf16, (16, 16, 16), 16),
    "fma.rn.bf16x2": (two(fma_bf16), (32, 32, 32), 32),
}
"""By name: the oracle, the bits of each source, and of the result. A pair: the two halves."""

SHIFTS = ("shl.b32", "shl.b64", "shr.u32")  # by constants

EDGES = {
    1: [0, 1],
    16: [0, 1, 0x8000, 0x7FFF, 0xFFFF, 0x3C00, 0x3F80, 0x7C00, 0x7F80, 0x0080, 0x03FF, 0xFBFF],
    32: [0, 1, 1 << 31, M32, (1 << 31) - 1, 0x3F800000, 0x7F800000, 0x00800000, 0x3F803F80],
    64: [0, 1, 1 << 63, M64, (1 << 63) - 1, 1 << 31, M32, 1 << 32, 0x3FF0000000000000],
}


def values_of(bits):
    return st.one_of(st.sampled_from(EDGES[bits]), st.integers(0, (1 << bits) - 1))


def agrees(result, expected, bits):
    """Whether bits are what the oracle says: a number, the two halves, or None for a NaN."""
    if isinstance(expected, tuple):
        halves = result & 0xFFFF, result >> 16
        return all(agrees(h, e, 16) for h, e in zip(halves, expected, strict=True))
    if expected is not None:
        return result == expected
    patterns = [(0x7C00, 0x3FF), (0x7F80, 0x7F)] if bits == 16 else []
    patterns += [(0x7F800000, 0x7FFFFF)] if bits == 32 else []
    patterns += [(0x7FF << 52, (1 << 52) - 1)] if bits == 64 else []
    return any(result & ones == ones and result & rest for ones, rest in patterns)


def wrapped(value, bits):
    return bool(value) if bits == 1 else value


@pytest.mark.parametrize("name", SPECIFIED)
@settings(max_examples=40)
@given(data=st.data())
def test_an_instruction_is_as_specified(name, data):
    """For numbers that all threads share, for arrays, and for a mixture of these."""
    oracle, widths, bits = SPECIFIED[name]
    rows = data.draw(
        st.lists(st.tuples(*(values_of(width) for width in widths)), min_size=1, max_size=6)
    )
    columns = list(zip(*rows, strict=True))
    function = operation(name)
    arrays = [np.array(c, UNSIGNED[w]) for c, w in zip(columns, widths, strict=True)]
    together = np.broadcast_to(function(*arrays), len(rows))
    assert together.dtype == UNSIGNED[bits] or bits == 1
    for row, result in zip(rows, together.tolist(), strict=True):
        expected = oracle(*row)
        assert agrees(result, expected, bits), (row, hex(result), expected)
        alone = function(*(wrapped(v, w) for v, w in zip(row, widths, strict=True)))
        assert not isinstance(alone, np.ndarray)
        assert agrees(alone, expected, bits), (row, alone, expected)

    if len(widths) > 1:
        shared = data.draw(st.integers(0, len(widths) - 1))
        mixed = [*arrays]
        mixed[shared] = wrapped(rows[0][shared], widths[shared])
        results = function(*mixed)
        for row, result in zip(rows, results.tolist(), strict=True):
            changed = [*row]
            changed[shared] = rows[0][shared]
            assert agrees(result, oracle(*changed), bits)


@pytest.mark.parametrize("name", SHIFTS)
@settings(max_examples=40)
@given(data=st.data())
def test_shifts_are_as_specified(name, data):
    """9.7.8.8 and 9.7.8.9: amounts beyond the width are as the width."""
    bits = int(name[-2:])
    value = data.draw(values_of(bits))
    amount = data.draw(st.integers(0, bits + 3))
    expected = (value << amount) % (1 << bits) if name.startswith("shl") else value >> amount
    assert operation(name)(value, amount) == expected
    assert operation(name)(np.array([value], UNSIGNED[bits]), amount).tolist() == [expected]


def test_all_that_is_known_is_tested():
    assert set(TABLE) == {*SPECIFIED, *SHIFTS}


def test_bf16_by_two_roundings_is_by_one():
    """All pairs of exponents and some significands: sums of bfloat16, as exact fractions."""
    ones = 0x3F80
    for a, b in itertools.product(range(0, 0x7F80, 331), range(0x8000, 0xFF80, 173)):
        assert operation("add.bf16")(a, b) == fma_bf16(a, ones, b)


@pytest.mark.gpu_logic
def test_every_instruction_of_every_build_is_known():
    names = set()
    for arch, dtype, average in ALL_BUILDS:
        program = shipped(arch, dtype, average)  # BadText if not
        names |= {instruction.name for instruction in program.text.instructions}
    assert {"fma.rn.bf16x2", "add.bf16x2", "div.rn.f64", "ld.global.v2.b64"} <= names
    assert {name for name in names if name in STRONG} == {
        "ld.global.sys.relaxed.b32",
        "ld.global.sys.acquire.b32",
        "atom.global.sys.release.exch.b32",
    }
    print(f"{len(ALL_BUILDS)} builds, {len(names)} different instructions")


HEAD = """
.version 8.7
.visible .entry kernel(
	.param .u64 kernel_param_0
)
.reqntid 64
{
	.reg .b32 	%r<4>;
	.reg .pred 	%p<2>;
"""


@pytest.mark.parametrize(
    "line",
    [
        "mul.hi.s32 %r1, %r2, %r3;",
        "ld.volatile.global.b32 %r1, [%r2];",
        "ld.global.gpu.weak.b32 %r1, [%r2];",
        "fence.acq_rel.sys;",
        "bar.sync 1;",
        "@%p1 bar.sync 0;",
        "bar.arrive 0, 64;",
        "bra $L__nowhere;",
        "add.s32 %r1, %r2, %r9;",
        ".local .b8 spilled[16];",
    ],
)
def test_what_is_not_known_is_refused(line):
    with pytest.raises(BadText):
        Program(f"{HEAD}\t{line}\n}}\n")


def test_text_is_read():
    text = parse(
        f"{HEAD}$L__BB0_1: // a loop\n"
        "\t@!%p1 ld.global.v2.b32 { %r1, %r2 }, [ %r3 + 16 ];\n\tret;\n}\n"
        "\t.file 1\n whatever"
    )
    load, end = text.instructions
    assert text.threads == 64
    assert text.registers["%p1"] == 1
    assert text.labels == {"$L__BB0_1": 0}
    assert (load.guard, load.negated) == ("%p1", True)
    assert load.operands[0] == ("%r1", "%r2")
    assert (load.operands[1].base, load.operands[1].offset) == ("%r3", 16)
    assert end.name == "ret"
