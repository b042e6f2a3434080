"""The wire format of UBT: one header of 48 bytes for every datagram, little-endian.

    byte   0  magic      u16   0x5542
           2  version    u8    2
           3  kind       u8    2 * type + stage; type 1 data, 2 credit, 3 end; stage 0 or 1
           4  sender     u16   rank
           6  receiver   u16   rank
           8  session    u64   random, from the store
          16  bucket     u32   within the step
          20  step       u32   wraps; ids are compared as serial numbers
          24  offset     u32   data: first byte within the shard; credit: largest ``passed`` seen
          28  length     u16   data: bytes of payload that count; credit: datagrams that may be
                             underway, beyond those that have passed
          30  flags      u8    1: among the sender's last percentile; 2: the stage is over here;
                             4: so is the operation, nothing will come from here
          31  incast     u8    senders that this rank takes at once
          32  expected   u32   this rank's t_C of the stage, microseconds
          36  passed     u32   data: how many datagrams of the shard will have been sent with the
                             burst that this one belongs to
          40  tag        u64   keyed BLAKE2b over everything else; 0 without authentication

A data datagram is always ``datagram_bytes`` long (the last one of a shard is padded), so that the
kernel can segment and coalesce them; the others are the header alone. The datagrams of a shard may
be sent in any order; ``passed`` counts them in the order of sending, so that a credit says what has
left the network, lost or not. :mod:`codec` writes and reads them.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from runtime.optireduce.options import HEADER_BYTES

MAGIC, VERSION = 0x5542, 2
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
    "passed": ("<u4", 36),
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


class Batch(NamedTuple):
    """Datagrams of one kind, sender and operation that came together.

    Attributes:
        offsets, lengths, flags: one entry per datagram, int64.
        payload: uint8 [datagrams, payload bytes]; a view of the receive buffer.
        incast, expected_us, passed: of the last one.
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
    passed: int
