"""What one look at the socket found, in one call: checked, sorted, and placed where it is expected.

Compiled as ``kernels`` is. A table tells which data is expected: a row for each sender of a stage
that is open here, with the addresses of its bitmap and of where its bytes belong. Data of such a
row is placed when it is read, if its place is right and nothing has come for it yet; of all else
only where it lies is told. Addresses are of arrays that their owner keeps alive while the row is
there; nothing is written beyond the sizes in the row, whatever a datagram says.
"""

from typing import Any

import numba
import numpy as np
from numba import int64, njit, types, uint64, uintp, void
from numba.extending import intrinsic

from latecomer.runtime.optireduce.udp.compiled.kernels import copy, number_of
from latecomer.runtime.optireduce.udp.compiled.siphash import (
    BYTES,
    HOW,
    LONGS,
    WORDS,
    U,
    tags,
    word,
)

# of the wire format; written here, since numba's cache sees changes of this file only
HEADER = 48
TAG_AT = 40
LAST = 1
DATA = 1
MALFORMED, FOREIGN, MISDIRECTED, FORGED = range(4)
FIRST_WORD, OPERATION, BITMAP, COUNT, INTO, NBYTES = range(6)  # columns of the table
AT, NUMBER, PLACE, REST, ROW, RIGHT, FRESH, MARKED = range(2, 10)  # of groups, after the first two
NO_ROW = 2**64 - 1  # of a group that is in no row of the table
SEARCHED = 64  # groups that a datagram is compared with; more of them are not joined
carray: Any = numba.carray  # type: ignore[attr-defined]


@intrinsic
def pointer(context, address):
    """An address as a pointer to bytes."""

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.uint8)(types.uintp), generate


@njit(int64(BYTES, LONGS, LONGS, int64[::1], WORDS, int64[::1]), **HOW)
def sealed(buffer, starts, sizes, chosen, state, dropped):
    """Keep, at the front of ``chosen``, those whose tag is right; how many."""
    right_tags = np.empty(len(starts), np.uint64)
    sealed_count = 0
    low = HEADER
    high = HEADER
    for i in chosen:
        high = max(high, sizes[i])
    of_size = np.empty(len(chosen), np.int64)
    while True:  # there are at most two sizes
        count = 0
        for i in chosen:
            if sizes[i] == low:
                of_size[count] = i
                count += 1
        tags(buffer, starts, of_size[:count], low, state, right_tags)
        if low == high:
            break
        low = high
    for i in chosen:
        if right_tags[i] == word(buffer, starts[i] + TAG_AT):
            chosen[sealed_count] = i
            sealed_count += 1
        else:
            dropped[FORGED] += 1
    return sealed_count


@njit(int64(uint64[:, ::1], uint64, uint64), **HOW)
def row_of(table, first, operation):
    """The row for a first word and operation, or -1."""
    for row in range(len(table)):
        if table[row, OPERATION] == operation and table[row, FIRST_WORD] == first:
            return row
    return -1


@njit(int64(uint64[::1], BYTES, int64, int64, uint64), **HOW)
def place(row, buffer, start, payload, about):
    """Place one datagram, which lies in the buffer from ``start`` on: 0 if wrong, 1 again, 2 new.

    about: its fourth word, with offset and length; payload: bytes in a datagram.
    """
    offset = int64(about & U(0xFFFFFFFF))
    length = int64(about >> U(32) & U(0xFFFF))
    count = int64(row[COUNT])
    nbytes = int64(row[NBYTES])
    number = number_of(offset, length, nbytes, payload)
    if not 0 <= number < count or start < 0 or start + HEADER + length > len(buffer):
        return 0
    arrived = carray(pointer(uintp(row[BITMAP])), (count,))
    if arrived[number]:
        return 1
    arrived[number] = 1
    into = carray(pointer(uintp(row[INTO])), (nbytes,))[offset : offset + length]
    copy(into, buffer[start + HEADER : start + HEADER + length])
    return 2


@njit(int64(BYTES, LONGS, LONGS, WORDS, WORDS, int64[::1], int64[::1]), **HOW)
def ours(buffer, starts, sizes, about, state, good, dropped):
    """Put, at the front of ``good``, those of this session and to this rank; how many.

    about, state, dropped: see :func:`take`.
    """
    fixed = about[0]
    session = about[1]
    datagram_bytes = int64(about[4])
    count = 0
    for i in range(len(starts)):
        start = starts[i]
        size = sizes[i]
        fits = start >= 0 and start + size <= len(buffer) and size in (HEADER, datagram_bytes)
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
    return count


