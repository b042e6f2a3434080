"""What came for operations that this rank has not entered yet; it is heard when it does.

A sender does not wait for the sign that a peer has entered an operation before it sends the first
grant of datagrams, so that a rank that comes last finds data there already instead of waiting for
a round trip. How much is kept of each sender is limited; what is beyond that is lost.
"""

from __future__ import annotations

from collections import Counter

from runtime.optireduce.options import HEADER_BYTES
from runtime.optireduce.udp.datagram import Batch, is_before

MOST_BYTES = 1 << 20
"""Kept of each sender."""
MOST_OPERATIONS = 64


class EarlyBuffer:
    """The batches of one rank, by operation."""

    def __init__(self) -> None:
        self._batches: dict[int, list[Batch]] = {}
        self._bytes: Counter[int] = Counter()

    def keep(self, batch: Batch) -> bool:
        """Copy a batch; whether there was room."""
        size = _size(batch)
        known = batch.operation in self._batches or len(self._batches) < MOST_OPERATIONS
        if not known or self._bytes[batch.sender] + size > MOST_BYTES:
            return False
        self._bytes[batch.sender] += size
        self._batches.setdefault(batch.operation, []).append(
            batch._replace(
                offsets=batch.offsets.copy(),
                lengths=batch.lengths.copy(),
                flags=batch.flags.copy(),
                payload=batch.payload.copy(),
            )
        )
        return True

    def take(self, operation: int) -> list[Batch]:
        """What came for an operation, in order; what is older is forgotten."""
        taken = self._batches.pop(operation, [])
        gone = [o for o in self._batches if is_before(o, operation)]
        for batch in [*taken, *(b for o in gone for b in self._batches.pop(o))]:
            self._bytes[batch.sender] -= _size(batch)
        return taken


def _size(batch: Batch) -> int:
    return len(batch.offsets) * HEADER_BYTES + batch.payload.nbytes
