"""System calls that take or send many messages at once, and the structures that they are told by.

``struct mmsghdr`` is int64 [8]: address (of a name) and its length, of vectors and their number, of
a control message and its length, flags, length. ``struct iovec`` is int64 [2]: address, length. A
``struct cmsghdr`` with one number is int64 [3] or longer: its length, level and type, the number.
Addresses are taken here, from arrays whose bounds have been looked at. No lock of Python's is held
meanwhile. Compiled as ``kernels`` is; who changes ``head`` there has to touch this file, too.
"""

from typing import Any

import numpy as np
from numba import int32, int64, njit, types, uint8, uint32, uintp, void

from latecomer.runtime.optireduce.udp.compiled.kernels import head
from latecomer.runtime.optireduce.udp.compiled.siphash import BYTES, HOW, LONGS

HEADER = 48  # of the wire format
VECTOR = 16  # bytes of a struct iovec
DONTWAIT = 0x40  # MSG_DONTWAIT of Linux
CALL = int32(int32, uintp, uint32, int32)
sendmmsg: Any = types.ExternalFunction("sendmmsg", CALL)
recvmmsg: Any = types.ExternalFunction("recvmmsg", int32(int32, uintp, uint32, int32, uintp))
errno_at: Any = types.ExternalFunction("__errno_location", types.CPointer(int32)())
TABLE: Any = int64[:, ::1]
ROWS = types.Array(uint8, 2, "C", readonly=True)


@njit(TABLE(TABLE, TABLE, int64, int64, int64), **HOW)
def segments(headers, controls, taken, stride, gro):
    """The starts and sizes of what is in the first ``taken`` messages; see :func:`receive`."""
    segment = np.empty(taken, np.int64)  # bytes of the datagrams in each message
    count = 0
    for i in range(taken):
        length = headers[i, 7] & 0xFFFFFFFF
        segment[i] = length
        if headers[i, 5] != 0 and controls[i, 1] == gro:
            segment[i] = controls[i, 2] & 0xFFFFFFFF
        if segment[i] > 0:
            count += (length + segment[i] - 1) // segment[i]
    starts_and_sizes = np.empty((2, count), np.int64)
    at = 0
    for i in range(taken):
        length = headers[i, 7] & 0xFFFFFFFF
        start = 0
        while segment[i] > 0 and start < length:
            starts_and_sizes[0, at] = i * stride + start
            starts_and_sizes[1, at] = min(segment[i], length - start)  # the last one may be shorter
            start += segment[i]
            at += 1
    return starts_and_sizes


@njit(types.Tuple((int64, TABLE))(int64, TABLE, TABLE, int64, int64), **HOW)
def receive(descriptor, headers, controls, stride, gro):
    """(messages taken, or -errno; starts and sizes, int64 [2, datagrams], of what is in them).

    headers: [messages, 8]; controls: [messages, 4], of which level and type are ``gro`` where it
    tells the length of coalesced datagrams; stride: from a message's first byte to the next one's.
    """
    for i in range(len(headers)):
        headers[i, 5] = 8 * controls.shape[1]
    taken = int64(recvmmsg(descriptor, headers.ctypes.data, len(headers), DONTWAIT, 0))
    if taken < 0:
        return -int64(errno_at()[0]), np.empty((2, 0), np.int64)
    return taken, segments(headers, controls, taken, stride, gro)


@njit(void(int64[::1], BYTES, int64, int64, int64[::1]), **HOW)
def address(header, to, vectors, count, control):
    """Fill one ``struct mmsghdr``: for ``to``, of so many vectors, with or without control."""
    header[0] = to.ctypes.data
    header[1] = len(to)
    header[2] = vectors
    header[3] = count
    header[4] = control.ctypes.data if len(control) else 0
    header[5] = 8 * len(control)
    header[6] = 0
    header[7] = 0


@njit(int64(int64, TABLE, int64, int64, int64), **HOW)
def hand_over(descriptor, headers, messages, ready, together):
    """Of so many messages with ``ready`` datagrams: how many the kernel took, or -errno."""
    taken = int64(sendmmsg(descriptor, headers.ctypes.data, messages, DONTWAIT))
    return -int64(errno_at()[0]) if taken < 0 else min(ready, taken * together)


@njit(int64(int64, BYTES, ROWS, int64, TABLE, TABLE, int64[::1]), **HOW)
def send_rows(descriptor, to, rows, together, headers, vectors, control):
    """Send the rows of an array; see :func:`send`."""
    ready = messages = 0
    while ready < len(rows) and messages < min(len(headers), len(vectors)):
        number = min(together, len(rows) - ready)
        vectors[messages, 0] = rows.ctypes.data + ready * rows.shape[1]
        vectors[messages, 1] = number * rows.shape[1]
        vector_at = vectors.ctypes.data + messages * VECTOR
        its_control = control[: len(control) if number > 1 else 0]
        address(headers[messages], to, vector_at, 1, its_control)
        ready = ready + number
        messages = messages + 1
    return hand_over(descriptor, headers, messages, ready, together)


SEND = int64(
    *(int64, BYTES, uint8[:, ::1], BYTES, LONGS, BYTES, int64, int64, int64, int64),
    *(TABLE, TABLE, int64[::1], BYTES),
)


@njit(SEND, **HOW)
def send(
    descriptor,
    to,
    heads,
    common,
    passed,
    source,
    payload,
    first,
    marks_from,
    together,
    headers,
    vectors,
    control,
    zeros,
):
    """Send datagrams of a shard from where they lie: how many the kernel took, or -errno.

    to: a ``struct sockaddr``; heads: uint8 [datagrams, 48], for the headers; common, passed,
    marks_from: see :func:`kernels.head`; source: the shard's bytes, of which those of datagram
    ``first``, and the next, are sent; together: so many at most are one message. headers:
    [messages, 8], vectors: [3 per datagram, 2], control: [3], the kernel's length of a datagram;
    zeros: ``payload`` of them, of which the last datagram is filled up.
    """
    ready = used = messages = 0
    count = min(len(passed), len(heads), len(vectors) // 3, len(headers) * together)
    if first < 0 or not 0 < payload <= len(zeros) or (first + count - 1) * payload >= len(source):
        return 0
    head(heads[:count], len(source), payload, first, marks_from, common, passed)
    while ready < count:
        begin = used
        number = min(together, count - ready)
        for i in range(ready, ready + number):
            at = (first + i) * payload
            size = min(payload, len(source) - at)
            vectors[used, 0] = heads.ctypes.data + i * HEADER
            vectors[used, 1] = HEADER
            vectors[used + 1, 0] = source.ctypes.data + at
            vectors[used + 1, 1] = size
            used += 2
            if size < payload:
                vectors[used, 0] = zeros.ctypes.data
                vectors[used, 1] = payload - size
                used += 1
        vectors_at = vectors.ctypes.data + begin * VECTOR
        its_control = control[: len(control) if number > 1 else 0]
        address(headers[messages], to, vectors_at, used - begin, its_control)
        ready = ready + number
        messages = messages + 1
    return hand_over(descriptor, headers, messages, ready, together)
