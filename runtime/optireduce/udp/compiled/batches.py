"""The compiled data path: what stands in for numpy's codec, bitmap, placing and averaging.

Importing this compiles the kernels, or takes them from numba's cache. Reading places data of stages
that are open here at once; what it leaves is what somebody has to decide about.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from runtime.optireduce.options import HEADER_BYTES
from runtime.optireduce.udp.compiled import intake, kernels, siphash
from runtime.optireduce.udp.compiled.data_path import DataPath
from runtime.optireduce.udp.compiled.sockets import (
    DATAGRAMS,
    Burst,
    CompiledReader,
    CompiledSocket,
    Scattered,
)
from runtime.optireduce.udp.datagram import TAG_AT, Batch, Bytes, Codec, Header, Type
from runtime.optireduce.udp.reassembly import Drop, Numbers, SenderBitmap

assert (HEADER_BYTES, TAG_AT) == (kernels.HEADER, kernels.TAG_AT)
assert (HEADER_BYTES, TAG_AT) == (intake.HEADER, intake.TAG_AT)
assert siphash.TAG_AT == TAG_AT
NONE = np.zeros(0, np.int64)
NO_BYTES = np.zeros((0, 0), np.uint8)
KINDS = ("malformed", "foreign", "misdirected", "forged")
NO_STATE = np.zeros(0, np.uint64)
NOWHERE = slice(0, 0)
NUMBERS = {4: np.dtype(np.float32), 8: np.dtype(np.float64)}
TYPES: Any = [None, *Type]


class CompiledCodec(Codec):
    """Checks a batch, tags included, in one call, and writes a burst in one."""

    def __init__(
        self, session: int, rank: int, world_size: int, datagram_bytes: int, key: bytes = b""
    ) -> None:
        super().__init__(session, rank, world_size, datagram_bytes, key)
        about = int(self._fixed), session, rank, world_size, datagram_bytes
        self._about = np.array(about, np.uint64)
        self._state = NO_STATE
        self._expected = dict[tuple[int, int, int], tuple[int, SenderBitmap, np.ndarray, Bytes]]()
        self._drops = np.zeros(len(KINDS), np.int64)
        self._make_room(DATAGRAMS)
        self._tabulate()
        if key:
            self._state = siphash.keyed(key)

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
        numbers = np.empty(count, np.int64)
        numbers[:] = passed
        return Burst(common, source, first, marks_from, numbers, self.payload_bytes)

    def expect(self, operation: int, places: Iterable[tuple[int, int, Any, Bytes]]) -> None:
        """See :meth:`Codec.expect`: it is placed by :meth:`read`."""
        for key in [key for key in self._expected if key[0] == operation]:
            del self._expected[key]
        for stage, sender, bitmap, into in places:
            assert all(array.flags.carray for array in (bitmap.arrived, into))
            assert (len(bitmap.arrived), len(into) >= bitmap.nbytes) == (bitmap.count, True)
            first = int(self._fixed) | (2 * Type.DATA + stage) << 24 | sender << 32
            self._expected[operation, stage, sender] = first, bitmap, bitmap.arrived, into
        self._tabulate()

    def read(self, rows: Bytes | Scattered, dropped: Counter[str]) -> list[Batch]:
        """See :meth:`Codec.read`; the batch may be of datagrams of any lengths."""
        rows = Scattered.of(rows)
        if len(rows) > len(self._groups):
            self._make_room(len(rows))
        each = self._each
        groups = self._groups
        drops = self._drops
        place = rows.buffer, rows.starts, rows.sizes, self._about, self._state, self._table
        batches = list[Batch]()
        found, refused = intake.take(*place, each, groups, drops)
        if refused:
            dropped.update(dict(zip(KINDS, drops.tolist(), strict=True)))
            drops[:] = 0
        for head, operation, at, count, third, fourth, row, *became in groups[:found].tolist():
            kind = head >> 24 & 0xFF
            sender = head >> 32 & 0xFFFF
            ends = TYPES[kind >> 1], kind & 1, sender, operation
            latest = third >> 56, fourth & 0xFFFFFFFF, fourth >> 32
            if row != intake.NO_ROW:
                right, fresh, marked = became
                placed = count, right, fresh, bool(marked)
                batches.append(Batch(*ends, NONE, NONE, NONE, NO_BYTES, *latest, placed))
                continue
            starts, sizes, offsets, lengths, flags = each[:, at : at + count]
            payload: Any = Scattered(rows.buffer, starts, sizes)
            batches.append(Batch(*ends, offsets, lengths, flags, payload, *latest))
        return batches

    def _make_room(self, count: int) -> None:
        self._each = np.empty((5, count), np.int64)
        self._groups = np.empty((count, 10), np.uint64)

    def _tabulate(self) -> None:
        rows = [
            (first, key[0], _address(arrived), bitmap.count, _address(into), bitmap.nbytes)
            for key, (first, bitmap, arrived, into) in self._expected.items()
        ]
        self._table = np.array(rows, np.uint64).reshape(-1, 6)


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


class CompiledBitmap(SenderBitmap):
    """Looks at each datagram in turn."""

    def take(self, batch: Batch, drop: Drop) -> tuple[Numbers, Numbers, int]:
        """See :meth:`SenderBitmap.take`; nothing is left to place where that was done."""
        rows: Numbers = NOWHERE
        numbers: Numbers = NOWHERE
        if batch.placed is not None:
            count, right, new, _ = batch.placed
        else:
            offsets, count = batch.offsets, len(batch.offsets)
            chosen = np.empty((2, count), np.int64)
            about = (self.nbytes, self.payload)
            new, right = kernels.mark(self.arrived, *about, offsets, batch.lengths, chosen)
            rows = slice(0, new) if new == count else chosen[0, :new]
            numbers = chosen[1, :new]
        if right < count:
            drop("out of range", count - right)
        if new < right:
            drop("duplicate", right - new)
        self.seen += new
        return rows, numbers, new


def place(into: Bytes, payload: int, rows: Bytes | Scattered, numbers: Numbers) -> None:
    """See :func:`data_path.place`."""
    rows = Scattered.of(rows)
    if isinstance(numbers, slice):
        numbers = np.arange(numbers.start, numbers.stop)
    kernels.place(into, payload, rows.buffer, rows.starts, numbers)


def runs(
    arrived: np.ndarray, reduced: np.ndarray, least: int, every: bool
) -> list[tuple[int, int]]:
    """See :func:`data_path.runs`."""
    found = np.empty((len(reduced) // max(1, least) + 1, 2), np.int64)
    count = kernels.runs(arrived, reduced, least, every, found)
    return [(first, stop) for first, stop in found[:count].tolist()]


def average(
    own: Bytes,
    dtype: torch.dtype,
    rank: int,
    pieces: Bytes,
    first: int,
    arrived: np.ndarray,
    mean: bool,
) -> None:
    """See :func:`data_path.average`; what numba has no type for is made float32 by torch."""
    if dtype.itemsize == 2:
        run = torch.from_numpy(pieces[:, first : first + arrived.shape[1]]).view(dtype)
        narrow = torch.from_numpy(own).view(dtype)
        wide = narrow.float()
        others = run.float().contiguous()
        kernels.average(wide.numpy(), others.numpy(), arrived, 0, rank, mean)
        narrow.copy_(wide)
        return
    width = NUMBERS[dtype.itemsize]
    kernels.average(own.view(width), pieces.view(width), arrived, first, rank, mean)


COMPILED = DataPath(
    "compiled", CompiledSocket, CompiledReader, CompiledCodec, CompiledBitmap, place, runs, average
)
