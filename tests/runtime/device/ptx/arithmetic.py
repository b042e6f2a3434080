"""What each instruction on registers computes, bit by bit.

A register holds one number for all threads of a group where they are known to agree, a Python
``int``, and otherwise an unsigned numpy array with an element for each thread; predicates are
``bool`` or arrays of these. Each function here takes both: what is written for arrays wraps in
their width by itself, ``& mask`` makes it so for numbers.

:func:`operation` finds the function for a name. ``tests/runtime/device/test_ptx_arithmetic.py``
holds each name against the PTX ISA (the sections are below) and torch.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.runtime.device.ptx.parser import BadText

UNSIGNED = {1: np.bool_, 16: np.uint16, 32: np.uint32, 64: np.uint64}
SIGNED = {16: np.int16, 32: np.int32, 64: np.int64}

Value = int | np.ndarray
Function = Callable[..., Value]


def mask(bits: int) -> int:
    """All bits of a register."""
    return (1 << bits) - 1


def choose(condition: Value, where: Value, otherwise: Value, bits: int) -> Value:
    """``where`` for threads of which the condition holds."""
    if not isinstance(condition, np.ndarray):
        return where if condition else otherwise
    kind = UNSIGNED[bits]
    return np.where(condition, _array(where, kind), _array(otherwise, kind))


def _array(value: Value, kind: type) -> np.ndarray:
    return value if isinstance(value, np.ndarray) else np.asarray(value, kind)


def _resized(value: Value, bits: int) -> Value:
    """Zero-extended or truncated."""
    if isinstance(value, np.ndarray):
        return value.astype(UNSIGNED[bits])
    return value & mask(bits)


def _sign_extended(value: Value, bits: int, to: int) -> Value:
    if isinstance(value, np.ndarray):
        return value.view(SIGNED[bits]).astype(SIGNED[to]).view(UNSIGNED[to])
    sign = 1 << (bits - 1)
    return ((value ^ sign) - sign) & mask(to)


# Integers: PTX ISA 9.7.1 (arithmetic), 9.7.6 (comparison and selection), 9.7.8 (logic and shifts).


def _add(bits: int) -> Function:
    ones = mask(bits)
    return lambda a, b: (a + b) & ones


def _sub(bits: int) -> Function:
    ones = mask(bits)
    return lambda a, b: (a - b) & ones


def _mul_low(bits: int) -> Function:
    ones = mask(bits)
    return lambda a, b: (a * b) & ones


def _mad_low(bits: int) -> Function:
    ones = mask(bits)
    return lambda a, b, c: (a * b + c) & ones


def _mul_wide_u32(a: Value, b: Value) -> Value:
    return (_resized(a, 64) * _resized(b, 64)) & mask(64)


def _mad_wide_s32(a: Value, b: Value, c: Value) -> Value:
    product = _sign_extended(a, 32, 64) * _sign_extended(b, 32, 64) & mask(64)
    return (product + c) & mask(64)


def _less(bits: int, signed: bool) -> Function:
    """Signed numbers are in the order of unsigned ones, once their sign bit is turned."""
    if not signed:
        return lambda a, b: a < b
    sign = 1 << (bits - 1)
    return lambda a, b: (a ^ sign) < (b ^ sign)


def _smaller(bits: int) -> Function:
    less = _less(bits, True)
    return lambda a, b: choose(less(a, b), a, b, bits)


def _larger(bits: int) -> Function:
    less = _less(bits, True)
    return lambda a, b: choose(less(a, b), b, a, bits)


def _not_pred(a: Value) -> Value:
    return ~a if isinstance(a, np.ndarray) else not a


def _shift_left(bits: int) -> Function:
    """9.7.8.8: shifts by the width or more leave nothing."""

    def shifted(a: Value, b: Value) -> Value:
        assert isinstance(b, int)  # our builds shift by constants
        return (a << b) & mask(bits) if b < bits else a & 0

    return shifted


def _shift_right_u32(a: Value, b: Value) -> Value:
    assert isinstance(b, int)
    return a >> b if b < 32 else a & 0


# Floating point: 9.7.3 (single and double), 9.7.4 (half), 9.7.9.21 (cvt). Subnormal numbers are
# supported by all of these: none of them has .ftz. Rounded to nearest, ties to even.


def _floats(value: Value, bits: int) -> np.ndarray:
    """The IEEE 754 numbers that bits stand for."""
    kind = {16: np.float16, 32: np.float32, 64: np.float64}[bits]
    return np.atleast_1d(_array(value, UNSIGNED[bits])).view(kind)


def _float_op(bits: int, calculate: Callable) -> Function:
    def applied(a: Value, b: Value) -> Value:
        with np.errstate(all="ignore"):
            result = calculate(_floats(a, bits), _floats(b, bits)).view(UNSIGNED[bits])
        return _unwrapped(result, a, b)

    return applied


def _unwrapped(result: np.ndarray, *sources: Value) -> Value:
    """One number, where all sources were one."""
    return result if any(isinstance(s, np.ndarray) for s in sources) else int(result[0])


def _pairs(half_op: Function) -> Function:
    """The same on both halves of 32 bits (9.7.4: f16x2, bf16x2)."""

    def applied(*values: Value) -> Value:
        halves = [np.atleast_1d(_array(v, np.uint32)) for v in values]
        low = half_op(*((h & 0xFFFF).astype(np.uint16) for h in halves))
        high = half_op(*((h >> 16).astype(np.uint16) for h in halves))
        return _unwrapped(low.astype(np.uint32) | high.astype(np.uint32) << 16, *values)

    return applied


def bf16_to_f32(value: Value) -> Value:
    """The upper half of a single precision number (5.2.3)."""
    return _resized(value, 32) << 16


def f32_to_bf16(value: Value) -> Value:
    """9.7.9.21, .rn: to nearest, ties to even; all NaN become 0x7FFF."""
    x = np.atleast_1d(_array(value, np.uint32))
    rounded = ((x.astype(np.uint64) + 0x7FFF + ((x >> 16) & 1)) >> 16).astype(np.uint16)
    is_nan = (x & 0x7FFFFFFF) > 0x7F800000
    return _unwrapped(np.where(is_nan, np.uint16(0x7FFF), rounded), value)


def f16_to_f32(value: Value) -> Value:
    """Exact."""
    return _unwrapped(_floats(value, 16).astype(np.float32).view(np.uint32), value)


def f32_to_f16(value: Value) -> Value:
    """9.7.9.21, .rn."""
    with np.errstate(all="ignore"):
        return _unwrapped(_floats(value, 32).astype(np.float16).view(np.uint16), value)


def _add_bf16(a: Value, b: Value) -> Value:
    """Rounded twice is rounded once: 24 bits are two more than twice bfloat16's 8 (Figueroa)."""
    return f32_to_bf16(_float_op(32, np.add)(bf16_to_f32(a), bf16_to_f32(b)))


