"""Writes and reads the datagrams of one rank; the format is in :mod:`wire`.

Whole batches at a time: what the datagrams of a burst have in common is written, and checked, once.
Reading never raises: what does not belong here is counted by kind and dropped.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import struct
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from runtime.optireduce.options import HEADER_BYTES
from runtime.optireduce.udp.datagram import (
    FIELDS,
    LAST,
    MAGIC,
    VERSION,
    Batch,
    Bytes,
    Type,
)

PACKED = struct.Struct("<HBBHHQQIHBBIIQ")  # the fields of HEADER in order
FIXED = np.uint64(0xFFFF0000_00FFFFFF)  # magic, version and receiver in the first word
INTERLEAVED = 8
"""So many changes of sender in what was read together: sorting pays."""


class Codec:
    """Writes and reads the datagrams of one rank.

    Args:
        session: shared by the ranks.
        key: for authentication; empty: none.
    """

    def __init__(
        self, session: int, rank: int, size: int, datagram_bytes: int, key: bytes = b""
    ) -> None:
        self.session, self.rank, self.size = session, rank, size
        self.datagram_bytes, self.key = datagram_bytes, key
        self.payload_bytes = datagram_bytes - HEADER_BYTES
        self._fixed = np.uint64(MAGIC | VERSION << 16 | rank << 48)

    def data(
        self,
        rows: Bytes,
        source: Bytes,
        first: int,
        marks_from: int,
        *,
        stage: int,
        receiver: int,
        operation: int,
        incast: int = 1,
        expected_us: int = 0,
        passed: int | np.ndarray = 0,
    ) -> None:
        """Fill ``rows`` with consecutive data datagrams.

        Args:
            rows: uint8 [datagrams, datagram_bytes], overwritten.
            source: the shard's bytes.
            first: number of the first datagram within the shard.
            marks_from: datagrams from this number on are marked as the last percentile.
            passed: datagrams of the shard sent with these and before; or of each one, with its
                burst and before.
        """
        count, size = len(rows), self.payload_bytes
        head = self._header(
            Type.DATA, stage, receiver, operation, 0, size, 0, incast, expected_us, 0
        )
        rows[:, :HEADER_BYTES] = np.frombuffer(head, np.uint8)
        words = rows[:, :HEADER_BYTES].view("<u4")
        words[:, 6] = np.arange(first * size, (first + count) * size, size)
        words[:, 9] = passed
        if first + count > marks_from:
            rows[max(0, marks_from - first) :, FIELDS["flags"][1]] = LAST
        part = source[first * size : (first + count) * size]
        whole = len(part) // size
        rows[:whole, HEADER_BYTES:] = part[: whole * size].reshape(whole, size)
        if whole < count:
            left = part[whole * size :]
            rows[whole, HEADER_BYTES : HEADER_BYTES + len(left)] = left
            rows[whole, HEADER_BYTES + len(left) :] = 0
            rows[whole, :HEADER_BYTES].view("<u2")[14] = len(left)
        self._seal(rows)

    def control(
        self,
        kind: Type,
        stage: int,
        receiver: int,
        operation: int,
        *,
        offset: int = 0,
        length: int = 0,
        flags: int = 0,
        incast: int = 1,
        expected_us: int = 0,
    ) -> bytes:
        """A credit or an end."""
        head = self._header(
            kind, stage, receiver, operation, offset, length, flags, incast, expected_us, 0
        )
        if not self.key:
            return head
        row = np.frombuffer(head, np.uint8).reshape(1, HEADER_BYTES).copy()
        self._seal(row)
        return row.tobytes()

    def read(self, rows: Bytes, drops: Counter[str]) -> Iterator[Batch]:
        """The batches in ``rows``, uint8 [datagrams, bytes of each].

        What is dropped is counted in ``drops``: ``malformed``, ``foreign`` (another session),
        ``misdirected`` (to or from somebody else), ``forged`` (bad tag).
        """
        size = rows.shape[1]
        if not len(rows):
            return
        if size not in (HEADER_BYTES, self.datagram_bytes):
            drops["malformed"] += len(rows)
            return
        words = rows[:, :HEADER_BYTES].view("<u8")
        # the usual batch is of one sender and operation: then the first row speaks for all
        alike = len(rows) == 1 or bool((words[1:, :3] == words[0, :3]).all())
        if not (alike and self._belongs(words[0])):
            good = (words[:, 0] & FIXED == self._fixed) & (words[:, 1] == self.session)
            if not good.all():
                self._count_bad(rows[~good], drops)
                rows, words = rows[good], words[good]
        if self.key and len(rows):
            sealed = [
                hmac.compare_digest(self._tag(row), row[40:HEADER_BYTES].tobytes()) for row in rows
            ]
            if not all(sealed):
                drops["forged"] += len(rows) - sum(sealed)
                rows, words = rows[sealed], words[sealed]
        if not len(rows):
            return
        for part in [slice(0, len(rows))] if alike else self._parts(words):
            batch = self._batch(rows[part], words[part])
            if isinstance(batch, str):
                drops[batch] += len(rows[part])
            else:
                yield batch

    def _belongs(self, words: np.ndarray) -> bool:
        """Whether a header is of this session and for this rank."""
        return bool(words[0] & FIXED == self._fixed and words[1] == self.session)

    def _parts(self, words: np.ndarray) -> Sequence[slice | np.ndarray]:
        """The rows of each sender and operation; sorted if they come interleaved."""
        ids = words[:, [0, 2]]
        starts = np.flatnonzero((ids[1:] != ids[:-1]).any(axis=1)) + 1
        if len(starts) < INTERLEAVED:
            bounds = [0, *starts.tolist(), len(words)]
            return [slice(low, high) for low, high in itertools.pairwise(bounds)]
        order = np.lexsort((ids[:, 1], ids[:, 0]))
        ids = ids[order]
        return np.split(order, np.flatnonzero((ids[1:] != ids[:-1]).any(axis=1)) + 1)

    def _batch(self, rows: Bytes, words: np.ndarray) -> Batch | str:
        """The batch, or why it is dropped."""
        head, _, operation, third, fourth, _ = words[-1].tolist()
        kind, sender = head >> 24 & 0xFF, head >> 32 & 0xFFFF
        size = HEADER_BYTES if kind >> 1 != Type.DATA else self.datagram_bytes
        if not 2 <= kind <= 7 or rows.shape[1] != size:
            return "malformed"
        if sender >= self.size or sender == self.rank:
            return "misdirected"
        places = words[:, 3].view(np.int64)
        return Batch(
            Type(kind >> 1),
            kind & 1,
            sender,
            operation,
            places & 0xFFFFFFFF,
            places >> 32 & 0xFFFF,
            places >> 48 & 0xFF,
            rows[:, HEADER_BYTES:],
            third >> 56,
            fourth & 0xFFFFFFFF,
            fourth >> 32,
        )

    def _header(
        self,
        kind: Type,
        stage: int,
        receiver: int,
        operation: int,
        offset: int,
        length: int,
        flags: int,
        incast: int,
        expected_us: int,
        passed: int,
    ) -> bytes:
        return PACKED.pack(
            MAGIC, VERSION, 2 * kind + stage, self.rank, receiver, self.session, operation,
            min(offset, 2**32 - 1), min(length, 2**16 - 1), flags, min(incast, 255),
            min(expected_us, 2**32 - 1), min(passed, 2**32 - 1), 0,
        )  # fmt: skip

    def _count_bad(self, rows: Bytes, drops: Counter[str]) -> None:
        words = rows[:, :HEADER_BYTES].view("<u8")
        malformed = words[:, 0] & np.uint64(0xFFFFFF) != self._fixed & np.uint64(0xFFFFFF)
        foreign = ~malformed & (words[:, 1] != self.session)
        drops["malformed"] += int(malformed.sum())
        drops["foreign"] += int(foreign.sum())
        drops["misdirected"] += int((~malformed & ~foreign).sum())

    def _tag(self, row: Bytes) -> bytes:
        mac = hashlib.blake2b(row[:40].tobytes(), key=self.key, digest_size=8)
        mac.update(row[HEADER_BYTES:].data)
        return mac.digest()

    def _seal(self, rows: Bytes) -> None:
        if self.key:
            for row in rows:
                row[40:HEADER_BYTES] = np.frombuffer(self._tag(row), np.uint8)
