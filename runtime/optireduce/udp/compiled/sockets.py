"""The compiled data path's socket: reads and sends many datagrams by one call, moves none of them.

Where they came to lie in the receive buffer datagrams stay until they are placed: ``Scattered``
says where that is; what is sent goes out from where it lies in the tensor (``Burst``).
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from runtime.optireduce.options import HEADER_BYTES, Options
from runtime.optireduce.udp.compiled import kernels, messages
from runtime.optireduce.udp.datagram import Bytes
from runtime.optireduce.udp.reassembly import Numbers
from runtime.optireduce.udp.socket import (
    MESSAGES,
    STRIDE_BYTES,
    UDP_GRO,
    UDP_SEGMENT,
    BatchReader,
    UdpSocket,
    is_full,
)

assert (HEADER_BYTES, socket.MSG_DONTWAIT) == (messages.HEADER, messages.DONTWAIT)
GRO = socket.IPPROTO_UDP | UDP_GRO << 32
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
        count = len(self)
        size = int(self.sizes[0]) if len(self) else 0
        rows: Bytes = np.zeros((count, size), np.uint8)
        kernels.place(rows.reshape(-1), size, self.buffer, self.starts, np.arange(count))
        return rows


class Burst:
    """Datagrams of a shard from number ``first`` on, which are sent from where they lie.

    ``common`` is what their headers begin with, ``source`` the shard's bytes, ``passed`` int64
    [datagrams].
    """

    def __init__(
        self,
        common: Bytes,
        source: Bytes,
        first: int,
        marks_from: int,
        passed: np.ndarray,
        payload: int,
    ) -> None:
        self.common = common
        self.source = source
        self.first = first
        self.marks_from = marks_from
        self.passed = passed
        self.payload = payload

    def __len__(self) -> int:
        return len(self.passed)

    def __iter__(self) -> Iterator[Bytes]:
        """Each as it will be on the wire."""
        heads: Bytes = np.zeros((len(self), HEADER_BYTES), np.uint8)
        about = len(self.source), self.payload, self.first, self.marks_from, self.common
        kernels.head(heads, *about, self.passed)
        for number, head in enumerate(heads, self.first):
            part = self.source[number * self.payload : (number + 1) * self.payload]
            yield np.concatenate([head, part, np.zeros(self.payload - len(part), np.uint8)])


class CompiledReader(BatchReader):
    """All that one call took is one batch, of whatever lengths, and nothing is moved."""

    def __init__(self, source: socket.socket) -> None:
        super().__init__(source)
        tables = [a.view(np.int64).reshape(len(a), -1) for a in self._structures]
        self._source = source
        self._tables = tables

    def read(self) -> tuple[int, list[Any]]:
        """(messages taken, what is in them: at most one batch, valid until the next)."""
        about = *self._tables, STRIDE_BYTES, GRO
        taken, found = messages.receive(self._source.fileno(), *about)
        if taken >= 0:
            return taken, [Scattered(self._flat, *found)] if found.size else []
        return (0 if is_full(-taken) else 1), []


class CompiledSocket(UdpSocket):
    """Sends a burst from where it lies, and all of it by one call."""

    def __init__(self, options: Options, address: str, reader: type[BatchReader]) -> None:
        super().__init__(options, address, reader)
        self._names = dict[int, Bytes]()
        segment = socket.IPPROTO_UDP | UDP_SEGMENT << 32
        self._control = np.array([CONTROL_BYTES, segment, options.datagram_bytes])
        sizes = (MESSAGES, 8), (3 * DATAGRAMS, 2)
        self._tables = tuple(np.zeros(size, np.int64) for size in sizes)
        self._heads: Bytes = np.zeros((DATAGRAMS, HEADER_BYTES), np.uint8)
        self._zeros: Bytes = np.zeros(options.payload_bytes, np.uint8)

    def send(self, peer: int, rows: Any) -> int:
        """See :meth:`UdpSocket.send`."""
        if (to := self._names.get(peer)) is None:
            host, port = self.peers[peer]
            name = struct.pack("=H", socket.AF_INET) + struct.pack(
                "!H4s8x", port, socket.inet_aton(socket.gethostbyname(host))
            )
            to = self._names[peer] = np.frombuffer(name, np.uint8)
        done = 0
        count = len(rows)
        while done < count:
            taken = self._part(to, rows, done)
            if taken <= 0:
                if is_full(-taken):
                    return done
                taken = self.together  # as good as lost on the way
            done += taken
        return count

    def _part(self, to: Bytes, rows: Any, done: int) -> int:
        """Hand over some, from row ``done`` on; how many, or -errno."""
        own = (self._socket.fileno(), to)
        tables = (self.together, *self._tables, self._control)
        if not isinstance(rows, Burst):
            return int(messages.send_rows(*own, rows[done:], *tables))
        about = rows.source, rows.payload, rows.first + done, rows.marks_from
        more: Any = self._heads, rows.common, rows.passed[done:], *about, *tables, self._zeros
        return int(messages.send(*own, *more))