def _fma_bf16(a: Value, b: Value, c: Value) -> Value:
    """9.7.4.4: no loss in between. The product of two is exact in double precision.

    What the sum loses there decides its last bit (rounding to odd), so the roundings that follow
    end where one would.
    """
    with np.errstate(all="ignore"):
        x, y, z = (_floats(bf16_to_f32(v), 32).astype(np.float64) for v in (a, b, c))
        product = x * y
        total = product + z
        lost = _lost(product, z, total)
        total = _odd(total, lost)
        single = total.astype(np.float32)
        single = _odd(single, total - single.astype(np.float64))
    return _unwrapped(np.atleast_1d(f32_to_bf16(single.view(np.uint32))), a, b, c)


def _lost(a: np.ndarray, b: np.ndarray, total: np.ndarray) -> np.ndarray:
    """Exactly what rounding took from a + b (Knuth's two-sum)."""
    of_b = total - a
    of_a = total - of_b
    return (a - of_a) + (b - of_b)


def _odd(value: np.ndarray, lost: np.ndarray) -> np.ndarray:
    """Rounded to odd: an inexact value that is even gives way to its neighbour on the other side.

    One that was rounded to infinity is the largest number.
    """
    kind = {np.dtype(np.float64): np.uint64, np.dtype(np.float32): np.uint32}[value.dtype]
    is_even = value.view(kind) & kind(1) == 0
    towards = np.where(lost > 0, np.inf, -np.inf).astype(value.dtype)
    inexact = (lost != 0) & ~np.isnan(lost)
    return np.where(is_even & inexact, np.nextafter(value, towards), value)


