"""The compiled data path's socket: reads and sends many datagrams by one call, moves none of them.

Where they came to lie in the receive buffer datagrams stay until they are placed: ``Scattered``
says where that is; what is sent goes out from where it lies in the tensor (``UnwrittenBurst``).
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from latecomer.runtime.host import AF_INET, AF_INET6, IPPROTO_UDP, MSG_DONTWAIT, Socket
from latecomer.runtime.optireduce.options import HEADER_BYTES, Options
from latecomer.runtime.optireduce.udp.compiled import kernels, messages
from latecomer.runtime.optireduce.udp.events import Burst, Bytes
from latecomer.runtime.optireduce.udp.placement import Numbers
from latecomer.runtime.optireduce.udp.socket import (
    MESSAGES,
    STRIDE_BYTES,
    UDP_GRO,
    UDP_SEGMENT,
    BatchReader,
    UdpSocket,
    is_full,
)

assert (HEADER_BYTES, MSG_DONTWAIT) == (messages.HEADER, messages.DONTWAIT)
GRO = IPPROTO_UDP | UDP_GRO << 32
CONTROL_BYTES = 18  # of a struct cmsghdr with a number of 16 bits
DATAGRAMS = 1024  # sent by one call at most


class Scattered:
    """Datagrams (or parts of them) anywhere in ``buffer``, uint8: int64 ``starts`` and ``sizes``.

    Like the rows of an array they have a length and may be indexed by a slice, by numbers or by a
    mask; ``copy`` makes an array of them, uint8 [datagrams, bytes], where all are of one size.
    """

    def __init__(self, buffer: Bytes, starts: np.ndarray, sizes: np.ndarray) -> None:
        self.buffer = buffer
        self.starts = starts
        self.sizes = sizes

    @classmethod
    def of(cls, rows: Bytes | Scattered) -> Scattered:
        """The rows of an array, uint8 [datagrams, bytes]."""
        if isinstance(rows, Scattered):
            return rows
        count, size = rows.shape
        flat = np.ascontiguousarray(rows).reshape(-1)
        return cls(flat, np.arange(count) * size, np.full(count, size))

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, numbers: Numbers) -> Scattered:
        return Scattered(self.buffer, self.starts[numbers], self.sizes[numbers])

    @property
    def nbytes(self) -> int:
        """Bytes in all of them."""
        return int(self.sizes.sum())

    def copy(self) -> Bytes:
        """An array of its own."""
        size = int(self.sizes[0]) if len(self) else 0
        rows: Bytes = np.empty((len(self), size), np.uint8)
        for row, start in zip(rows, self.starts.tolist(), strict=True):
            row[:] = self.buffer[start : start + size]
        return rows


class UnwrittenBurst:
    """A burst whose headers are written when it is sent, each beside its payload in the tensor.

    ``common`` is what the headers begin with, ``payload_bytes`` are those of a datagram.
    """

    def __init__(self, burst: Burst, common: Bytes, payload_bytes: int) -> None:
        self.common = common
        self.source = burst.source
        self.first = burst.first
        self.marks_from = burst.marks_from
        self.passed = burst.passed
        self.payload_bytes = payload_bytes

    def __len__(self) -> int:
        return len(self.passed)

    def __iter__(self) -> Iterator[Bytes]:
        """Each datagram as it will be on the wire."""
        nbytes = self.payload_bytes
        headers: Bytes = np.zeros((len(self), HEADER_BYTES), np.uint8)
        kernels.head(
            headers,
            len(self.source),
            nbytes,
            self.first,
            self.marks_from,
            self.common,
            self.passed,
        )
        for number, header in enumerate(headers, self.first):
            payload = self.source[number * nbytes : (number + 1) * nbytes]
            yield np.concatenate([header, payload, np.zeros(nbytes - len(payload), np.uint8)])


class CompiledReader(BatchReader):
    """All that one call took is one batch, of whatever lengths, and nothing is moved."""

    def __init__(self, source: Socket) -> None:
        super().__init__(source)
        self._source = source
        self._message_headers, self._controls = (
            structures.view(np.int64).reshape(len(structures), -1)
            for structures in self._structures
        )

    def read(self) -> tuple[int, list[Any]]:
        """(messages taken, what is in them: at most one batch, valid until the next)."""
        taken, starts_and_sizes = messages.receive(
            self._source.fileno(), self._message_headers, self._controls, STRIDE_BYTES, GRO
        )
        if taken < 0:
            return (0 if is_full(-taken) else 1), []
        starts, sizes = starts_and_sizes
        if not len(starts):
            return taken, []
        return taken, [Scattered(self._flat, starts, sizes)]


class CompiledSocket(UdpSocket):
    """Sends a burst from where it lies, and all of it by one call."""

    def __init__(self, options: Options, address: str, reader: type[BatchReader]) -> None:
        super().__init__(options, address, reader)
        self._socket_addresses = dict[int, Bytes]()  # struct sockaddr_in, by rank
        segment = IPPROTO_UDP | UDP_SEGMENT << 32
        self._control = np.array([CONTROL_BYTES, segment, options.datagram_bytes])
        self._message_headers = np.zeros((MESSAGES, 8), np.int64)
        self._vectors = np.zeros((3 * DATAGRAMS, 2), np.int64)
        self._headers: Bytes = np.zeros((DATAGRAMS, HEADER_BYTES), np.uint8)
        self._zeros: Bytes = np.zeros(options.payload_bytes, np.uint8)

    def send(self, peer: int, rows: Any) -> int:
        """See :meth:`UdpSocket.send`."""
        to = self._socket_addresses.get(peer)
        if to is None:
            to = _socket_address(*self.peers[peer])
            self._socket_addresses[peer] = to
        sent = 0
        count = len(rows)
        while sent < count:
            taken = self._hand_over(to, rows, sent)
            if taken <= 0:
                if is_full(-taken):
                    return sent
                taken = self.together  # as good as lost on the way
            sent += taken
        return count

    def _hand_over(self, to: Bytes, rows: Any, begin: int) -> int:
        """Give the kernel some, from row ``begin`` on; how many it took, or -errno."""
        if not isinstance(rows, UnwrittenBurst):
            taken = messages.send_rows(
                self._socket.fileno(),
                to,
                rows[begin:],
                self.together,
                self._message_headers,
                self._vectors,
                self._control,
            )
            return int(taken)
        taken = messages.send(
            self._socket.fileno(),
            to,
            self._headers,
            rows.common,
            rows.passed[begin:],
            rows.source,
            rows.payload_bytes,
            rows.first + begin,
            rows.marks_from,
            self.together,
            self._message_headers,
            self._vectors,
            self._control,
            self._zeros,
        )
        return int(taken)


def _socket_address(host: str, port: int) -> Bytes:
    """A ``struct sockaddr_in``, uint8 [16], or for IPv6 ``sockaddr_in6``, uint8 [28].

    The family is written as this machine has it, the rest as the network has.
    """
    if ":" in host:
        family = struct.pack("=H", AF_INET6)
        address = socket.inet_pton(AF_INET6, host)
        flow = scope = 0
        return np.frombuffer(family + struct.pack("!HI16sI", port, flow, address, scope), np.uint8)
    family = struct.pack("=H", AF_INET)
    address = socket.inet_aton(socket.gethostbyname(host))
    return np.frombuffer(family + struct.pack("!H4s8x", port, address), np.uint8)
