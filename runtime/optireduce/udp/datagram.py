"""The wire format of UBT, and its codec: one header of 48 bytes for every datagram, little-endian.

``PACKED`` has its fields in the order of the docs' table, which says what each means. The
datagrams of a shard may be sent in any order; ``passed`` counts them in the order of sending, so
that a credit says what has left the network, lost or not. What the datagrams of a burst have in
common is written, and checked, once. Reading never raises. Dropped is what is malformed, foreign
(of another session), misdirected (to or from another rank) or forged (its tag is bad).
"""

from __future__ import annotations

import hmac
import struct
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from nacl.bindings import crypto_shorthash_siphash24

from latecomer.runtime.optireduce.options import HEADER_BYTES
from latecomer.runtime.optireduce.udp.events import Burst, Bytes, Control, DatagramHeader, Type

MAGIC = 0x5542
VERSION = 3
LAST = 1  # flag of data: it belongs to the last percentile of its shard
PACKED = struct.Struct("<HBBHHQQIHBBIIQ")
FLAGS_AT = 30
TAG_AT = 40
FIXED = np.uint64(0xFFFF0000_00FFFFFF)  # magic, version and receiver in the first word
MAGIC_AND_VERSION = np.uint64(0xFFFFFF)  # these two in it
# of the header's words of 4, and of 2 bytes
OFFSET_WORD = 6
PASSED_WORD = 9
LENGTH_HALF_WORD = 14


class Batch(NamedTuple):
    """Datagrams of one kind, sender and operation that came together."""

    type: Type
    stage: int
    sender: int
    operation: int
    offsets: np.ndarray  # and the next two: one entry per datagram, int64
    lengths: np.ndarray
    flags: np.ndarray
    payload: Bytes  # uint8 [datagrams, payload bytes]; a view of the receive buffer
    incast: int  # and the next two: of the last one
    expected_us: int
    passed: int