@njit(void(BYTES, LONGS, LONGS, LONGS, LONGS, uint64[:, ::1], int64, int64[:, ::1]), **HOW)
def sort(buffer, starts, sizes, good, group_of_good, groups, group_count, each):
    """Tell in ``each``, group by group, where those lie that were not placed.

    group_of_good: the group of each in ``good``, or -1; the others: see :func:`take`.
    """
    at = np.empty(group_count, np.int64)
    total = 0
    for g in range(group_count):
        groups[g, AT] = total
        at[g] = total
        total += int64(groups[g, NUMBER]) if groups[g, ROW] == U(NO_ROW) else 0
    for j in range(len(good)):
        g = group_of_good[j]
        if g >= 0:
            start = starts[good[j]]
            to = at[g]
            about_it = word(buffer, start + 24)
            at[g] += 1
            each[0, to] = start + HEADER
            each[1, to] = sizes[good[j]] - HEADER
            each[2, to] = int64(about_it & U(0xFFFFFFFF))
            each[3, to] = int64(about_it >> U(32) & U(0xFFFF))
            each[4, to] = int64(about_it >> U(48) & U(0xFF))


@njit(int64(uint64[:, ::1], int64, int64, uint64, uint64), **HOW)
def group_of(groups, group_count, latest, first, operation):
    """The group of a first word and operation, or the next one, after ``group_count`` of them."""
    if (
        group_count
        and groups[latest, FIRST_WORD] == first
        and groups[latest, OPERATION] == operation
    ):
        return latest
    for g in range(min(group_count, SEARCHED)):
        if groups[g, FIRST_WORD] == first and groups[g, OPERATION] == operation:
            return g
    return group_count


TAKE = types.UniTuple(int64, 2)(
    *(BYTES, LONGS, LONGS, WORDS, WORDS),
    *(uint64[:, ::1], int64[:, ::1], uint64[:, ::1], int64[::1]),
)


@njit(TAKE, **HOW)
def take(buffer, starts, sizes, about, state, table, each, groups, dropped):
    """Refuse what is not ours, place what is expected, sort the rest: (groups, refused).

    A group is of one first word and operation, and has its place by the first of its datagrams.
    about: the first word of datagrams to this rank (without kind and sender), session, rank, ranks,
    bytes of a datagram; state: for tags, empty without; each: int64 [5, datagrams], filled group by
    group, in order, with the start and size of the payload, offset, length and flags of what was
    not placed; groups: uint64 [datagrams, 10], filled with what the members have in common, where
    they begin in ``each``, how many they are, the last one's fourth and fifth word, the row of the
    table (or NO_ROW), how many belong to the shard, how many of them are new, and whether a new
    one is marked; dropped: int64 [4], counts.
    """
    rank = int64(about[2])
    ranks = int64(about[3])
    datagram_bytes = int64(about[4])
    good = np.empty(len(starts), np.int64)
    count = ours(buffer, starts, sizes, about, state, good, dropped)
    accepted = group_count = latest = 0
    group_of_good = np.full(count, -1, np.int64)
    for j in range(count):
        start = starts[good[j]]
        size = sizes[good[j]]
        first = word(buffer, start)
        operation = word(buffer, start + 16)
        kind = int64(first >> U(24) & U(0xFF))
        sender = int64(first >> U(32) & U(0xFFFF))
        if not 2 <= kind <= 7 or size != (datagram_bytes if kind >> 1 == DATA else HEADER):
            dropped[MALFORMED] += 1
            continue
        if sender >= ranks or sender == rank:
            dropped[MISDIRECTED] += 1
            continue
        g = group_of(groups, group_count, latest, first, operation)
        if g == group_count:
            group_count += 1
            groups[g, :] = 0
            groups[g, FIRST_WORD] = first
            groups[g, OPERATION] = operation
            groups[g, ROW] = U(row_of(table, first, operation)) if kind >> 1 == DATA else U(NO_ROW)
        accepted = accepted + 1
        latest = g
        groups[g, NUMBER] += U(1)
        groups[g, PLACE] = word(buffer, start + 24)
        groups[g, REST] = word(buffer, start + 32)
        if groups[g, ROW] == U(NO_ROW):
            group_of_good[j] = g
            continue
        row = table[int64(groups[g, ROW])]
        became = place(row, buffer, start, datagram_bytes - HEADER, groups[g, PLACE])
        groups[g, RIGHT] += U(became > 0)
        groups[g, FRESH] += U(became > 1)
        if became > 1 and groups[g, PLACE] >> U(48) & U(LAST):
            groups[g, MARKED] = U(1)
    sort(buffer, starts, sizes, good[:count], group_of_good, groups, group_count, each)
    return group_count, len(starts) - accepted
