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
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from nacl.bindings import crypto_shorthash_siphash24

from runtime.optireduce.options import HEADER_BYTES

MAGIC = 0x5542
VERSION = 3
LAST = 1
OVER = 2
GONE = 4
Bytes = np.ndarray[Any, np.dtype[np.uint8]]
PACKED = struct.Struct("<HBBHHQQIHBBIIQ")
FLAGS_AT = 30
TAG_AT = 40
FIXED = np.uint64(0xFFFF0000_00FFFFFF)  # magic, version and receiver in the first word


class Type(IntEnum):
    """What a datagram is for."""

    DATA = 1
    CREDIT = 2
    END = 3


class Header(NamedTuple):
    """What datagrams to one peer have in common; the field ``operation`` is bucket and step."""

    stage: int
    receiver: int
    operation: int
    incast: int = 1
    expected_us: int = 0


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
    placed: tuple[int, int, int, bool] | None = None  # as they were read: all, right, new; marked


def operation_id(step: int, bucket: int) -> int:
    """Step and bucket as the one number that is on the wire."""
    return (step % 2**32) << 32 | bucket % 2**32


def is_before(a: int, b: int) -> bool:
    """Whether operation ``a`` is older than ``b``: serial number arithmetic (RFC 1982), 64 bits."""
    return 0 < (b - a) % 2**64 < 2**63


