"""UDP from Python with segmentation and receive offload, rows packed by numpy.

``UDP_SEGMENT`` lets one ``send`` carry many datagrams of one length, ``UDP_GRO`` lets a message
that is received hold many; :mod:`gathering` takes many messages at once. Where the kernel refuses
them, each datagram goes by itself, and :attr:`UdpSocket.how` says so.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from runtime.optireduce.options import Options
from runtime.optireduce.udp.batch_reader import GONE, MESSAGES, BatchReader
from runtime.optireduce.udp.datagram import Bytes

UDP_SEGMENT, UDP_GRO = 103, 104
MOST_BYTES = 65_507
MOST_SEGMENTS = 64
BURSTS = 4
"""Written together at most."""
NOTHING: Bytes = np.zeros((0, 1), np.uint8)


class UdpSocket:
    """One rank's socket.

    Args:
        address: to bind to; the port is chosen by the kernel.

    Attributes:
        address: (host, port) under which others reach it.
        how: what the kernel does for us, for reports.
        together: datagrams that one call to the kernel takes at most.
    """

    def __init__(self, options: Options, address: str) -> None:
        self._options = options
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind((address, 0))
        self.address: tuple[str, int] = self._socket.getsockname()
        self._peers: dict[int, tuple[str, int]] = {}
        self._gathering = BatchReader(self._socket, UDP_GRO)
        self._held: deque[Bytes] = deque()
        self._drained = False
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
        self.together = self.burst if self.segments else 1
        self.rows: Bytes = np.zeros((BURSTS * self.burst, options.datagram_bytes), np.uint8)
        self.ends = (np.arange(len(self.rows), dtype=np.uint32) // self.burst + 1) * self.burst
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
        to, step = self._peers[peer], self.together
        for first in range(0, count, step):
            rows = self.rows[first : min(first + step, count)]
            if not self._send([rows.data], self._segment if len(rows) > 1 else [], to):
                return first
        return count

    def send(self, peer: int, data: bytes) -> bool:
        """Send one short datagram; whether the kernel took it."""
        return self._send([data], [], self._peers[peer])

    def receive(self) -> Bytes | None:
        """Datagrams of one length, uint8 [datagrams, bytes], or none (0 rows); ``None``: empty.

        Valid until the next call. What lies in the socket is taken together.
        """
        if self._held:
            return self._held.popleft()
        taken = 0
        if not self._drained:
            taken, batches = self._gathering.read()
            self._held.extend(batches)
        self._drained = 0 < taken < MESSAGES  # then the next call needs not ask the kernel
        if not taken:
            return None
        return self._held.popleft() if self._held else NOTHING

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
