"""The compiled data path: what stands in for numpy's reader, codec, bitmap, placing and averaging.

Importing this compiles the kernels, or takes them from numba's cache. Where they came to lie in the
receive buffer datagrams stay until they are placed: ``Scattered`` says where that is.
"""

from __future__ import annotations

import socket
import struct
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from runtime.optireduce.options import HEADER_BYTES, Options
from runtime.optireduce.udp.compiled import blake2b, kernels, messages
from runtime.optireduce.udp.compiled.data_path import DataPath
from runtime.optireduce.udp.datagram import TAG_AT, Batch, Bytes, Codec, Header, Type
from runtime.optireduce.udp.reassembly import Drop, Numbers, SenderBitmap
from runtime.optireduce.udp.socket import (
    MESSAGES,
    STRIDE_BYTES,
    UDP_GRO,
    UDP_SEGMENT,
    BatchReader,
    UdpSocket,
    is_full,
)

assert (HEADER_BYTES, TAG_AT) == (kernels.HEADER, kernels.TAG_AT)
assert (HEADER_BYTES, socket.MSG_DONTWAIT) == (messages.HEADER, messages.DONTWAIT)
KINDS = ("malformed", "foreign", "misdirected", "forged")
GRO = socket.IPPROTO_UDP | UDP_GRO << 32
CONTROL_BYTES = 18  # of a struct cmsghdr with a number of 16 bits
DATAGRAMS = 1024  # sent by one call at most
NO_STATE = np.zeros(0, np.uint64)


class Scattered:
    """Datagrams (or parts of them) anywhere in ``buffer``, uint8: int64 ``starts`` and ``sizes``.

    Like the rows of an array they have a length and may be indexed by a slice, by numbers or by a
    mask; ``copy`` makes an array of them, uint8 [datagrams, bytes], where all are of one size.
    """

    def __init__(self, buffer: Bytes, starts: np.ndarray, sizes: np.ndarray) -> None:
        self.buffer, self.starts, self.sizes = buffer, starts, sizes

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
        count, size = len(self), int(self.sizes[0]) if len(self) else 0
        rows: Bytes = np.zeros((count, size), np.uint8)
        kernels.place(rows.reshape(-1), size, self.buffer, self.starts, np.arange(count))
        return rows


class Burst:
    """Datagrams of a shard from number ``first`` on: their headers, and where their payload lies.

    ``heads`` is uint8 [datagrams, 48], ``source`` the shard's bytes.
    """

    def __init__(self, heads: Bytes, source: Bytes, first: int, payload: int) -> None:
        self.heads, self.source, self.first, self.payload = heads, source, first, payload

    def __len__(self) -> int:
        return len(self.heads)

    def __iter__(self) -> Iterator[Bytes]:
        """Each as it will be on the wire."""
        for number, head in enumerate(self.heads, self.first):
            part = self.source[number * self.payload : (number + 1) * self.payload]
            yield np.concatenate([head, part, np.zeros(self.payload - len(part), np.uint8)])


class CompiledReader(BatchReader):
    """All that one call took is one batch, of whatever lengths, and nothing is moved."""

    def __init__(self, source: socket.socket) -> None:
        super().__init__(source)
        tables = [a.view(np.int64).reshape(len(a), -1) for a in self._structures]
        self._source, self._tables = source, tables

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
        control = np.array([CONTROL_BYTES, segment, options.datagram_bytes])
        sizes = (MESSAGES, 8), (3 * DATAGRAMS, 2)
        tables = (np.zeros(size, np.int64) for size in sizes)
        self._tables = *tables, control, np.zeros(options.payload_bytes, np.uint8)

    def send(self, peer: int, rows: Any) -> int:
        """See :meth:`UdpSocket.send`."""
        if not isinstance(rows, Burst):
            return super().send(peer, rows)
        if (to := self._names.get(peer)) is None:
            host, port = self.peers[peer]
            name = struct.pack("=H", socket.AF_INET) + struct.pack(
                "!H4s8x", port, socket.inet_aton(socket.gethostbyname(host))
            )
            to = self._names[peer] = np.frombuffer(name, np.uint8)
        done, descriptor, step = 0, self.fileno(), self.together
        while done < len(rows):
            place = rows.heads[done:], rows.source, rows.first + done, rows.payload, step
            taken = messages.send(descriptor, to, *place, *self._tables)
            if taken <= 0:
                if is_full(-taken):
                    return done
                taken = step  # as good as lost on the way
            done += taken
        return len(rows)


