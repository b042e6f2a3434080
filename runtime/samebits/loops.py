"""The conversions as loops that numba compiles; each reads and writes memory once.

All arrays are flat and contiguous. ``starts``, int64 [blocks + 1], is where blocks begin; block b
is ``starts[b]:starts[b + 1]``. Floats come twice, as numbers and as their bit patterns, which are
the same memory: patterns without their sign are in the order of magnitudes, inf and nan above all.
"""

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def _greatest(patterns, sign_off):
    """The greatest pattern of a block, without its sign."""
    greatest = patterns.dtype.type(0)
    for i in range(patterns.size):
        greatest = max(greatest, patterns[i] & sign_off)
    return greatest


@njit(nogil=True, cache=True)
def to_integers(
    floats, patterns, starts, scales, word_scales, special, refused, adds, integers, words, number
):
    """Each x as ``rint(x * scale)``, and the words, put down or added to what is there.

    special: three patterns: without sign, of inf, of the smallest normal number. refused: the word
    of a block that does not fit, of which nothing else is taken. number: one pattern of scratch
    memory, and the same memory as a float.
    """
    pattern, value = number
    sign_off, infinity, smallest = special
    for b in range(starts.size - 1):
        xs = floats[starts[b] : starts[b + 1]]
        sums = integers[starts[b] : starts[b + 1]]
        greatest = _greatest(patterns[starts[b] : starts[b + 1]], sign_off)
        pattern[0] = greatest
        word = words.dtype.type(0)
        if greatest >= infinity:
            word = words.dtype.type(refused)
        elif greatest >= smallest:
            scaled = np.ceil(np.float64(value[0]) * word_scales[b])
            word = words.dtype.type(min(np.float64(refused), scaled))

        if not adds:
            words[b] = word
        else:
            words[b] += word
        scale = floats.dtype.type(scales[b])
        if word >= refused:
            if not adds:
                sums[:] = 0
        elif not adds:
            for i in range(xs.size):
                sums[i] = integers.dtype.type(np.rint(xs[i] * scale))
        else:
            for i in range(xs.size):
                sums[i] += integers.dtype.type(np.rint(xs[i] * scale))


@njit(nogil=True, cache=True)
def to_magnitudes(patterns, starts, special, adds, greatest):
    """The greatest pattern of each block without its sign, or of it and what is there.

    What is smaller than a normal number counts as 0, nan as inf.
    """
    sign_off, infinity, smallest = special
    for b in range(starts.size - 1):
        top = _greatest(patterns[starts[b] : starts[b + 1]], sign_off)
        if top >= infinity:
            top = infinity
        elif top < smallest:
            top = patterns.dtype.type(0)
        greatest[b] = max(greatest[b], top) if adds else top


@njit(nogil=True, cache=True)
def to_wide_integers(floats, starts, scales, adds, integers):
    """Each x as ``rint(x * scale)`` in 64 bits; nothing of a block whose scale is 0."""
    for b in range(starts.size - 1):
        xs = floats[starts[b] : starts[b + 1]]
        sums = integers[starts[b] : starts[b + 1]]
        scale = scales[b]
        if not adds:
            sums[:] = 0
        if scale != 0:
            for i in range(xs.size):
                sums[i] += np.int64(np.rint(np.float64(xs[i]) * scale))


@njit(nogil=True, cache=True)
def to_floats(integers, starts, factors, floats):
    """Each sum times the factor of its block, in float64, and rounded once to the format."""
    for b in range(starts.size - 1):
        sums = integers[starts[b] : starts[b + 1]]
        xs = floats[starts[b] : starts[b + 1]]
        factor = factors[b]
        for i in range(xs.size):
            xs[i] = floats.dtype.type(np.float64(sums[i]) * factor)
