"""The wire format of UBT: one header of 48 bytes for every datagram, little-endian.

    byte   0  magic      u16   0x5542
           2  version    u8    1
           3  kind       u8    2 * type + stage; type 1 data, 2 credit, 3 end; stage 0 or 1
           4  sender     u16   rank
           6  receiver   u16   rank
           8  session    u64   random, from the store
          16  bucket     u32   within the step
          20  step       u32   wraps; ids are compared as serial numbers
          24  offset     u32   data: first byte within the shard; credit: may be sent up to here
          28  length     u16   bytes of payload that count
          30  flags      u8    1: among the sender's last percentile; 2: the stage is over here;
                             4: so is the operation, nothing will come from here
          31  incast     u8    senders that this rank takes at once
          32  expected   u32   this rank's t_C of the stage, microseconds
          36  sent       u32   sender's clock, microseconds; in a credit: the one it answers,
                             0 for none
          40  tag        u64   keyed BLAKE2b over everything else; 0 without authentication

A data datagram is always ``datagram_bytes`` long (the last one of a shard is padded), so that the
kernel can segment and coalesce them; the others are the header alone. Reading never raises: what
does not belong here is counted by kind and dropped.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from runtime.optireduce.options import HEADER_BYTES

MAGIC, VERSION = 0x5542, 1
LAST, OVER, GONE = 1, 2, 4
Bytes = np.ndarray[Any, np.dtype[np.uint8]]
FIELDS = {
    "magic": ("<u2", 0),
    "version": ("u1", 2),
    "kind": ("u1", 3),
    "sender": ("<u2", 4),
    "receiver": ("<u2", 6),
    "session": ("<u8", 8),
    "operation": ("<u8", 16),
    "offset": ("<u4", 24),
    "length": ("<u2", 28),
    "flags": ("u1", 30),
    "incast": ("u1", 31),
    "expected_us": ("<u4", 32),
    "sent_us": ("<u4", 36),
    "tag": ("<u8", 40),
}
HEADER = np.dtype(
    {
        "names": list(FIELDS),
        "formats": [kind for kind, _ in FIELDS.values()],
        "offsets": [at for _, at in FIELDS.values()],
        "itemsize": HEADER_BYTES,
    }
)
FIXED = np.uint64(0xFFFF0000_00FFFFFF)  # magic, version and receiver in the first word


class Type(IntEnum):
    """What a datagram is for."""

    DATA = 1
    CREDIT = 2
    END = 3


def operation_id(step: int, bucket: int) -> int:
    """Step and bucket as the one number that is on the wire."""
    return (step % 2**32) << 32 | bucket % 2**32


def is_before(a: int, b: int) -> bool:
    """Whether operation ``a`` is older than ``b``: serial number arithmetic (RFC 1982), 64 bits."""
    return 0 < (b - a) % 2**64 < 2**63


@dataclass(frozen=True)
class Batch:
    """Datagrams of one kind, sender and operation that came together.

    Attributes:
        offsets, lengths, flags: one entry per datagram, int64.
        payload: uint8 [datagrams, payload bytes]; a view of the receive buffer.
        incast, expected_us, sent_us: of the last one.
    """

    type: Type
    stage: int
    sender: int
    operation: int
    offsets: np.ndarray
    lengths: np.ndarray
    flags: np.ndarray
    payload: Bytes
    incast: int
    expected_us: int
    sent_us: int


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
        sent_us: int = 0,
    ) -> None:
        """Fill ``rows`` with consecutive data datagrams.

        Args:
            rows: uint8 [datagrams, datagram_bytes], overwritten.
            source: the shard's bytes.
            first: number of the first datagram within the shard.
            marks_from: datagrams from this number on are marked as the last percentile.
        """
        count, size = len(rows), self.payload_bytes
        header = self._header(
            Type.DATA, stage, receiver, operation, incast, expected_us, sent_us, length=size
        )
        rows[:, :HEADER_BYTES] = header.view(np.uint8)
        words = rows[:, :HEADER_BYTES].view("<u4")
        words[:, 6] = (first + np.arange(count)) * size
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
        flags: int = 0,
        incast: int = 1,
        expected_us: int = 0,
        sent_us: int = 0,
    ) -> bytes:
        """A credit or an end."""
        header = self._header(kind, stage, receiver, operation, incast, expected_us, sent_us)
        header["offset"], header["flags"] = min(offset, 2**32 - 1), flags
        row = header.view(np.uint8).reshape(1, HEADER_BYTES)
        self._seal(row)
        return row.tobytes()

    def read(self, rows: Bytes, drops: Counter[str]) -> Iterator[Batch]:
        """The batches in ``rows``, uint8 [datagrams, bytes of each].

        What is dropped is counted in ``drops``: ``malformed``, ``foreign`` (another session),
        ``misdirected`` (to or from somebody else), ``forged`` (bad tag).
        """
        size = rows.shape[1]
        if size not in (HEADER_BYTES, self.datagram_bytes) or not len(rows):
            drops["malformed"] += len(rows)
            return
        words = rows[:, :HEADER_BYTES].view("<u8")
        # the usual batch is of one sender and operation: then the first row speaks for all
        heads = [words] if len(rows) == 1 or (words[1:, :3] == words[0, :3]).all() else []
        checked = words[:1] if heads else words
        good = (checked[:, 0] & FIXED == self._fixed) & (checked[:, 1] == self.session)
        if not good.all():
            good = np.broadcast_to(good, len(rows))
            self._count_bad(rows[~good], drops)
            rows, words, heads = rows[good], words[good], []
        if self.key and len(rows):
            sealed = [
                hmac.compare_digest(self._tag(row), row[40:HEADER_BYTES].tobytes()) for row in rows
            ]
            if not all(sealed):
                drops["forged"] += len(rows) - sum(sealed)
                rows, words, heads = rows[sealed], words[sealed], []
        if not len(rows):
            return
        changes: list[int] = []
        if not heads:
            ids = words[:, [0, 2]]
            changes = (np.flatnonzero((ids[1:] != ids[:-1]).any(axis=1)) + 1).tolist()
        for low, high in zip([0, *changes], [*changes, len(rows)], strict=True):
            batch = self._batch(rows[low:high], words[low:high])
            if isinstance(batch, str):
                drops[batch] += high - low
            else:
                yield batch

    def _batch(self, rows: Bytes, words: np.ndarray) -> Batch | str:
        """The batch, or why it is dropped."""
        head, _, operation, third, fourth, _ = words[-1].tolist()
        kind, sender = head >> 24 & 0xFF, head >> 32 & 0xFFFF
        size = HEADER_BYTES if kind >> 1 != Type.DATA else self.datagram_bytes
        if not 2 <= kind <= 7 or rows.shape[1] != size:
            return "malformed"
        if sender >= self.size or sender == self.rank:
            return "misdirected"
        places = words[:, 3]
        return Batch(
            Type(kind >> 1),
            kind & 1,
            sender,
            operation,
            (places & np.uint64(0xFFFFFFFF)).view(np.int64),
            (places >> np.uint64(32) & np.uint64(0xFFFF)).view(np.int64),
            (places >> np.uint64(48) & np.uint64(0xFF)).view(np.int64),
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
        incast: int,
        expected_us: int,
        sent_us: int,
        length: int = 0,
    ) -> np.ndarray:
        header = np.zeros(1, HEADER)
        header[0] = (
            MAGIC, VERSION, 2 * kind + stage, self.rank, receiver, self.session, operation,
            0, length, 0, min(incast, 255), min(expected_us, 2**32 - 1), sent_us, 0,
        )  # fmt: skip
        return header

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