def _f32_of_s32(value: Value) -> Value:
    x = np.atleast_1d(_array(value, np.uint32)).view(np.int32)
    return _unwrapped(x.astype(np.float32).view(np.uint32), value)


def _f64_of_s32(value: Value) -> Value:
    x = np.atleast_1d(_array(value, np.uint32)).view(np.int32)
    return _unwrapped(x.astype(np.float64).view(np.uint64), value)


def _packed(narrow: Function) -> Function:
    """9.7.9.21: of two sources the first goes into the upper half."""

    def applied(a: Value, b: Value) -> Value:
        high = np.atleast_1d(narrow(np.atleast_1d(_array(a, np.uint32)))).astype(np.uint32)
        low = np.atleast_1d(narrow(np.atleast_1d(_array(b, np.uint32)))).astype(np.uint32)
        return _unwrapped(high << 16 | low, a, b)

    return applied


def _same(a: Value) -> Value:
    return a


def _table() -> dict[str, Function]:
    """Every instruction on registers that our builds contain."""
    table: dict[str, Function] = {
        "mul.wide.u32": _mul_wide_u32,
        "mad.wide.s32": _mad_wide_s32,
        "and.pred": lambda a, b: a & b,
        "or.pred": lambda a, b: a | b,
        "not.pred": _not_pred,
        "mov.pred": lambda a: a if isinstance(a, np.ndarray) else bool(a),
        "shr.u32": _shift_right_u32,
        "selp.b32": lambda a, b, c: choose(c, a, b, 32),
        "cvt.s64.s32": lambda a: _sign_extended(a, 32, 64),
        "cvt.u64.u32": lambda a: _resized(a, 64),
        "cvt.u32.u64": lambda a: _resized(a, 32),
        "cvt.f32.bf16": bf16_to_f32,
        "cvt.f32.f16": f16_to_f32,
        "cvt.rn.bf16.f32": f32_to_bf16,
        "cvt.rn.f16.f32": f32_to_f16,
        "cvt.rn.bf16x2.f32": _packed(f32_to_bf16),
        "cvt.rn.f16x2.f32": _packed(f32_to_f16),
        "cvt.rn.f32.s32": _f32_of_s32,
        "cvt.rn.f64.s32": _f64_of_s32,
        "add.f16": _float_op(16, np.add),
        "add.f16x2": _pairs(_float_op(16, np.add)),
        "add.bf16": _add_bf16,
        "add.bf16x2": _pairs(_add_bf16),
        "fma.rn.bf16": _fma_bf16,
        "fma.rn.bf16x2": _pairs(_fma_bf16),
        "setp.lt.u64": _less(64, False),
        "min.s64": _smaller(64),
        "max.s64": _larger(64),
    }
    for bits in (32, 64):
        table |= {
            f"add.s{bits}": _add(bits),
            f"sub.s{bits}": _sub(bits),
            f"mul.lo.s{bits}": _mul_low(bits),
            f"mad.lo.s{bits}": _mad_low(bits),
            f"and.b{bits}": lambda a, b: a & b,
            f"or.b{bits}": lambda a, b: a | b,
            f"shl.b{bits}": _shift_left(bits),
            f"setp.eq.b{bits}": lambda a, b: a == b,
            f"setp.ne.b{bits}": lambda a, b: a != b,
            f"add.f{bits}": _float_op(bits, np.add),
            f"div.rn.f{bits}": _float_op(bits, np.divide),
        }
        less = _less(bits, True)
        table |= {
            f"setp.lt.s{bits}": less,
            f"setp.gt.s{bits}": lambda a, b, less=less: less(b, a),
            f"setp.ge.s{bits}": lambda a, b, less=less: _not_pred(less(a, b)),
            f"setp.le.s{bits}": lambda a, b, less=less: _not_pred(less(b, a)),
        }
    for name in ("b16", "b32", "b64", "u16", "u32", "u64"):
        table[f"mov.{name}"] = _same
    return table


TABLE = _table()


def operation(name: str) -> Function:
    """What an instruction computes; BadText for one that is not known."""
    if name not in TABLE:
        raise BadText(f"instruction {name}")
    return TABLE[name]
