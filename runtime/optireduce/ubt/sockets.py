"""UDP from Python at the speed of TCP: segmentation and receive offload, rows packed by numpy.

``UDP_SEGMENT`` lets one ``send`` carry many datagrams of one length, ``UDP_GRO`` lets one ``recv``
bring many; a control message tells their length. Where the kernel refuses them, each datagram is
sent by itself, and :attr:`Channel.how` says so.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from runtime.optireduce.options import Options
from runtime.optireduce.ubt.wire import Bytes

UDP_SEGMENT, UDP_GRO = 103, 104
MOST_BYTES = 65_507
MOST_SEGMENTS = 64
ROOM_BYTES = 1 << 16
"""What one call may bring."""
GATHERED_BYTES = 1 << 16
"""What is taken together before it is looked at, and one call more."""
CONTROL_BYTES = socket.CMSG_SPACE(4)
GONE = {errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EPERM}


class Channel:
    """One rank's socket.

    Args:
        address: to bind to; the port is chosen by the kernel.

    Attributes:
        address: (host, port) under which others reach it.
        how: what the kernel does for us, for reports.
    """

    def __init__(self, options: Options, address: str) -> None:
        self._options = options
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind((address, 0))
        self.address: tuple[str, int] = self._socket.getsockname()
        self._peers: dict[int, tuple[str, int]] = {}
        self._buffer: Bytes = np.zeros(GATHERED_BYTES + ROOM_BYTES, np.uint8)
        self._room = self._buffer.data
        self._held: Bytes | None = None
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, options.send_buffer_bytes)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, options.receive_buffer_bytes)
        granted = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2
        self.segments = options.offload and self._try(UDP_SEGMENT, options.datagram_bytes)
        self.coalesces = options.offload and self._try(UDP_GRO, 1)
        if self.segments:  # per call instead: the short datagrams must go by themselves
            self._socket.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 0)
        self.how = (
            f"UDP {self.address[0]}:{self.address[1]}, "
            f"send {'GSO' if self.segments else 'one by one'}, "
            f"receive {'GRO' if self.coalesces else 'one by one'}, "
            f"receive buffer {granted // 1024} KiB"
        )
        burst = max(1, options.burst_bytes // options.datagram_bytes)
        self.burst = min(burst, MOST_BYTES // options.datagram_bytes, MOST_SEGMENTS)
        self.rows: Bytes = np.zeros((self.burst, options.datagram_bytes), np.uint8)
        self._segment = [
            (socket.IPPROTO_UDP, UDP_SEGMENT, struct.pack("H", options.datagram_bytes))
        ]

    def connect(self, peers: Mapping[int, tuple[str, int]]) -> None:
        """Tell the addresses of the other ranks."""
        self._peers = dict(peers)

    def fileno(self) -> int:
        """For poll."""
        return self._socket.fileno()

    def send_rows(self, peer: int, count: int) -> int:
        """Send the first ``count`` of :attr:`rows`; how many the kernel took (0: it is full)."""
        rows, to = self.rows[:count], self._peers[peer]
        if self.segments:
            return count if self._send([rows.data], self._segment if count > 1 else [], to) else 0
        for number, row in enumerate(rows):
            if not self._send([row.data], [], to):
                return number
        return count

    def send(self, peer: int, data: bytes) -> bool:
        """Send one short datagram; whether the kernel took it."""
        return self._send([data], [], self._peers[peer])

    def receive(self) -> Bytes | None:
        """Datagrams of one length, uint8 [datagrams, bytes] (valid until the next call).

        What lies in the socket is taken together: on a network that hands over frame by frame a
        look at each datagram by itself would cost more than the frame does. ``None`` when the
        socket is empty.
        """
        if self._held is not None:
            rows, self._held = self._held, None
            return rows
        filled, length = 0, 0
        while filled <= GATHERED_BYTES:
            try:
                size, control, _, _ = self._socket.recvmsg_into(
                    [self._room[filled : filled + ROOM_BYTES]], CONTROL_BYTES
                )
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno in GONE:  # an earlier datagram came back: its peer is not there
                    continue
                raise
            each = size
            for level, kind, data in control:
                if level == socket.IPPROTO_UDP and kind == UDP_GRO:
                    each = int.from_bytes(data[:4], "little")
            if not each:
                continue
            # after a run of equal ones a shorter one may follow: none of ours, which are padded
            size -= size % each
            if filled and each != length:
                self._held = self._buffer[filled : filled + size].reshape(-1, each).copy()
                break
            filled, length = filled + size, each
        return self._buffer[:filled].reshape(-1, length) if filled else None

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _send(self, parts: list[Any], control: list[Any], to: tuple[str, int]) -> bool:
        try:
            self._socket.sendmsg(parts, control, 0, to)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno == errno.ENOBUFS:
                return False
            if error.errno not in GONE:  # as good as lost on the way
                raise
        return True

    def _try(self, option: int, value: int) -> bool:
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.IPPROTO_UDP, option, value)
            return True
        return False
