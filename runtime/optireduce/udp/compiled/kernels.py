"""Loops over datagrams and what is in them, which hold no lock of Python's and decide nothing.

They are compiled when this module is imported, for the types that are written above them and no
others, and kept in numba's cache. The cache sees changes of the functions' own file only, so what
may change elsewhere is passed to them. Every access to memory is within
an array whose bounds have been looked at: slices are clamped, indices checked in front of a loop.
A buffer is uint8, and a datagram in it a start and a size; words are little-endian.
"""

import numpy as np
from numba import boolean, float32, float64, int64, njit, uint8, uint64, void

from latecomer.runtime.optireduce.udp.compiled.siphash import BYTES, HOW, LONGS, WORDS, U, tags

# of the wire format; written here, since numba's cache sees changes of this file only
HEADER = 48
TAG_AT = 40
FLAGS_AT = 30
LAST = 1


@njit(void(uint8[::1], int64, int64, uint64), **HOW)
def put(row, at, count, value):
    """Write the lowest ``count`` bytes of a number."""
    for k in range(count):
        row[at + k] = uint8(value >> U(8 * k))


@njit(void(uint8[::1], BYTES), **HOW)
def copy(into, source):
    """All of ``source``, which is no longer. Assigning a slice is ten times as slow."""
    for i in range(len(source)):
        into[i] = source[i]


@njit(void(uint8[:, ::1], int64, int64, int64, int64, BYTES, LONGS), **HOW)
def head(rows, nbytes, payload, first, marks_from, common, passed):
    """Write the headers of a shard of ``nbytes``, from datagram ``first`` on, into ``rows``.

    common: what all begin with; passed: int64 [datagrams].
    """
    for i in range(len(rows)):
        row = rows[i]
        at = (first + i) * payload
        copy(row, common)
        put(row, 24, 4, U(at))
        put(row, 28, 2, U(min(payload, nbytes - at)))
        put(row, 36, 4, U(passed[i]))
        if first + i >= marks_from:
            row[FLAGS_AT] = LAST


@njit(void(uint8[:, ::1], BYTES, int64, int64, BYTES, LONGS, WORDS), **HOW)
def write(rows, source, first, marks_from, common, passed, state):
    """Fill ``rows``, uint8 [datagrams, bytes], as ``Codec.data`` does; common: see ``head``.

    passed: int64 [datagrams]; state: for tags, empty without.
    """
    count = len(rows)
    payload = rows.shape[1] - HEADER
    head(rows, len(source), payload, first, marks_from, common, passed)
    for i in range(count):
        row = rows[i]
        at = (first + i) * payload
        part = source[at : at + payload]
        copy(row[HEADER:], part)
        row[HEADER + len(part) :] = 0
    if len(state):
        size = rows.shape[1]
        made_tags = np.empty(count, np.uint64)
        tags(rows.reshape(-1), np.arange(count) * size, np.arange(count), size, state, made_tags)
        for i in range(count):
            put(rows[i], TAG_AT, 8, made_tags[i])


@njit(int64(int64, int64, int64, int64), **HOW)
def number_of(offset, length, nbytes, payload):
    """Of a datagram of a shard of ``nbytes``; -1 if it is not exactly one of these."""
    is_a_beginning = 0 <= offset < nbytes and offset % payload == 0
    if is_a_beginning and length == min(payload, nbytes - offset):
        return offset // payload
    return -1


def _average(own, pieces, arrived, first, rank, mean):
    """The mean (or sum) of what came of a run of datagrams, into ``own``, added rank by rank.

    own: [elements], this ``rank``'s; pieces: [peers, datagrams, elements of each], of which the run
    begins at ``first``; arrived: bool [peers, datagrams of the run].
    """
    peers = pieces.shape[0]
    elements = pieces.shape[2]
    total = np.empty(elements, own.dtype)
    one = own.dtype.type(1)  # keeps a quotient in this type
    for d in range(min(arrived.shape[1], pieces.shape[1] - first)):
        mine = own[d * elements : (d + 1) * elements]
        came = 1
        earlier = mine
        result = total[: len(mine)]
        for s in range(peers + 1):
            part = mine
            if s != rank:
                peer = s - (s > rank)
                part = pieces[peer, first + d]
                if not arrived[peer, d]:
                    part[:] = 0
                came += arrived[peer, d]
            if s == 0:
                earlier = part
            elif s == 1:
                for i in range(len(result)):
                    result[i] = earlier[i] + part[i]
            else:
                for i in range(len(result)):
                    result[i] += part[i]
        exact = came & (came - 1) == 0  # a power of two: to multiply gives the same bits, sooner
        factor = own.dtype.type((1 if mean else peers + 1) / came)
        if mean and not exact:
            for i in range(len(result)):
                mine[i] = result[i] / (one * came)
        else:
            for i in range(len(result)):
                mine[i] = result[i] * factor


@njit(int64(boolean[:, ::1], boolean[::1], int64, boolean, int64[:, ::1]), **HOW)
def runs(arrived, reduced, least, every, ends):
    """Find (and mark as reduced) runs of datagrams that may be reduced; how many.

    arrived: bool [peers, datagrams]; reduced: bool [datagrams]; least: datagrams in a run; every:
    whatever has not been reduced yet, else what has come of all; ends: int64 [runs, 2], filled
    with their first datagrams and those past their last ones.
    """
    count = 0
    begin = 0
    datagrams = len(reduced)
    for d in range(datagrams + 1):
        fits = d < datagrams and not reduced[d]
        if fits and not every:
            for s in range(arrived.shape[0]):
                fits &= arrived[s, d]
        if fits:
            continue
        if d - begin >= least and count < len(ends):
            ends[count, 0] = begin
            ends[count, 1] = d
            reduced[begin:d] = True
            count += 1
        begin = d + 1
    return count


FLOATS = float32, float64
SIGNATURES = [void(t[::1], t[:, :, ::1], boolean[:, :], int64, int64, boolean) for t in FLOATS]
average = njit(SIGNATURES, **HOW)(_average)