class Codec:
    """Writes and reads the datagrams of one rank; ``key``: 16 bytes for tags, empty: no tags."""

    def __init__(
        self, session: int, rank: int, world_size: int, datagram_bytes: int, key: bytes = b""
    ) -> None:
        self.session = session
        self.rank = rank
        self.world_size = world_size
        self.key = key
        self.datagram_bytes = datagram_bytes
        self.payload_bytes = datagram_bytes - HEADER_BYTES
        self._fixed = np.uint64(MAGIC | VERSION << 16 | rank << 48)

    def burst(self, burst: Burst) -> Any:
        """Its datagrams, uint8 [datagrams, datagram_bytes], or what stands for them at a socket."""
        rows: Bytes = np.empty((burst.datagrams, self.datagram_bytes), np.uint8)
        self.write(rows, burst)
        return rows

    def write(self, rows: Bytes, burst: Burst) -> None:
        """Fill ``rows``, uint8 [datagrams, datagram_bytes], with those of a burst."""
        count = len(rows)
        first = burst.first
        payload_bytes = self.payload_bytes
        header = self._pack(Type.DATA, burst.header, length=payload_bytes)
        rows[:, :HEADER_BYTES] = np.frombuffer(header, np.uint8)
        words = rows[:, :HEADER_BYTES].view("<u4")
        begin = first * payload_bytes
        end = begin + count * payload_bytes
        words[:, OFFSET_WORD] = np.arange(begin, end, payload_bytes)
        words[:, PASSED_WORD] = burst.passed
        if first + count > burst.marks_from:
            rows[max(0, burst.marks_from - first) :, FLAGS_AT] = LAST

        payload = burst.source[begin:end]
        full = len(payload) // payload_bytes
        rows[:full, HEADER_BYTES:] = payload[: full * payload_bytes].reshape(full, payload_bytes)
        if full < count:  # the shard's last datagram is filled up with zeros
            remainder = payload[full * payload_bytes :]
            padding_at = HEADER_BYTES + len(remainder)
            rows[full, HEADER_BYTES:padding_at] = remainder
            rows[full, padding_at:] = 0
            rows[full, :HEADER_BYTES].view("<u2")[LENGTH_HALF_WORD] = len(remainder)

        self._seal(rows)

    def control(self, message: Control) -> bytes:
        """A credit or an end."""
        header = DatagramHeader(
            message.stage, message.peer, message.operation, message.incast, message.expected_us
        )
        datagram = self._pack(
            message.type,
            header,
            offset=message.passed,
            length=message.window,
            flags=message.flags,
        )
        if not self.key:
            return datagram
        row = np.frombuffer(datagram, np.uint8).reshape(1, HEADER_BYTES).copy()
        self._seal(row)
        return row.tobytes()

    def read(self, rows: Bytes, dropped: Counter[str]) -> Iterable[Batch]:
        """The batches in ``rows``, uint8 [datagrams, bytes of each]; what is dropped is counted."""
        if not len(rows):
            return
        if rows.shape[1] not in (HEADER_BYTES, self.datagram_bytes):
            dropped["malformed"] += len(rows)
            return
        words = rows[:, :HEADER_BYTES].view("<u8")

        # the usual batch is of one sender and operation: then the first row speaks for all
        alike = len(rows) == 1 or bool((words[1:, :3] == words[0, :3]).all())
        if not (alike and words[0, 0] & FIXED == self._fixed and words[0, 1] == self.session):
            ours = (words[:, 0] & FIXED == self._fixed) & (words[:, 1] == self.session)
            if not ours.all():
                self._count_not_ours(words[~ours], dropped)
                rows = rows[ours]
                words = words[ours]

        if self.key and len(rows):
            tags = (row[TAG_AT:HEADER_BYTES].tobytes() for row in rows)
            sealed = [*map(hmac.compare_digest, map(self._tag, rows), tags)]
            if not all(sealed):
                dropped["forged"] += len(rows) - sum(sealed)
                rows = rows[sealed]
                words = words[sealed]

        if not len(rows):
            return
        parts = [slice(0, len(rows))] if alike else _rows_by_shard(words[:, [0, 2]])
        for part in parts:
            batch = self._batch(rows[part], words[part])
            if isinstance(batch, str):
                dropped[batch] += len(rows[part])
            else:
                yield batch

    def first_word(self, kind: Type, stage: int, sender: int) -> int:
        """The first 8 bytes of the header of a datagram that comes to this rank."""
        return int(self._fixed) | (2 * kind + stage) << 24 | sender << 32

    def _batch(self, rows: Bytes, words: np.ndarray) -> Batch | str:
        """The batch, or why it is dropped; ``words``: of the headers, uint64 [datagrams, 6]."""
        # of what a sender announces the latest counts
        first_word, _, operation, fourth_word, fifth_word, _ = words[-1].tolist()
        kind = first_word >> 24 & 0xFF
        sender = first_word >> 32 & 0xFFFF
        datagram_bytes = HEADER_BYTES if kind >> 1 != Type.DATA else self.datagram_bytes
        if not 2 <= kind <= 7 or rows.shape[1] != datagram_bytes:
            return "malformed"
        if sender >= self.world_size or sender == self.rank:
            return "misdirected"
        fourth_words = words[:, 3].view(np.int64)
        return Batch(
            type=Type(kind >> 1),
            stage=kind & 1,
            sender=sender,
            operation=operation,
            offsets=fourth_words & 0xFFFFFFFF,
            lengths=fourth_words >> 32 & 0xFFFF,
            flags=fourth_words >> 48 & 0xFF,
            payload=rows[:, HEADER_BYTES:],
            incast=fourth_word >> 56,
            expected_us=fifth_word & 0xFFFFFFFF,
            passed=fifth_word >> 32,
        )

    def _pack(
        self, kind: Type, header: DatagramHeader, offset: int = 0, length: int = 0, flags: int = 0
    ) -> bytes:
        return PACKED.pack(
            MAGIC,
            VERSION,
            2 * kind + header.stage,
            self.rank,
            header.receiver,
            self.session,
            header.operation,
            min(offset, 2**32 - 1),
            min(length, 2**16 - 1),
            flags,
            min(header.incast, 255),
            min(header.expected_us, 2**32 - 1),
            0,  # passed: each datagram of a burst has its own
            0,  # the tag
        )

    def _count_not_ours(self, words: np.ndarray, dropped: Counter[str]) -> None:
        malformed = words[:, 0] & MAGIC_AND_VERSION != self._fixed & MAGIC_AND_VERSION
        foreign = ~malformed & (words[:, 1] != self.session)
        dropped["malformed"] += int(malformed.sum())
        dropped["foreign"] += int(foreign.sum())
        dropped["misdirected"] += int((~(malformed | foreign)).sum())

    def _tag(self, row: Bytes) -> bytes:
        datagram = row.tobytes()
        return crypto_shorthash_siphash24(datagram[:TAG_AT] + datagram[HEADER_BYTES:], self.key)

    def _seal(self, rows: Bytes) -> None:
        if self.key:
            for row in rows:
                row[TAG_AT:HEADER_BYTES] = np.frombuffer(self._tag(row), np.uint8)


def _rows_by_shard(ids: np.ndarray) -> list[slice | np.ndarray]:
    """The rows of each sender and operation, in the order of their first ones.

    ids: uint64 [datagrams, 2], the first word of the header and the operation.
    """
    order = np.lexsort((ids[:, 1], ids[:, 0]))
    ids = ids[order]
    parts = np.split(order, np.flatnonzero((ids[1:] != ids[:-1]).any(axis=1)) + 1)
    parts.sort(key=lambda part: int(part[0]))
    return [_as_slice(part) for part in parts]


def _as_slice(rows: np.ndarray) -> slice | np.ndarray:
    """Rising numbers as a slice where they follow each other: to index by it copies nothing."""
    first = int(rows[0])
    stop = int(rows[-1]) + 1
    return slice(first, stop) if stop - first == len(rows) else rows
