"""The receive side of one stage: what is expected, where it goes, and when the stage is over.

Source: OptiReduce (arXiv 2310.06993), sections 3.2.1 and 3.2.2: a hard bound t_B, and an early end
when the last percentile of every sender has been seen, the socket is empty and a part of t_C has
passed since. Deviations: the clock of t_B starts when the last rank has entered the operation (or
``absence_s`` after this one has), and a sender says twice more that it has sent everything.

Invariants: a datagram that is not exactly one of the expected ones is refused; each is placed at
most once; after the end nothing is placed; the end is within ``absence_s + bound_s`` of the entry,
in which time that this rank wanted to run and could not does not count (:meth:`extend`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from enum import StrEnum

import numpy as np

from runtime.optireduce.options import HEADER_BYTES
from runtime.optireduce.udp.datagram import LAST, Batch, is_before

EARLY_BYTES = 1 << 20  # kept of each sender; and of all
EARLY_OPERATIONS = 64
STEPS = np.arange(1024)
Drop = Callable[[str, int], None]  # is given the kind and number of datagrams that are refused
Numbers = slice | np.ndarray


class End(StrEnum):
    """How a stage ended."""

    COMPLETE = "complete"
    EARLY = "early"
    TIMEOUT = "timeout"


class SenderBitmap:
    """The datagrams of one sender: ``nbytes`` bytes, ``payload`` in a datagram."""

    def __init__(self, nbytes: int, payload: int) -> None:
        self.nbytes, self.payload, self.count = nbytes, payload, -(-nbytes // payload)
        self.arrived = np.zeros(self.count, bool)
        self.seen = self.passed = 0  # that have arrived; that had been sent with the latest of them
        self.credit_at = 0.0  # ``passed`` for the next credit; at the last repeat
        self.repeated = 0
        self.marked = self.count == 0  # its last percentile has been seen, or its "all is sent"

    @property
    def complete(self) -> bool:
        """Everything has arrived."""
        return self.seen == self.count

    def take(self, batch: Batch, drop: Drop) -> tuple[Numbers, Numbers, int]:
        """(rows to place, their datagram numbers, how many); the others go to ``drop``."""
        offsets, lengths, count = batch.offsets, batch.lengths, len(batch.offsets)
        if (first := self._run(offsets, lengths)) is not None:
            self.arrived[first : first + count] = True
            self.seen += count
            return slice(0, count), slice(first, first + count), count
        numbers = offsets // self.payload
        due = np.minimum(self.payload, self.nbytes - offsets)
        right = (offsets % self.payload == 0) & (numbers < self.count) & (lengths == due)
        rows = np.flatnonzero(right)
        if len(rows) < count:
            drop("out of range", count - len(rows))
        numbers = numbers[rows]
        once = np.zeros(len(numbers), bool)  # the same one may come twice in a batch
        once[np.unique(numbers, return_index=True)[1]] = True
        fresh = once & ~self.arrived[numbers]
        if not fresh.all():
            drop("duplicate", int((~fresh).sum()))
            rows = rows[fresh]
            numbers = numbers[fresh]
        self.arrived[numbers] = True
        self.seen += len(numbers)
        return rows, numbers, len(rows)

    def _run(self, offsets: np.ndarray, lengths: np.ndarray) -> int | None:
        """The usual case: new datagrams that follow each other; the number of the first."""
        first = int(offsets[0]) // self.payload
        count = len(offsets)
        if first + count > self.count or count > len(STEPS):
            return None
        due = np.minimum(self.payload, self.nbytes - offsets)
        right = (offsets == (STEPS[:count] + first) * self.payload) & (lengths == due)
        return first if right.all() and not self.arrived[first : first + count].any() else None


class StageReceiver:
    """One receive stage of one operation, which this rank enters now.

    ``sizes`` are the bytes due from each sender, ``payload`` in a datagram; ``absence_s`` is how
    long to wait for ranks that have not entered it, ``bound_s`` from then on.
    """

    def __init__(
        self,
        sizes: Mapping[int, int],
        payload: int,
        now_s: float,
        absence_s: float,
        bound_s: float,
        bitmap: type[SenderBitmap] = SenderBitmap,
    ) -> None:
        self.senders = {rank: bitmap(nbytes, payload) for rank, nbytes in sizes.items()}
        self.due = self.lost = sum(sender.count for sender in self.senders.values())
        self.absent = set(sizes)  # have given no sign of having entered the operation
        self.end: End | None = None
        self.began_s = now_s  # the second stage begins when the first is over
        self.ended_s = 0.0
        self.quiet_s: float | None = None  # since when all is marked and nothing new has come
        self._grace_s = 0.0
        self._bound_s = bound_s
        self._all_there_s = now_s + absence_s if sizes else now_s
        self._marked_s = math.inf
        self._last_s = now_s

    @property
    def loss(self) -> float:
        """Share of the datagrams that has not arrived."""
        return self.lost / self.due if self.due else 0.0

    @property
    def elapsed_s(self) -> float:
        """From when it began and all ranks were there to the last marks, or arrival so far."""
        until_s = min(self._last_s, self._marked_s)  # what came later would let t_C feed itself
        return max(0.0, until_s - max(self.began_s, self._all_there_s))

    @property
    def reached_s(self) -> float:
        """From when all ranks were there to the last arrival, or to the end if that was t_B."""
        until_s = self.ended_s if self.end is End.TIMEOUT else self._last_s
        return max(0.0, until_s - self._all_there_s)

    @property
    def hard_s(self) -> float:
        """The bound: :meth:`handle_timer` ends the stage then, whatever arrives."""
        return self._all_there_s + self._bound_s

    @property
    def deadline_s(self) -> float:
        """When :meth:`handle_timer` will end the stage, if nothing more arrives."""
        early = math.inf if self.quiet_s is None else self.quiet_s + self._grace_s
        return min(self.hard_s, early)

    def enter(self, sender: int, now_s: float) -> None:
        """A sign that ``sender`` has entered the operation."""
        if sender in self.absent:
            self.absent.discard(sender)
            if not self.absent:
                self._all_there_s = min(self._all_there_s, now_s)

    def extend(self, by_s: float) -> None:
        """So much time does not count: what came meanwhile was not looked at."""
        self._bound_s += by_s
        self.quiet_s = None if self.quiet_s is None else self.quiet_s + by_s

    def take(self, batch: Batch, now_s: float, drop: Drop) -> tuple[Numbers, Numbers, int]:
        """Data arrives; see :meth:`SenderBitmap.take`. After the end everything is stale."""
        if self.end is not None or batch.sender not in self.senders:
            drop("stale", len(batch.offsets))
            return slice(0, 0), slice(0, 0), 0
        self.enter(batch.sender, now_s)
        bitmap = self.senders[batch.sender]
        rows, numbers, count = bitmap.take(batch, drop)
        if count:
            self.lost -= count
            self.quiet_s = None
            self._last_s = now_s
            ends = batch.placed[3] if batch.placed else bool((batch.flags[rows] & LAST).any())
            bitmap.marked = bitmap.marked or ends
        return rows, numbers, count

    def all_sent(self, sender: int, now_s: float) -> None:
        """``sender`` says that it has sent everything."""
        if sender in self.senders and self.end is None:
            self.enter(sender, now_s)
            self.senders[sender].marked = True

    def handle_timer(self, now_s: float, grace_s: float, socket_empty: bool) -> End | None:
        """How the stage has ended, if so; ``grace_s``: to wait on after the last marks."""
        if self.end is not None:
            return self.end
        self.ended_s = now_s
        self._grace_s = grace_s
        if not self.lost:
            self.end = End.COMPLETE
        elif now_s >= self.hard_s:
            self.end = End.TIMEOUT
        elif socket_empty and all(s.marked or s.complete for s in self.senders.values()):
            self._marked_s = min(self._marked_s, now_s)
            self.quiet_s = max(now_s, self._last_s) if self.quiet_s is None else self.quiet_s
            if now_s >= self.quiet_s + grace_s:
                self.end = End.EARLY
        return self.end


class EarlyBuffer:
    """What came for operations that this rank has not entered yet, within limits."""

    def __init__(self) -> None:
        self._batches = dict[int, list[Batch]]()
        self._nbytes = Counter[int]()

    def keep(self, batch: Batch) -> bool:
        """Copy a batch; whether there was room."""
        nbytes = _nbytes(batch)
        known = batch.operation in self._batches or len(self._batches) < EARLY_OPERATIONS
        if not known or self._nbytes[batch.sender] + nbytes > EARLY_BYTES:
            return False
        self._nbytes[batch.sender] += nbytes
        copied = {k: getattr(batch, k).copy() for k in ("offsets", "lengths", "flags", "payload")}
        self._batches.setdefault(batch.operation, []).append(batch._replace(**copied))
        return True

    def take(self, operation: int) -> list[Batch]:
        """What came for an operation, in order; what is older is forgotten."""
        taken = self._batches.pop(operation, [])
        gone = [o for o in self._batches if is_before(o, operation)]
        for batch in [*taken, *(b for o in gone for b in self._batches.pop(o))]:
            self._nbytes[batch.sender] -= _nbytes(batch)
        return taken


def _nbytes(batch: Batch) -> int:
    return len(batch.offsets) * HEADER_BYTES + batch.payload.nbytes
