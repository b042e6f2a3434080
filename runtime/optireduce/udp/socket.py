"""UDP from Python, many datagrams by one system call, in rows that numpy reads in place.

``UDP_SEGMENT`` lets one ``sendmsg`` carry many datagrams of one length. ``recvmmsg`` (by ctypes)
takes many messages at once: on a network that hands over frame by frame a call for each would cost
more than all the rest that is done with it. Where the kernel coalesces (``UDP_GRO``) a message
holds many datagrams of one length, which a control message tells, the last one perhaps shorter.
Where it refuses, each datagram goes by itself, and :attr:`UdpSocket.how` says so. Linux on 64 bits.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import os
import struct
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from latecomer.runtime.host import (
    IPPROTO_UDP,
    MSG_DONTWAIT,
    SO_RCVBUF,
    SO_SNDBUF,
    SOL_SOCKET,
    Socket,
    host,
)
from latecomer.runtime.network.addresses import datagram_socket
from latecomer.runtime.optireduce.options import Options
from latecomer.runtime.optireduce.udp.events import Bytes

UDP_SEGMENT = 103  # socket options of linux/udp.h, which Python does not name
UDP_GRO = 104
MESSAGES = 256  # taken by one call: few large batches; memory that is not used is never touched
ROOM_BYTES = 1 << 16  # what one message may hold
STRIDE_BYTES = ROOM_BYTES + 1536  # not a power of two, whose rows would share cache lines
# an earlier datagram came back, since its peer is not there: no error of this socket
GONE = {errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EPERM}
FULL = {errno.EAGAIN, errno.EINTR, errno.ENOBUFS}  # or empty: nothing was done
NOTHING: Bytes = np.zeros((0, 1), np.uint8)  # in what was taken; None: the socket is empty
_POINTERS = [(name, "<u8") for name in ("vector", "vectors", "control", "control_bytes")]
_NUMBERS = [(name, "<i4") for name in ("level", "type", "segment")]
# struct mmsghdr; struct cmsghdr and its one number
HEADER = np.dtype([("", "V16"), *_POINTERS, ("flags", "<i8"), ("length", "<u4"), ("", "V4")])
CONTROL = np.dtype([("", "V8"), *_NUMBERS, ("", "V12")])
_recvmmsg: Any = ctypes.CDLL(None, use_errno=True).recvmmsg


def is_full(error: int | None) -> bool:
    """Why a call did nothing: no room (or no data), else a peer that is gone; raises the rest."""
    if error not in FULL | GONE:
        raise OSError(error, os.strerror(error or 0))
    return error in FULL


class UdpSocket:
    """One rank's socket, bound to ``address`` and a free port.

    :mod:`latecomer.runtime.network.addresses` says which ports may be used.

    ``peers`` are the addresses of the other ranks, set by its owner. ``how`` says for reports what
    the kernel does for us; one call to it takes ``together`` datagrams at most.
    """

    def __init__(self, options: Options, address: str, reader: type[BatchReader]) -> None:
        self._socket = datagram_socket(address)
        self._socket.setblocking(False)
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        self.peers: Mapping[int, tuple[str, int]] = {}
        self._reader = host.batch_reader(reader, self._socket)
        self._drained = False
        self._held: deque[Bytes] = deque()
        self._socket.setsockopt(SOL_SOCKET, SO_SNDBUF, options.send_buffer_bytes)
        self._socket.setsockopt(SOL_SOCKET, SO_RCVBUF, options.receive_buffer_bytes)
        # Linux tells twice what it grants: the other half is for its own bookkeeping
        granted = self._socket.getsockopt(SOL_SOCKET, SO_RCVBUF) // 2
        segments = options.offload and self._try(UDP_SEGMENT, options.datagram_bytes)
        coalesces = options.offload and self._try(UDP_GRO, 1)
        if segments:  # per call instead: the short datagrams must go by themselves
            self._socket.setsockopt(IPPROTO_UDP, UDP_SEGMENT, 0)
        sends = "GSO" if segments else "one by one"
        receives = "GRO" if coalesces else "one by one"
        own_host, port = self.address
        self.how = (
            f"UDP {own_host}:{port}, send {sends}, receive {receives}, "
            f"receive buffer {granted // 1024} KiB"
        )
        self.together = options.burst if segments else 1
        segment = struct.pack("H", options.datagram_bytes)
        self._segment = [(IPPROTO_UDP, UDP_SEGMENT, segment)]

    def fileno(self) -> int:
        """For poll."""
        return self._socket.fileno()

    def send(self, peer: int, rows: Bytes) -> int:
        """Send uint8 [datagrams, bytes of each]; how many the kernel took (0: it is full)."""
        to = self.peers[peer]
        step = self.together
        for first in range(0, len(rows), step):
            part = rows[first : first + step]
            try:
                self._socket.sendmsg([part.data], self._segment if len(part) > 1 else [], 0, to)
            except OSError as error:
                if is_full(error.errno):
                    return first
        return len(rows)

    def receive(self) -> Bytes | None:
        """Some of one length, uint8 [datagrams, bytes], valid until the next; ``None``: empty."""
        if self._held:
            return self._held.popleft()
        taken = 0
        if not self._drained:
            taken, batches = self._reader.read()
            self._held.extend(batches)
        self._drained = 0 < taken < MESSAGES  # then the next call needs not ask the kernel
        if self._held:
            return self._held.popleft()
        return NOTHING if taken else None

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _try(self, option: int, value: int) -> bool:
        with contextlib.suppress(OSError):
            self._socket.setsockopt(IPPROTO_UDP, option, value)
            return True
        return False


class BatchReader:
    """Reads a socket that does not block; datagrams of one length in a row are one batch."""

    def __init__(self, source: Socket) -> None:
        self._rows: Bytes = np.zeros((MESSAGES, STRIDE_BYTES), np.uint8)
        self._flat: Bytes = self._rows.reshape(-1)
        self._vectors = np.zeros((MESSAGES, 2), "<u8")
        self._vectors[:, 0] = self._rows.ctypes.data + np.arange(MESSAGES) * STRIDE_BYTES
        self._vectors[:, 1] = ROOM_BYTES
        self._control = np.zeros(MESSAGES, CONTROL)
        self._headers = np.zeros(MESSAGES, HEADER)
        self._headers["vector"] = self._vectors.ctypes.data + np.arange(MESSAGES) * 16
        self._headers["vectors"] = 1
        control_at = np.arange(MESSAGES) * CONTROL.itemsize
        self._headers["control"] = self._control.ctypes.data + control_at
        self._structures = self._headers, self._control
        self._lengths, self._control_bytes = (self._headers[n] for n in ("length", "control_bytes"))
        self._call = source.fileno(), ctypes.c_void_p(self._headers.ctypes.data), MESSAGES

    def read(self) -> tuple[int, list[Bytes]]:
        """(messages taken, their datagrams: uint8 [datagrams, bytes], valid until the next)."""
        self._control_bytes[:] = CONTROL.itemsize
        taken = _recvmmsg(*self._call, MSG_DONTWAIT, None)
        if taken >= 0:
            return taken, list(self._batches(taken))
        return (0 if is_full(ctypes.get_errno()) else 1), []

    def _batches(self, taken: int) -> Iterator[Bytes]:
        lengths = self._lengths[:taken]
        controlled = self._control_bytes[:taken] != 0
        if not controlled.any():
            edges = np.flatnonzero(lengths[1:] != lengths[:-1]) + 1
            for low, high in itertools.pairwise([0, *edges.tolist(), taken]):
                if length := int(lengths[low]):
                    yield self._rows[low:high, :length]
            return
        control = self._control[:taken]
        is_gro = (control["level"] == IPPROTO_UDP) & (control["type"] == UDP_GRO)
        segments = np.where(controlled & is_gro, control["segment"], lengths)
        yield from self._joined(lengths.tolist(), segments.tolist())

    def _joined(self, sizes: list[int], segments: list[int]) -> Iterator[Bytes]:
        """As one batch each, moved together in memory: that costs far less than a batch more."""
        flat = self._flat
        # of the batch so far: bytes first to end - 1, in datagrams of so many
        first = 0
        end = 0
        datagram_bytes = 0
        for number, (size, segment) in enumerate(zip([*sizes, 0], [*segments, 0], strict=True)):
            start = number * STRIDE_BYTES
            if segment != datagram_bytes:
                if end > first:
                    yield flat[first:end].reshape(-1, datagram_bytes)
                first = start
                end = start
                datagram_bytes = segment
            whole = size // datagram_bytes * datagram_bytes if datagram_bytes else 0
            if start != end:
                flat[end : end + whole] = flat[start : start + whole]
            end += whole
            if whole < size:  # the last one of what was coalesced may be shorter
                if end > first:
                    yield flat[first:end].reshape(-1, datagram_bytes)
                yield flat[start + whole : start + size].reshape(1, -1)
                first = 0
                end = 0
                datagram_bytes = 0
