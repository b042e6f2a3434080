"""All that is compiled: loops over datagrams, which hold no lock of Python's and decide nothing.

They are compiled when this module is imported, for the types that are written above them and no
others, and kept in numba's cache. The cache sees changes of the functions' own file only, so they
are in one file, and what may change elsewhere is passed to them. Every access to memory is within
an array whose bounds have been looked at: slices are clamped, indices checked in front of a loop.
A buffer is uint8, and a datagram in it a start and a size; words are little-endian.
"""

import numpy as np
from numba import boolean, float32, float64, int64, njit, types, uint8, uint64, void

from runtime.optireduce.udp.compiled.blake2b import BYTES, HOW, LONGS, WORDS, U, tags, word

HEADER, TAG_AT, FLAGS_AT, LAST, DATA = 48, 40, 30, 1, 1  # of the wire format
MALFORMED, FOREIGN, MISDIRECTED, FORGED = range(4)
FIRST_WORD, OPERATION, AT, COUNT, PLACE, REST = range(6)  # columns of a table of groups
SEARCHED = 64  # groups that a datagram is compared with; more of them are not joined


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


@njit(int64(BYTES, LONGS, LONGS, int64[::1], WORDS, int64[::1]), **HOW)
def sealed(buffer, starts, sizes, chosen, state, dropped):
    """Keep, at the front of ``chosen``, those whose tag is right; how many."""
    found, kept = np.empty(len(starts), np.uint64), 0
    low, high = HEADER, HEADER
    for i in chosen:
        high = max(high, sizes[i])
    of_size = np.empty(len(chosen), np.int64)
    while True:  # there are at most two sizes
        count = 0
        for i in chosen:
            if sizes[i] == low:
                of_size[count] = i
                count += 1
        tags(buffer, starts, of_size[:count], low, state, found)
        if low == high:
            break
        low = high
    for i in chosen:
        if found[i] == word(buffer, starts[i] + TAG_AT):
            chosen[kept] = i
            kept += 1
        else:
            dropped[FORGED] += 1
    return kept


CHECK = int64(BYTES, LONGS, LONGS, WORDS, WORDS, int64[:, ::1], uint64[:, ::1], int64[::1])


@njit(CHECK, **HOW)
def check(buffer, starts, sizes, about, state, each, groups, dropped):
    """Refuse what is not ours, and group the rest by first word and operation; how many groups.

    A group has its place by the first of its datagrams, which stay in order. about: the first word
    of datagrams to this rank (without kind and sender), session, rank, ranks, bytes of a datagram;
    state: for tags, empty without; each: int64 [5, datagrams], filled group by group with the start
    and size of the payload, offset, length and flags; groups: uint64 [datagrams, 6], filled with
    what its members have in common, where they begin, how many they are, and the last one's fourth
    and fifth word; dropped: int64 [4], counts.
    """
    fixed, session, rank, ranks = about[0], about[1], int64(about[2]), int64(about[3])
    whole, good, count = int64(about[4]), np.empty(len(starts), np.int64), 0
    for i in range(len(starts)):
        start, size = starts[i], sizes[i]
        fits = start >= 0 and start + size <= len(buffer) and size in (HEADER, whole)
        first = word(buffer, start) if fits else U(0)
        if not fits or (first ^ fixed) & U(0xFFFFFF):
            dropped[MALFORMED] += 1
        elif word(buffer, start + 8) != session:
            dropped[FOREIGN] += 1
        elif (first ^ fixed) >> U(48):
            dropped[MISDIRECTED] += 1
        else:
            good[count] = i
            count += 1
    if len(state):
        count = sealed(buffer, starts, sizes, good[:count], state, dropped)
    found, latest, of = 0, 0, np.full(count, -1, np.int64)
    for j in range(count):
        start, size = starts[good[j]], sizes[good[j]]
        first, operation = word(buffer, start), word(buffer, start + 16)
        kind, sender = int64(first >> U(24) & U(0xFF)), int64(first >> U(32) & U(0xFFFF))
        if not 2 <= kind <= 7 or size != (whole if kind >> 1 == DATA else HEADER):
            dropped[MALFORMED] += 1
            continue
        if sender >= ranks or sender == rank:
            dropped[MISDIRECTED] += 1
            continue
        g, searched = latest, min(found, SEARCHED)
        if not found or groups[g, FIRST_WORD] != first or groups[g, OPERATION] != operation:
            g = 0
            while g < searched and (
                groups[g, FIRST_WORD] != first or groups[g, OPERATION] != operation
            ):
                g += 1
            if g == searched:
                g, found = found, found + 1
                groups[g, FIRST_WORD], groups[g, OPERATION], groups[g, COUNT] = first, operation, 0
        latest = of[j] = g
        groups[g, COUNT] += U(1)
        groups[g, PLACE], groups[g, REST] = word(buffer, start + 24), word(buffer, start + 32)
    at = np.empty(found, np.int64)
    total = 0
    for g in range(found):
        groups[g, AT] = at[g] = total
        total += int64(groups[g, COUNT])
    for j in range(count):
        if of[j] >= 0:
            start = starts[good[j]]
            to, place = at[of[j]], word(buffer, start + 24)
            at[of[j]] += 1
            each[0, to], each[1, to] = start + HEADER, sizes[good[j]] - HEADER
            each[2, to] = int64(place & U(0xFFFFFFFF))
            each[3, to] = int64(place >> U(32) & U(0xFFFF))
            each[4, to] = int64(place >> U(48) & U(0xFF))
    return found


