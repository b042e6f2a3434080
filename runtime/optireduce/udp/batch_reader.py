"""Many datagrams by one system call: ``recvmmsg`` by ctypes, into rows that numpy reads in place.

On a network that hands over frame by frame a call for each datagram would cost more than all the
rest that is done with it. Where the kernel coalesces (``UDP_GRO``) a message holds many datagrams
of one length, which a control message tells, the last one perhaps shorter. Datagrams of one length
that follow each other are one batch, out of how many messages they may be: what a batch costs the
reader does not depend on its size. Linux on 64 bits.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np

from runtime.optireduce.udp.datagram import Bytes

MESSAGES = 256
"""Taken by one call; memory that is not used is never touched."""
ROOM_BYTES = 1 << 16
"""What one message may hold."""
STRIDE_BYTES = ROOM_BYTES + 1536
"""From one message's room to the next: not a power of two, whose rows would share cache lines."""
CONTROL_BYTES = 32
GONE = {errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EPERM}
"""An earlier datagram came back, since its peer is not there: no error of this socket."""
HEADER = np.dtype(  # struct mmsghdr
    {
        "names": ["vector", "vectors", "control", "control_bytes", "flags", "length"],
        "formats": ["<u8", "<u8", "<u8", "<u8", "<i4", "<u4"],
        "offsets": [16, 24, 32, 40, 48, 56],
        "itemsize": 64,
    }
)
CONTROL = np.dtype(  # struct cmsghdr and its one number
    {
        "names": ["level", "type", "segment"],
        "formats": ["<i4", "<i4", "<i4"],
        "offsets": [8, 12, 16],
        "itemsize": CONTROL_BYTES,
    }
)
_recvmmsg: Any = ctypes.CDLL(None, use_errno=True).recvmmsg


class BatchReader:
    """Reads a socket that does not block.

    Args:
        coalesced: the type of the control message that tells the length of coalesced datagrams.
    """

    def __init__(self, reader: socket.socket, coalesced: int) -> None:
        self._descriptor, self._coalesced = reader.fileno(), coalesced
        self._rows: Bytes = np.zeros((MESSAGES, STRIDE_BYTES), np.uint8)
        self._flat: Bytes = self._rows.reshape(-1)
        self._vectors = np.zeros((MESSAGES, 2), "<u8")
        self._vectors[:, 0] = self._rows.ctypes.data + np.arange(MESSAGES) * STRIDE_BYTES
        self._vectors[:, 1] = ROOM_BYTES
        self._control = np.zeros(MESSAGES, CONTROL)
        self._headers = np.zeros(MESSAGES, HEADER)
        self._headers["vector"] = self._vectors.ctypes.data + np.arange(MESSAGES) * 16
        self._headers["vectors"] = 1
        self._headers["control"] = self._control.ctypes.data + np.arange(MESSAGES) * CONTROL_BYTES
        self._lengths = self._headers["length"]
        self._control_bytes = self._headers["control_bytes"]
        self._at = self._headers.ctypes.data

    def read(self) -> tuple[int, list[Bytes]]:
        """(messages taken, their datagrams: uint8 [datagrams, bytes] of one length each).

        The rows are valid until the next call.
        """
        self._control_bytes[:] = CONTROL_BYTES
        taken = _recvmmsg(
            self._descriptor, ctypes.c_void_p(self._at), MESSAGES, socket.MSG_DONTWAIT, None
        )
        if taken < 0:
            error = ctypes.get_errno()
            if error in (errno.EAGAIN, errno.EINTR):
                return 0, []
            if error in GONE:
                return 1, []
            raise OSError(error, os.strerror(error))
        return taken, list(self._batches(taken))

    def _batches(self, taken: int) -> Iterator[Bytes]:
        lengths = self._lengths[:taken]
        if (self._control_bytes[:taken] == 0).all():
            edges = np.flatnonzero(lengths[1:] != lengths[:-1]) + 1
            bounds = [0, *edges.tolist(), taken]
            for low, high in itertools.pairwise(bounds):
                if length := int(lengths[low]):
                    yield self._rows[low:high, :length]
            return
        yield from self._joined(lengths.tolist(), self._segments(taken))

    def _segments(self, taken: int) -> list[int]:
        """Per message the length of its datagrams."""
        told = self._control[:taken]
        coalesced = (
            (self._control_bytes[:taken] != 0)
            & (told["level"] == socket.IPPROTO_UDP)
            & (told["type"] == self._coalesced)
        )
        segments: list[int] = np.where(coalesced, told["segment"], self._lengths[:taken]).tolist()
        return segments

    def _joined(self, sizes: list[int], segments: list[int]) -> Iterator[Bytes]:
        """Datagrams of one length that follow each other, as one batch.

        They are moved together in memory, which costs far less than a batch more.
        """
        flat = self._flat
        first = end = each = 0  # of the batch so far: bytes first to end - 1
        for number, (size, segment) in enumerate(zip(sizes, segments, strict=True)):
            start = number * STRIDE_BYTES
            if segment != each:
                if end > first:
                    yield flat[first:end].reshape(-1, each)
                first, end, each = start, start, segment
            whole = size // each * each if each else 0
            if start != end:
                flat[end : end + whole] = flat[start : start + whole]
            end += whole
            if whole < size:  # the last one of what was coalesced may be shorter
                if end > first:
                    yield flat[first:end].reshape(-1, each)
                yield flat[start + whole : start + size].reshape(1, -1)
                first = end = each = 0
        if end > first:
            yield flat[first:end].reshape(-1, each)
