"""BLAKE2b with a key, of several datagrams at once, one in each lane of a vector.

Source: RFC 7693. LLVM makes of the vectors what the processor has (AVX-512, AVX2, NEON); it would
not find them in loops. Who changes this file has to touch ``kernels.py`` and ``intake.py``, too.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import int64, njit, types, uint8, uint64, void
from numba.extending import intrinsic

U = np.uint64
TAG_AT, TAG_BYTES, BLOCK, LANES, BITS, ROUNDS = 40, 8, 128, 8, 64, 12
BYTES, LONGS, WORDS = (types.Array(t, 1, "C", readonly=True) for t in (uint8, int64, uint64))
HOW: dict[str, Any] = {"nogil": True, "cache": True}
IV = (
    *(0x6A09E667F3BCC908, 0xBB67AE8584CAA73B, 0x3C6EF372FE94F82B, 0xA54FF53A5F1D36F1),
    *(0x510E527FADE682D1, 0x9B05688C2B3E6C1F, 0x1F83D9ABFB41BD6B, 0x5BE0CD19137E2179),
)
SIGMA = (
    *("0123456789ABCDEF", "EA489FD61C02B753", "B8C052FDAE367194", "7931DCBE265A40F8"),
    *("905724AFE1BC683D", "2C6A0B834D75FE19", "C51FED4A0763928B", "DB7EC13950F4862A"),
    *("6FE9B308C2D714A5", "A2847615FB9E3CD0"),
)
MIXED = ("048C", "159D", "26AE", "37BF", "05AF", "16BC", "278D", "349E")  # columns, diagonals


@intrinsic
def compress(context, state, message, done, last):
    """The compression function F, on the addresses of uint64 [8, LANES] and [16, LANES].

    done: bytes so far; last: all ones for the last block, else 0.
    """
    word = ir.IntType(BITS)
    lanes = ir.VectorType(word, LANES)

    def generate(context, builder, signature, arguments):
        at_h, at_m = (builder.inttoptr(a, lanes.as_pointer()) for a in arguments[:2])

        def at(base, k):
            return builder.gep(base, [ir.Constant(word, k)])

        def load(base, k):
            return builder.load(at(base, k), align=8)

        def all_lanes(value):
            vector = ir.Constant(lanes, ir.Undefined)
            for lane in range(LANES):
                vector = builder.insert_element(vector, value, ir.Constant(ir.IntType(32), lane))
            return vector

        def rotated(value, right):
            low, high = (ir.Constant(lanes, [n] * LANES) for n in (right, BITS - right))
            return builder.or_(builder.lshr(value, low), builder.shl(value, high))

        h, m = [load(at_h, k) for k in range(8)], [load(at_m, k) for k in range(16)]
        v = [*h, *(ir.Constant(lanes, [number] * LANES) for number in IV)]
        for k, argument in ((12, arguments[2]), (14, arguments[3])):
            v[k] = builder.xor(v[k], all_lanes(argument))
        for number in range(ROUNDS):
            order = [int(digit, 16) for digit in SIGMA[number % len(SIGMA)]]
            for g, places in enumerate(MIXED):
                a, b, c, d = (int(digit, 16) for digit in places)
                for word_at, first, second in ((0, 32, 24), (1, 16, 63)):
                    v[a] = builder.add(builder.add(v[a], v[b]), m[order[2 * g + word_at]])
                    v[d] = rotated(builder.xor(v[d], v[a]), first)
                    v[c] = builder.add(v[c], v[d])
                    v[b] = rotated(builder.xor(v[b], v[c]), second)
        for k in range(8):
            builder.store(builder.xor(builder.xor(h[k], v[k]), v[k + 8]), at(at_h, k), align=8)
        return context.get_dummy_value()

    return types.void(types.uintp, types.uintp, types.uint64, types.uint64), generate


@njit(uint64(BYTES, int64), **HOW)
def word(buffer, at):
    """The eight bytes from ``at`` on."""
    low, value = U(at), U(0)
    for k in range(8):
        value |= U(buffer[low + U(k)]) << U(8 * k)
    return value


@njit(void(BYTES, LONGS, LONGS, int64, WORDS, uint64[::1]), **HOW)
def tags(buffer, starts, chosen, size, state, found):
    """BLAKE2b of each chosen datagram of ``size`` bytes but its tag, so many at a time.

    state: uint64 [8], after the block with the key. Source: RFC 7693.
    """
    nbytes = size - 8
    blocks = (nbytes + BLOCK - 1) // BLOCK
    h, m = np.empty((8, LANES), np.uint64), np.empty((16, LANES), np.uint64)
    for first in range(0, len(chosen), LANES):
        lanes = min(LANES, len(chosen) - first)
        for k in range(8):
            h[k, :] = state[k]
        for block in range(blocks):
            begin = block * BLOCK
            m[:, :] = 0
            for lane in range(lanes):
                start = starts[chosen[first + lane]]
                for k in range(min(16, (nbytes - begin) // 8)):
                    at = begin + 8 * k
                    m[k, lane] = word(buffer, start + at + (8 if at >= TAG_AT else 0))
            is_last = block == blocks - 1
            done = U(BLOCK + (nbytes if is_last else begin + BLOCK))
            compress(h.ctypes.data, m.ctypes.data, done, U(0xFFFFFFFFFFFFFFFF) if is_last else U(0))
        for lane in range(lanes):
            found[chosen[first + lane]] = h[0, lane]


@njit(uint64[::1](uint64[::1], WORDS), **HOW)
def keyed(initial, key):
    """The state of BLAKE2b, uint64 [8], after the block with the key, uint64 [16]."""
    h, m = np.empty((8, LANES), np.uint64), np.empty((16, LANES), np.uint64)
    for k in range(8):
        h[k, :] = initial[k]
    for k in range(16):
        m[k, :] = key[k]
    compress(h.ctypes.data, m.ctypes.data, U(BLOCK), U(0))
    return h[:, 0].copy()
