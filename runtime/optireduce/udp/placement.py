"""Below the protocol: data goes to its place, each datagram once, and only where it is expected.

Invariants: a datagram that is not exactly one of the expected ones is refused; each is placed at
most once; after a stage is closed nothing of it is placed. What is refused is counted by kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

from latecomer.runtime.optireduce.options import HEADER_BYTES
from latecomer.runtime.optireduce.udp.datagram import LAST, Batch, Codec
from latecomer.runtime.optireduce.udp.events import (
    Bytes,
    Control,
    ExpectedShard,
    Placed,
    ShardKey,
    Type,
    UbtEvent,
    is_before,
)

# What comes before this rank has entered its operation is kept, so that the rank that comes last
# finds the others' first grants there, and need not wait for a round trip. Limits, against a flood:
EARLY_BYTES = 1 << 20  # of each sender
EARLY_OPERATIONS = 64  # of all

STEPS = np.arange(1024)  # made once: a batch is compared with the beginning of it
Numbers = slice | np.ndarray


class Placer:
    """Makes events of one rank's datagrams; ``codec`` checks them.

    ``dropped`` counts datagrams by kind, and ``dropped_from`` by sender and kind, where the sender
    is known.
    """

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self.dropped = Counter[str]()
        self.dropped_from = Counter[tuple[int, str]]()
        self._expected: dict[ShardKey, ExpectedShard] = {}
        self._newest: int | None = None  # of the operations that were opened
        self._early = EarlyBuffer()

    def open(self, operation: int, shards: Iterable[ExpectedShard]) -> list[UbtEvent]:
        """Place what comes of these from now on; the events of what came before."""
        for shard in shards:
            self._expected[operation, shard.stage, shard.sender] = shard
        self._newest = operation
        return self._events(self._early.take(operation))

    def close(self, operation: int, stage: int) -> None:
        """Place nothing of this stage any more."""
        for key in [key for key in self._expected if key[:2] == (operation, stage)]:
            del self._expected[key]

    def read(self, rows: Any) -> list[UbtEvent]:
        """What came in, uint8 [datagrams, bytes of each], goes to its place; its events."""
        return self._events(self.codec.read(rows, self.dropped))

    def place(self, shard: ExpectedShard, batch: Batch) -> tuple[int, bool]:
        """(how many were new, and are in their place now; whether one of them is marked)."""
        rows, numbers = self._new(shard, batch)
        if not _length(rows):
            return 0, False
        place_payloads(shard.into, self.codec.payload_bytes, batch.payload[rows], numbers)
        return _length(rows), bool((batch.flags[rows] & LAST).any())

    def drop(self, sender: int, kind: str, count: int) -> None:
        """So many are refused."""
        self.dropped[kind] += count
        self.dropped_from[sender, kind] += count

    def _events(self, batches: Iterable[Batch]) -> list[UbtEvent]:
        events = []
        for batch in batches:
            if event := self._event(batch):
                events.append(event)
        return events

    def _event(self, batch: Batch) -> UbtEvent | None:
        """What became of a batch; none if it came too early."""
        count = len(batch.offsets)
        shard = self._expected.get((batch.operation, batch.stage, batch.sender))
        if shard is None and (self._newest is None or is_before(self._newest, batch.operation)):
            if not self._early.keep(batch):
                self.drop(batch.sender, "early", count)
            return None
        if batch.type is not Type.DATA:
            return Control(
                type=batch.type,
                stage=batch.stage,
                peer=batch.sender,
                operation=batch.operation,
                passed=int(batch.offsets.max()),  # they may have come in another order
                window=int(batch.lengths[-1]),
                flags=int(batch.flags[-1]),
                incast=batch.incast,
                expected_us=batch.expected_us,
            )
        fresh = 0
        marked = False
        if shard is None:
            self.drop(batch.sender, "stale", count)
        else:
            fresh, marked = self.place(shard, batch)
        return Placed(
            stage=batch.stage,
            peer=batch.sender,
            operation=batch.operation,
            datagrams=count,
            fresh=fresh,
            marked=marked,
            incast=batch.incast,
            expected_us=batch.expected_us,
            passed=batch.passed,
        )

    def _new(self, shard: ExpectedShard, batch: Batch) -> tuple[Numbers, Numbers]:
        """(rows of a batch that are to be placed, their datagram numbers); marks them as arrived.

        The others are dropped.
        """
        payload_bytes = self.codec.payload_bytes
        arrived = shard.arrived
        count = len(batch.offsets)
        first = self._first_of_run(shard, batch)
        if first is not None:
            arrived[first : first + count] = True
            return slice(0, count), slice(first, first + count)

        numbers = batch.offsets // payload_bytes
        due = np.minimum(payload_bytes, len(shard.into) - batch.offsets)
        right = (batch.offsets % payload_bytes == 0) & (numbers < len(arrived))
        rows = np.flatnonzero(right & (batch.lengths == due))
        if len(rows) < count:
            self.drop(batch.sender, "out of range", count - len(rows))
        numbers = numbers[rows]

        once = np.zeros(len(numbers), bool)  # the same one may come twice in a batch
        once[np.unique(numbers, return_index=True)[1]] = True
        fresh = once & ~arrived[numbers]
        if not fresh.all():
            self.drop(batch.sender, "duplicate", int((~fresh).sum()))
            rows = rows[fresh]
            numbers = numbers[fresh]
        arrived[numbers] = True
        return rows, numbers

    def _first_of_run(self, shard: ExpectedShard, batch: Batch) -> int | None:
        """The usual case: new datagrams that follow each other; the number of the first."""
        payload_bytes = self.codec.payload_bytes
        offsets = batch.offsets
        count = len(offsets)
        first = int(offsets[0]) // payload_bytes
        if first + count > len(shard.arrived) or count > len(STEPS):
            return None
        due = np.minimum(payload_bytes, len(shard.into) - offsets)
        right = (offsets == (STEPS[:count] + first) * payload_bytes) & (batch.lengths == due)
        if not right.all() or shard.arrived[first : first + count].any():
            return None
        return first


def place_payloads(into: Bytes, payload_bytes: int, rows: Bytes, numbers: Numbers) -> None:
    """Copy ``rows``, uint8 [datagrams, payload_bytes], to where they belong; no number comes twice.

    ``into`` has a shard's bytes, of which the last datagram may fill a part only.
    """
    full = len(into) // payload_bytes
    table = into[: full * payload_bytes].reshape(full, payload_bytes)
    if isinstance(numbers, slice):
        if numbers.stop <= full:
            table[numbers] = rows
            return
        numbers = np.arange(numbers.start, numbers.stop)
    inside = numbers < full
    table[numbers[inside]] = rows[inside]
    for row in rows[~inside]:
        into[full * payload_bytes :] = row[: len(into) - full * payload_bytes]


class EarlyBuffer:
    """What came for operations that this rank has not entered yet, within limits."""

    def __init__(self) -> None:
        self._batches = dict[int, list[Batch]]()
        self._nbytes = Counter[int]()

    def keep(self, batch: Batch) -> bool:
        """Copy a batch; whether there was room."""
        nbytes = _nbytes(batch)
        has_room = batch.operation in self._batches or len(self._batches) < EARLY_OPERATIONS
        if not has_room or self._nbytes[batch.sender] + nbytes > EARLY_BYTES:
            return False
        self._nbytes[batch.sender] += nbytes
        copied = batch._replace(
            offsets=batch.offsets.copy(),
            lengths=batch.lengths.copy(),
            flags=batch.flags.copy(),
            payload=batch.payload.copy(),
        )
        self._batches.setdefault(batch.operation, []).append(copied)
        return True

    def take(self, operation: int) -> list[Batch]:
        """What came for an operation, in order; what is older is forgotten."""
        batches = self._batches.pop(operation, [])
        removed = [*batches]
        for older in [number for number in self._batches if is_before(number, operation)]:
            removed += self._batches.pop(older)
        for batch in removed:
            self._nbytes[batch.sender] -= _nbytes(batch)
        return batches


def _length(numbers: Numbers) -> int:
    if isinstance(numbers, slice):
        return int(numbers.stop - numbers.start)
    return len(numbers)


def _nbytes(batch: Batch) -> int:
    return len(batch.offsets) * HEADER_BYTES + batch.payload.nbytes
