"""The compiled data path: what stands in for numpy's codec, placer and averaging.

Importing this compiles the kernels, or takes them from numba's cache. Data of stages that are open
here is placed by the same call that checks it; what that leaves (control, and what is too early or
too late) is few, and goes the way of numpy's path.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch

from latecomer.runtime.optireduce.options import HEADER_BYTES
from latecomer.runtime.optireduce.udp.compiled import intake, kernels, siphash
from latecomer.runtime.optireduce.udp.compiled.sockets import (
    DATAGRAMS,
    CompiledReader,
    CompiledSocket,
    Scattered,
    UnwrittenBurst,
)
from latecomer.runtime.optireduce.udp.data_path import DataPath
from latecomer.runtime.optireduce.udp.datagram import TAG_AT, Batch, Codec
from latecomer.runtime.optireduce.udp.events import (
    Burst,
    Bytes,
    DatagramHeader,
    ExpectedShard,
    Placed,
    Type,
    UbtEvent,
)
from latecomer.runtime.optireduce.udp.placement import Placer

assert (HEADER_BYTES, TAG_AT) == (kernels.HEADER, kernels.TAG_AT)
assert (HEADER_BYTES, TAG_AT) == (intake.HEADER, intake.TAG_AT)
assert siphash.TAG_AT == TAG_AT
KINDS = ("malformed", "foreign", "misdirected", "forged")  # as ``intake`` numbers them
COMMONS = 256  # headers that are kept: one for each shard that is on its way
NO_STATE = np.zeros(0, np.uint64)
NO_TABLE = np.zeros((0, 6), np.uint64)
NUMBERS = {4: np.dtype(np.float32), 8: np.dtype(np.float64)}
TYPES: Any = [None, *Type]  # by their numbers: sooner than Type(number)


class PlacedGroup(NamedTuple):
    """Data of one expected shard that was placed as it was read."""

    event: Placed
    in_range: int  # datagrams that belong to the shard, new or not


class CompiledCodec(Codec):
    """Checks a batch, tags included, in one call, and writes a burst in one."""

    def __init__(
        self, session: int, rank: int, world_size: int, datagram_bytes: int, key: bytes = b""
    ) -> None:
        super().__init__(session, rank, world_size, datagram_bytes, key)
        # see ``intake.take``
        first_word = int(self._fixed)
        self._about = np.array([first_word, session, rank, world_size, datagram_bytes], np.uint64)
        self._state = siphash.keyed(key) if key else NO_STATE
        self._drops = np.zeros(len(KINDS), np.int64)
        self._commons = dict[DatagramHeader, Bytes]()
        self._make_room(DATAGRAMS)

    def write(self, rows: Bytes, burst: Burst) -> None:
        """See :meth:`Codec.write`."""
        kernels.write(
            rows,
            burst.source,
            burst.first,
            burst.marks_from,
            self._common(burst.header),
            burst.passed,
            self._state,
        )

    def burst(self, burst: Burst) -> Any:
        """See :meth:`Codec.burst`: with tags in memory of its own, else unwritten."""
        if self.key:
            return super().burst(burst)
        return UnwrittenBurst(burst, self._common(burst.header), self.payload_bytes)

    def read(self, rows: Bytes | Scattered, dropped: Counter[str]) -> list[Any]:
        """See :meth:`Codec.read`; the batch may be of datagrams of any lengths."""
        return self.take(rows, dropped, NO_TABLE)

    def take(
        self, rows: Bytes | Scattered, dropped: Counter[str], table: np.ndarray
    ) -> list[Batch | PlacedGroup]:
        """What is in the table (see ``intake``) is placed; all else comes as batches."""
        rows = Scattered.of(rows)
        if len(rows) > len(self._groups):
            self._make_room(len(rows))
        group_count, refused = intake.take(
            rows.buffer,
            rows.starts,
            rows.sizes,
            self._about,
            self._state,
            table,
            self._each,
            self._groups,
            self._drops,
        )
        if refused:
            dropped.update(dict(zip(KINDS, self._drops.tolist(), strict=True)))
            self._drops[:] = 0
        return [self._group(rows, group) for group in self._groups[:group_count].tolist()]

    def _group(self, rows: Scattered, group: list[int]) -> Batch | PlacedGroup:
        """Of a row of the groups that ``intake.take`` has filled."""
        first_word, operation, begin, count, fourth_word, fifth_word, row, *placed = group
        kind = first_word >> 24 & 0xFF
        sender = first_word >> 32 & 0xFFFF
        incast = fourth_word >> 56
        expected_us = fifth_word & 0xFFFFFFFF
        passed = fifth_word >> 32
        if row != intake.NO_ROW:
            in_range, fresh, marked = placed
            event = Placed(
                stage=kind & 1,
                peer=sender,
                operation=operation,
                datagrams=count,
                fresh=fresh,
                marked=bool(marked),
                incast=incast,
                expected_us=expected_us,
                passed=passed,
            )
            return PlacedGroup(event, in_range)
        starts, sizes, offsets, lengths, flags = self._each[:, begin : begin + count]
        payload: Any = Scattered(rows.buffer, starts, sizes)
        return Batch(
            type=TYPES[kind >> 1],
            stage=kind & 1,
            sender=sender,
            operation=operation,
            offsets=offsets,
            lengths=lengths,
            flags=flags,
            payload=payload,
            incast=incast,
            expected_us=expected_us,
            passed=passed,
        )

    def _common(self, header: DatagramHeader) -> Bytes:
        """What the headers of a burst begin with; the kernels write the rest of them."""
        common = self._commons.get(header)
        if common is None:  # they are the same for most of a shard
            common = np.frombuffer(self._pack(Type.DATA, header), np.uint8)
            if len(self._commons) >= COMMONS:
                self._commons.clear()
            self._commons[header] = common
        return common

    def _make_room(self, count: int) -> None:
        self._each = np.empty((5, count), np.int64)
        self._groups = np.empty((count, 10), np.uint64)


class CompiledPlacer(Placer):
    """Places by a table of addresses, which stand for what is expected."""

    codec: CompiledCodec

    def __init__(self, codec: CompiledCodec) -> None:
        super().__init__(codec)
        self._table = NO_TABLE

    def open(self, operation: int, shards: Iterable[ExpectedShard]) -> list[UbtEvent]:
        """See :meth:`Placer.open`."""
        events = super().open(operation, shards)
        self._tabulate()
        return events

    def close(self, operation: int, stage: int) -> None:
        """See :meth:`Placer.close`."""
        super().close(operation, stage)
        self._tabulate()

    def read(self, rows: Any) -> list[UbtEvent]:
        """See :meth:`Placer.read`."""
        events: list[UbtEvent] = []
        for group in self.codec.take(rows, self.dropped, self._table):
            if isinstance(group, Batch):
                events += self._events([group])
                continue
            placed = group.event
            if group.in_range < placed.datagrams:
                self.drop(placed.peer, "out of range", placed.datagrams - group.in_range)
            if placed.fresh < group.in_range:
                self.drop(placed.peer, "duplicate", group.in_range - placed.fresh)
            events.append(placed)
        return events

    def _tabulate(self) -> None:
        """Tell the kernels what is expected; the arrays live while they are in ``_expected``."""
        payload_bytes = self.codec.payload_bytes
        rows = []
        for (operation, stage, sender), shard in self._expected.items():
            # The kernels write by address: that these hold is what keeps them within the arrays.
            assert shard.arrived.flags.carray
            assert shard.into.flags.carray
            assert len(shard.arrived) == -(-len(shard.into) // payload_bytes)
            rows.append(
                (
                    self.codec.first_word(Type.DATA, stage, sender),
                    operation,
                    _address(shard.arrived),
                    len(shard.arrived),
                    _address(shard.into),
                    len(shard.into),
                )
            )
        self._table = np.array(rows, np.uint64).reshape(-1, 6)


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def runs(
    arrived: np.ndarray, reduced: np.ndarray, least: int, every: bool
) -> list[tuple[int, int]]:
    """See :func:`data_path.runs`."""
    ends = np.empty((len(reduced) // max(1, least) + 1, 2), np.int64)
    count = kernels.runs(arrived, reduced, least, every, ends)
    return [(first, stop) for first, stop in ends[:count].tolist()]


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
        received = run.float().contiguous()
        kernels.average(wide.numpy(), received.numpy(), arrived, 0, rank, mean)
        narrow.copy_(wide)
        return
    width = NUMBERS[dtype.itemsize]
    kernels.average(own.view(width), pieces.view(width), arrived, first, rank, mean)


COMPILED = DataPath(
    how="compiled",
    socket=CompiledSocket,
    reader=CompiledReader,
    codec=CompiledCodec,
    placer=CompiledPlacer,
    runs=runs,
    average=average,
)
