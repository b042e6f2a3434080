"""SipHash-2-4 of several datagrams at once, one in each lane of a vector.

Source: Aumasson and Bernstein, "SipHash: a fast short-input PRF" (2012). LLVM makes of the vectors
what the processor has (AVX-512, AVX2, NEON); it would not find them in loops. Who changes this file
has to touch ``kernels.py``, ``intake.py`` and ``messages.py``, too.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import int64, njit, types, uint8, uint64, void
from numba.extending import intrinsic

U = np.uint64
TAG_AT = 40  # of the wire format
LANES = 8  # datagrams at a time
BITS = 64
TOGETHER = 32  # words that are mixed in one call
BYTES, LONGS, WORDS = (types.Array(t, 1, "C", readonly=True) for t in (uint8, int64, uint64))
# Python's other threads go on meanwhile; and what is compiled is kept, since that takes seconds.
HOW: dict[str, Any] = {"nogil": True, "cache": True}
# "somepseudorandomlygeneratedbytes", as the paper has it
INITIAL = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)


@intrinsic
def mix(context, state, message, count):
    """Two rounds for each of ``count`` words, at least one.

    state, message: addresses of uint64 [4, LANES] and [count, LANES].
    """
    number = ir.IntType(BITS)
    lanes = ir.VectorType(number, LANES)

    def generate(context, builder, signature, arguments):
        at_state, at_message = (builder.inttoptr(a, lanes.as_pointer()) for a in arguments[:2])

        def at(base, k):
            return builder.gep(base, [k if isinstance(k, ir.Value) else ir.Constant(number, k)])

        def rotated(value, left):
            high, low = (ir.Constant(lanes, [n] * LANES) for n in (left, BITS - left))
            return builder.or_(builder.shl(value, high), builder.lshr(value, low))

        def sip_round(a, b, c, d):
            a = builder.add(a, b)
            c = builder.add(c, d)
            b = builder.xor(rotated(b, 13), a)
            d = builder.xor(rotated(d, 16), c)
            a = builder.add(rotated(a, 32), d)
            c = builder.add(c, b)
            b = builder.xor(rotated(b, 17), c)
            d = builder.xor(rotated(d, 21), a)
            return a, b, rotated(c, 32), d

        state = [builder.load(at(at_state, k), align=8) for k in range(4)]
        before = builder.block
        loop, done = (builder.append_basic_block(name) for name in ("loop", "done"))
        builder.branch(loop)
        builder.position_at_end(loop)
        k = builder.phi(number)
        mixed = [builder.phi(lanes) for _ in range(4)]
        m = builder.load(at(at_message, k), align=8)
        a, b, c, d = sip_round(*sip_round(*mixed[:3], builder.xor(mixed[3], m)))
        after = (builder.xor(a, m), b, c, d)
        following = builder.add(k, ir.Constant(number, 1))
        for phi, first, later in zip(
            [k, *mixed], [ir.Constant(number, 0), *state], [following, *after], strict=True
        ):
            phi.add_incoming(first, before)
            phi.add_incoming(later, loop)
        builder.cbranch(builder.icmp_signed("<", following, arguments[2]), loop, done)
        builder.position_at_end(done)
        for word_number, value in enumerate(after):
            builder.store(value, at(at_state, word_number), align=8)
        return context.get_dummy_value()

    return types.void(types.uintp, types.uintp, types.int64), generate


@njit(uint64(BYTES, int64), **HOW)
def word(buffer, at):
    """The eight bytes from ``at`` on."""
    low = U(at)
    value = U(0)
    for k in range(8):
        value |= U(buffer[low + U(k)]) << U(8 * k)
    return value


@njit(void(BYTES, LONGS, LONGS, int64, WORDS, uint64[::1]), **HOW)
def tags(buffer, starts, chosen, size, state, found):
    """The tag of each chosen datagram of ``size`` bytes, a multiple of 8: of all but the tag.

    state: uint64 [4], with the key (see :func:`keyed`); found: gets them, at the places chosen.
    """
    v = np.empty((4, LANES), np.uint64)
    m = np.empty((TOGETHER, LANES), np.uint64)
    words = (size - 8) // 8
    for first in range(0, len(chosen), LANES):
        lanes = min(LANES, len(chosen) - first)
        for k in range(4):
            v[k, :] = state[k]
        for begin in range(0, words + 1, TOGETHER):
            count = min(TOGETHER, words - begin)
            for lane in range(lanes):
                start = starts[chosen[first + lane]] + 8 * begin
                before = TAG_AT // 8 - begin
                for k in range(min(before, count)):
                    m[k, lane] = word(buffer, start + 8 * k)
                for k in range(max(before, 0), count):
                    m[k, lane] = word(buffer, start + 8 + 8 * k)
            if count < TOGETHER:
                m[count, :] = U(size - 8) << U(56)  # the last word: the length, modulo 256
                count += 1
            mix(v.ctypes.data, m.ctypes.data, count)
        for lane in range(LANES):
            v[2, lane] ^= U(0xFF)  # the paper's finalization: this, and four rounds
        m[:2, :] = 0  # words of zeros leave nothing but their rounds: the last four
        mix(v.ctypes.data, m.ctypes.data, 2)
        for lane in range(lanes):
            found[chosen[first + lane]] = v[0, lane] ^ v[1, lane] ^ v[2, lane] ^ v[3, lane]


def keyed(key: bytes) -> np.ndarray:
    """The state, uint64 [4], with a key of 16 bytes."""
    return np.array(INITIAL, np.uint64) ^ np.tile(np.frombuffer(key, np.uint64), 2)