class Codec:
    """Writes and reads the datagrams of one rank; ``key``: 16 bytes for tags, empty: no tags."""

    def __init__(
        self, session: int, rank: int, world_size: int, datagram_bytes: int, key: bytes = b""
    ) -> None:
        self.session = session
        self.rank = rank
        self.world_size = world_size
        self.key = key
        self.datagram_bytes, self.payload_bytes = datagram_bytes, datagram_bytes - HEADER_BYTES
        self._fixed = np.uint64(MAGIC | VERSION << 16 | rank << 48)

    def expect(self, operation: int, places: Iterable[tuple[int, int, Any, Bytes]]) -> None:
        """Data may be placed as it is read (here not): stage, sender, bitmap, where to, of each."""

    def data(
        self,
        rows: Bytes,
        source: Bytes,
        first: int,
        marks_from: int,
        header: Header,
        passed: int | np.ndarray = 0,
    ) -> None:
        """Fill ``rows``, uint8 [datagrams, datagram_bytes], with consecutive ones of a shard.

        ``source`` has the shard's bytes, ``first`` is the number of the first datagram, those from
        ``marks_from`` on are marked; ``passed`` were sent with these and before (or with each).
        """
        count = len(rows)
        nbytes = self.payload_bytes
        head = self._pack(Type.DATA, header, length=nbytes)
        rows[:, :HEADER_BYTES] = np.frombuffer(head, np.uint8)
        words = rows[:, :HEADER_BYTES].view("<u4")
        words[:, 6] = np.arange(first * nbytes, (first + count) * nbytes, nbytes)
        words[:, 9] = passed
        if first + count > marks_from:
            rows[max(0, marks_from - first) :, FLAGS_AT] = LAST
        part = source[first * nbytes : (first + count) * nbytes]
        whole = len(part) // nbytes
        rows[:whole, HEADER_BYTES:] = part[: whole * nbytes].reshape(whole, nbytes)
        if whole < count:
            left = part[whole * nbytes :]
            rows[whole, HEADER_BYTES : HEADER_BYTES + len(left)] = left
            rows[whole, HEADER_BYTES + len(left) :] = 0
            rows[whole, :HEADER_BYTES].view("<u2")[14] = len(left)
        self._seal(rows)

    def burst(self, count: int, source: Bytes, first: int, *what: Any) -> Any:
        """So many rows (see :meth:`data`), or what stands for them until the next ones."""
        rows: Bytes = np.empty((count, self.datagram_bytes), np.uint8)
        self.data(rows, source, first, *what)
        return rows

    def control(
        self, kind: Type, header: Header, *, offset: int = 0, length: int = 0, flags: int = 0
    ) -> bytes:
        """A credit or an end."""
        head = self._pack(kind, header, offset, length, flags)
        if not self.key:
            return head
        row = np.frombuffer(head, np.uint8).reshape(1, HEADER_BYTES).copy()
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
            good = (words[:, 0] & FIXED == self._fixed) & (words[:, 1] == self.session)
            if not good.all():
                self._count_bad(words[~good], dropped)
                rows = rows[good]
                words = words[good]
        if self.key and len(rows):
            tags = (row[TAG_AT:HEADER_BYTES].tobytes() for row in rows)
            sealed = [*map(hmac.compare_digest, map(self._tag, rows), tags)]
            if not all(sealed):
                dropped["forged"] += len(rows) - sum(sealed)
                rows = rows[sealed]
                words = words[sealed]
        if not len(rows):
            return
        for part in [slice(0, len(rows))] if alike else _parts(words[:, [0, 2]]):
            batch = self._batch(rows[part], words[part])
            if isinstance(batch, str):
                dropped[batch] += len(rows[part])
            else:
                yield batch

    def _batch(self, rows: Bytes, words: np.ndarray) -> Batch | str:
        """The batch, or why it is dropped."""
        head, _, operation, third, fourth, _ = words[-1].tolist()
        kind = head >> 24 & 0xFF
        sender = head >> 32 & 0xFFFF
        nbytes = HEADER_BYTES if kind >> 1 != Type.DATA else self.datagram_bytes
        if not 2 <= kind <= 7 or rows.shape[1] != nbytes:
            return "malformed"
        if sender >= self.world_size or sender == self.rank:
            return "misdirected"
        places = words[:, 3].view(np.int64)
        each = places & 0xFFFFFFFF, places >> 32 & 0xFFFF, places >> 48 & 0xFF
        latest = third >> 56, fourth & 0xFFFFFFFF, fourth >> 32
        payload = rows[:, HEADER_BYTES:]
        return Batch(Type(kind >> 1), kind & 1, sender, operation, *each, payload, *latest)

    def _pack(
        self, kind: Type, header: Header, offset: int = 0, length: int = 0, flags: int = 0
    ) -> bytes:
        stage, receiver, operation, incast, expected_us = header
        ends = MAGIC, VERSION, 2 * kind + stage, self.rank, receiver, self.session, operation
        place = min(offset, 2**32 - 1), min(length, 2**16 - 1), flags
        return PACKED.pack(*ends, *place, min(incast, 255), min(expected_us, 2**32 - 1), 0, 0)

    def _count_bad(self, words: np.ndarray, dropped: Counter[str]) -> None:
        malformed = words[:, 0] & np.uint64(0xFFFFFF) != self._fixed & np.uint64(0xFFFFFF)
        foreign = ~malformed & (words[:, 1] != self.session)
        about = {"malformed": malformed, "foreign": foreign, "misdirected": ~(malformed | foreign)}
        dropped.update({kind: int(rows.sum()) for kind, rows in about.items()})

    def _tag(self, row: Bytes) -> bytes:
        whole = row.tobytes()
        return crypto_shorthash_siphash24(whole[:TAG_AT] + whole[HEADER_BYTES:], self.key)

    def _seal(self, rows: Bytes) -> None:
        if self.key:
            for row in rows:
                row[TAG_AT:HEADER_BYTES] = np.frombuffer(self._tag(row), np.uint8)


def _parts(ids: np.ndarray) -> list[slice | np.ndarray]:
    """The rows of each sender and operation, in the order of their first ones."""
    order = np.lexsort((ids[:, 1], ids[:, 0]))
    ids = ids[order]
    parts = np.split(order, np.flatnonzero((ids[1:] != ids[:-1]).any(axis=1)) + 1)
    parts.sort(key=lambda part: int(part[0]))
    ends = ((part, int(part[0]), int(part[-1]) + 1) for part in parts)
    return [slice(low, high) if high - low == len(p) else p for p, low, high in ends]