@njit(void(uint8[:, ::1], int64, int64, int64, int64, BYTES, LONGS), **HOW)
def head(rows, nbytes, payload, first, marks_from, common, passed):
    """Write the headers of a shard of ``nbytes``, from datagram ``first`` on, into ``rows``.

    common: what all begin with; passed: int64 [datagrams].
    """
    for i in range(len(rows)):
        row, at = rows[i], (first + i) * payload
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
    count, payload = len(rows), rows.shape[1] - HEADER
    head(rows, len(source), payload, first, marks_from, common, passed)
    for i in range(count):
        row, at = rows[i], (first + i) * payload
        part = source[at : at + payload]
        copy(row[HEADER:], part)
        row[HEADER + len(part) :] = 0
    if len(state):
        size, found = rows.shape[1], np.empty(count, np.uint64)
        tags(rows.reshape(-1), np.arange(count) * size, np.arange(count), size, state, found)
        for i in range(count):
            put(rows[i], TAG_AT, 8, found[i])


@njit(types.UniTuple(int64, 2)(boolean[::1], int64, int64, LONGS, LONGS, int64[:, ::1]), **HOW)
def mark(arrived, nbytes, payload, offsets, lengths, chosen):
    """Mark the new among datagrams of a shard of ``nbytes`` as arrived: (how many, how many right).

    chosen: int64 [2, datagrams], filled with their places in the batch and their numbers.
    """
    new = right = 0
    for i in range(len(offsets)):
        number = offsets[i] // payload
        if offsets[i] < 0 or offsets[i] % payload or number >= len(arrived):
            continue
        if lengths[i] != min(payload, nbytes - offsets[i]):
            continue
        right += 1
        if not arrived[number]:
            arrived[number] = True
            chosen[0, new], chosen[1, new] = i, number
            new += 1
    return new, right


@njit(void(uint8[::1], int64, BYTES, LONGS, LONGS), **HOW)
def place(into, payload, buffer, starts, numbers):
    """Copy payloads from their starts to where their numbers say; the last one in part."""
    for i in range(len(numbers)):
        to, start = numbers[i] * payload, starts[i]
        size = min(payload, len(into) - to)
        if to >= 0 and start >= 0 and 0 < size <= len(buffer) - start:
            copy(into[to : to + size], buffer[start : start + size])


def _average(own, pieces, arrived, first, rank, mean):
    """The mean (or sum) of what came of a run of datagrams, into ``own``, added rank by rank.

    own: [elements], this ``rank``'s; pieces: [peers, datagrams, elements of each], of which the run
    begins at ``first``; arrived: bool [peers, datagrams of the run].
    """
    peers, each = pieces.shape[0], pieces.shape[2]
    total, one = np.empty(each, own.dtype), own.dtype.type(1)
    for d in range(min(arrived.shape[1], pieces.shape[1] - first)):
        mine, came = own[d * each : (d + 1) * each], 1
        earlier, result = mine, total[: len(mine)]
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


FLOATS = float32, float64
SIGNATURES = [void(t[::1], t[:, :, ::1], boolean[:, ::1], int64, int64, boolean) for t in FLOATS]
average = njit(SIGNATURES, **HOW)(_average)
