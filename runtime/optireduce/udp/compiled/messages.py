"""System calls that take or send many messages at once, and the structures that they are told by.

``struct mmsghdr`` is int64 [8]: address (of a name) and its length, of vectors and their number, of
a control message and its length, flags, length. ``struct iovec`` is int64 [2]: address, length. A
``struct cmsghdr`` with one number is int64 [3] or longer: its length, level and type, the number.
Addresses are taken here, from arrays whose bounds have been looked at. No lock of Python's is held
meanwhile. Compiled as ``kernels`` is; the two need nothing of each other.
"""

from typing import Any

import numpy as np
from numba import int32, int64, njit, types, uint8, uint32, uintp

from runtime.optireduce.udp.compiled.blake2b import BYTES, HOW

HEADER, VECTOR, DONTWAIT = 48, 16, 0x40
CALL = int32(int32, uintp, uint32, int32)
sendmmsg: Any = types.ExternalFunction("sendmmsg", CALL)
recvmmsg: Any = types.ExternalFunction("recvmmsg", int32(int32, uintp, uint32, int32, uintp))
errno_at: Any = types.ExternalFunction("__errno_location", types.CPointer(int32)())
TABLE: Any = int64[:, ::1]


@njit(TABLE(TABLE, TABLE, int64, int64, int64), **HOW)
def segments(headers, controls, taken, stride, gro):
    """The starts and sizes of what is in the first ``taken`` messages; see :func:`receive`."""
    each, count = np.empty(taken, np.int64), 0
    for i in range(taken):
        length = headers[i, 7] & 0xFFFFFFFF
        each[i] = length
        if headers[i, 5] != 0 and controls[i, 1] == gro:
            each[i] = controls[i, 2] & 0xFFFFFFFF
        if each[i] > 0:
            count += (length + each[i] - 1) // each[i]
    found, at = np.empty((2, count), np.int64), 0
    for i in range(taken):
        length, start = headers[i, 7] & 0xFFFFFFFF, 0
        while each[i] > 0 and start < length:
            found[0, at], found[1, at] = i * stride + start, min(each[i], length - start)
            start += each[i]
            at += 1
    return found


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


SEND = int64(
    *(int64, BYTES, uint8[:, ::1], BYTES, int64, int64, int64),
    *(TABLE, TABLE, int64[::1], BYTES),
)


@njit(SEND, **HOW)
def send(descriptor, to, heads, source, first, payload, together, headers, vectors, control, zeros):
    """Send datagrams of a shard from where they lie: how many the kernel took, or -errno.

    to: a ``struct sockaddr``; heads: uint8 [datagrams, 48]; source: the shard's bytes, of which
    those of datagram ``first``, and the next, are sent; together: so many at most are one message.
    headers: [messages, 8], vectors: [3 per datagram, 2], control: [3], the kernel's length of a
    datagram; zeros: ``payload`` of them, of which the last datagram is filled up.
    """
    ready = used = messages = 0
    count = min(len(heads), len(vectors) // 3, len(headers) * together)
    while ready < count:
        begin, number = used, min(together, count - ready)
        for i in range(ready, ready + number):
            at = (first + i) * payload
            size = min(payload, len(source) - at)
            if at < 0 or size <= 0 or payload - size > len(zeros):
                return 0
            vectors[used, 0], vectors[used, 1] = heads.ctypes.data + i * HEADER, HEADER
            vectors[used + 1, 0], vectors[used + 1, 1] = source.ctypes.data + at, size
            used += 2
            if size < payload:
                vectors[used, 0], vectors[used, 1] = zeros.ctypes.data, payload - size
                used += 1
        header = headers[messages]
        header[0], header[1] = to.ctypes.data, len(to)
        header[2], header[3] = vectors.ctypes.data + begin * VECTOR, used - begin
        header[4] = control.ctypes.data if number > 1 else 0
        header[5] = 8 * len(control) if number > 1 else 0
        header[6] = header[7] = 0
        ready, messages = ready + number, messages + 1
    taken = int64(sendmmsg(descriptor, headers.ctypes.data, messages, DONTWAIT))
    return -int64(errno_at()[0]) if taken < 0 else min(ready, taken * together)