class CompiledCodec(Codec):
    """Checks a batch, tags included, in one call, and writes a burst in one."""

    def __init__(
        self, session: int, rank: int, world_size: int, datagram_bytes: int, key: bytes = b""
    ) -> None:
        super().__init__(session, rank, world_size, datagram_bytes, key)
        about = int(self._fixed), session, rank, world_size, datagram_bytes
        self._about, self._state = np.array(about, np.uint64), NO_STATE
        self._heads: Bytes = np.zeros((DATAGRAMS, HEADER_BYTES), np.uint8)
        if key:  # RFC 7693, 2.5: the parameter block's first word
            initial = np.array(blake2b.IV, np.uint64)
            initial[0] ^= np.uint64(0x0101_0000 | len(key) << 8 | blake2b.TAG_BYTES)
            padded = np.frombuffer(key.ljust(blake2b.BLOCK, b"\0"), np.uint64)
            self._state = blake2b.keyed(initial, padded)

    def data(
        self,
        rows: Bytes,
        source: Bytes,
        first: int,
        marks_from: int,
        header: Header,
        passed: int | np.ndarray = 0,
    ) -> None:
        """See :meth:`Codec.data`."""
        head = np.frombuffer(self._pack(Type.DATA, header), np.uint8)
        numbers = np.empty(len(rows), np.int64)
        numbers[:] = passed
        kernels.write(rows, source, first, marks_from, head, numbers, self._state)

    def burst(self, count: int, source: Bytes, first: int, *what: Any) -> Any:
        """See :meth:`Codec.burst`: with tags in memory of its own, else a :class:`Burst`."""
        if self.key:
            return super().burst(count, source, first, *what)
        marks_from, header, passed = what
        common = np.frombuffer(self._pack(Type.DATA, header), np.uint8)
        about = len(source), self.payload_bytes, first, marks_from, common
        heads, numbers = self._heads[:count], np.empty(count, np.int64)
        numbers[:] = passed
        kernels.head(heads, *about, numbers)
        return Burst(heads, source, first, self.payload_bytes)

    def read(self, rows: Bytes | Scattered, dropped: Counter[str]) -> Iterator[Batch]:
        """See :meth:`Codec.read`; the batch may be of datagrams of any lengths."""
        rows = Scattered.of(rows)
        each, drops = np.empty((5, len(rows)), np.int64), np.zeros(len(KINDS), np.int64)
        groups, place = np.empty((len(rows), 6), np.uint64), (rows.buffer, rows.starts, rows.sizes)
        count = kernels.check(*place, self._about, self._state, each, groups, drops)
        if drops.any():
            dropped.update(dict(zip(KINDS, drops.tolist(), strict=True)))
        for head, operation, first, number, third, fourth in groups[:count].tolist():
            starts, sizes, offsets, lengths, flags = each[:, first : first + number]
            kind, sender = head >> 24 & 0xFF, head >> 32 & 0xFFFF
            payload: Any = Scattered(rows.buffer, starts, sizes)
            ends = Type(kind >> 1), kind & 1, sender, operation
            latest = third >> 56, fourth & 0xFFFFFFFF, fourth >> 32
            yield Batch(*ends, offsets, lengths, flags, payload, *latest)


class CompiledBitmap(SenderBitmap):
    """Looks at each datagram in turn."""

    def take(
        self, offsets: np.ndarray, lengths: np.ndarray, drop: Drop
    ) -> tuple[Numbers, Numbers, int]:
        """See :meth:`SenderBitmap.take`."""
        chosen = np.empty((2, len(offsets)), np.int64)
        new, right = kernels.mark(self.arrived, self.nbytes, self.payload, offsets, lengths, chosen)
        if right < len(offsets):
            drop("out of range", len(offsets) - right)
        if new < right:
            drop("duplicate", right - new)
        self.seen += new
        rows = slice(0, new) if new == len(offsets) else chosen[0, :new]
        return rows, chosen[1, :new], new


def place(into: Bytes, payload: int, rows: Bytes | Scattered, numbers: Numbers) -> None:
    """See :func:`data_path.place`."""
    rows = Scattered.of(rows)
    if isinstance(numbers, slice):
        numbers = np.arange(numbers.start, numbers.stop)
    kernels.place(into, payload, rows.buffer, rows.starts, numbers)


def average(
    own: torch.Tensor, rank: int, pieces: Bytes, first: int, arrived: np.ndarray, mean: bool
) -> None:
    """See :func:`data_path.average`; what numba has no type for is made float32 by torch."""
    if own.element_size() == 2:
        run = torch.from_numpy(pieces[:, first : first + arrived.shape[1]]).view(own.dtype)
        wide, others = own.float(), run.float().contiguous()
        kernels.average(wide.numpy(), others.numpy(), arrived, 0, rank, mean)
        own.copy_(wide)
        return
    numbers = own.numpy()
    kernels.average(numbers, pieces.view(numbers.dtype), arrived, first, rank, mean)


COMPILED = DataPath(
    "compiled", CompiledSocket, CompiledReader, CompiledCodec, CompiledBitmap, place, average
)
