"""The receive side of one stage: what is expected, where it goes, and when the stage is over.

Source: OptiReduce (arXiv 2310.06993), sections 3.2.1 and 3.2.2: a hard bound t_B, and an early end
when the last percentile of every sender has been seen, the socket is empty and a part of t_C has
passed since. Deviations: the clock of t_B starts when the last rank has entered the operation (or
``absence_s`` after this one has), since a rank that computes longer is no matter of the network;
and a sender says twice more, in datagrams of their own, that it has sent everything.

Pure: numbers in, numbers out, no socket and no clock. Invariants: a datagram that is not exactly
one of the expected ones is refused; each is placed at most once; after the end nothing is placed;
:meth:`StageReceiver.deadline_s` never lies beyond the entry + ``absence_s + allowed_s``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum

import numpy as np

from runtime.optireduce.udp.datagram import LAST


class End(StrEnum):
    """How a stage ended."""

    COMPLETE = "complete"
    EARLY = "early"
    TIMEOUT = "timeout"


Drop = Callable[[str, int], None]
"""Is told the kind and number of datagrams that are refused."""
Numbers = slice | np.ndarray
STEPS = np.arange(1024)


class SenderBitmap:
    """The datagrams of one sender.

    Args:
        size: bytes of the shard.
        payload: bytes in a datagram.

    Attributes:
        arrived: bool [datagrams].
        seen, passed: how many have arrived; how many had been sent with the latest that has.
        marked: its last percentile has been seen, or its "all is sent".
    """

    def __init__(self, size: int, payload: int) -> None:
        self.size, self.payload = size, payload
        self.count = -(-size // payload)
        self.arrived = np.zeros(self.count, bool)
        self.seen = 0
        self.passed = 0
        self.marked = self.count == 0

    @property
    def complete(self) -> bool:
        """Everything has arrived."""
        return self.seen == self.count

    def take(
        self, offsets: np.ndarray, lengths: np.ndarray, drop: Drop
    ) -> tuple[Numbers, Numbers, int]:
        """(rows to place, their datagram numbers, how many); the others go to ``drop``."""
        if (first := self._run(offsets, lengths)) is not None:
            count = len(offsets)
            self.arrived[first : first + count] = True
            self.seen += count
            return slice(0, count), slice(first, first + count), count
        numbers = offsets // self.payload
        last = self.count - 1
        due = np.where(numbers == last, self.size - last * self.payload, self.payload)
        right = (offsets % self.payload == 0) & (numbers < self.count) & (lengths == due)
        rows = np.flatnonzero(right)
        if len(rows) < len(offsets):
            drop("out of range", len(offsets) - len(rows))
        numbers = numbers[rows]
        once = np.zeros(len(numbers), bool)  # the same one may come twice in a batch
        once[np.unique(numbers, return_index=True)[1]] = True
        fresh = once & ~self.arrived[numbers]
        if not fresh.all():
            drop("duplicate", int((~fresh).sum()))
            rows, numbers = rows[fresh], numbers[fresh]
        if len(numbers):
            self.arrived[numbers] = True
            self.seen += len(numbers)
        return rows, numbers, len(rows)

    def _run(self, offsets: np.ndarray, lengths: np.ndarray) -> int | None:
        """The usual case: new datagrams that follow each other; the number of the first."""
        first, count = int(offsets[0]) // self.payload, len(offsets)
        if first + count > self.count or count > len(STEPS):
            return None
        if (offsets != (STEPS[:count] + first) * self.payload).any():
            return None
        whole = count - (first + count == self.count)
        tail = self.size - (self.count - 1) * self.payload
        if (lengths[:whole] != self.payload).any() or (whole < count and lengths[-1] != tail):
            return None
        return None if self.arrived[first : first + count].any() else first


class StageReceiver:
    """One receive stage of one operation on one rank.

    Args:
        sizes: bytes due from each sender.
        payload: bytes in a datagram.
        now_s: when this rank entered the operation.
        absence_s: how long to wait for ranks that have not entered it.
        allowed_s: the bound, from when all have.
    """

    def __init__(
        self,
        sizes: Mapping[int, int],
        payload: int,
        now_s: float,
        absence_s: float,
        allowed_s: float,
    ) -> None:
        self.senders = {rank: SenderBitmap(size, payload) for rank, size in sizes.items()}
        self.began_s, self.ended_s = now_s, 0.0
        self.end: End | None = None
        self.grace_s = 0.0
        self._allowed_s = allowed_s
        self._absent = set(sizes)
        self._all_there_s = now_s + absence_s if sizes else now_s
        self._quiet_s: float | None = None
        self._marked_s = math.inf
        self._last_s = now_s
        self._left = sum(sender.count for sender in self.senders.values())
        self.due = self._left

    @property
    def absent(self) -> Sequence[int]:
        """Ranks that have given no sign of having entered the operation."""
        return sorted(self._absent)

    @property
    def lost(self) -> int:
        """Datagrams that have not arrived."""
        return self._left

    @property
    def elapsed_s(self) -> float:
        """From when it began and all ranks were there to the last marks, or arrival so far.

        Without what came after the marks and the wait for it, or t_C would feed itself.
        """
        until_s = min(self._last_s, self._marked_s)
        return max(0.0, until_s - max(self.began_s, self._all_there_s))

    @property
    def reached_s(self) -> float:
        """From when all ranks were there to the last arrival, or to the end if that was t_B."""
        until_s = self.ended_s if self.end is End.TIMEOUT else self._last_s
        return max(0.0, until_s - self._all_there_s)

    @property
    def loss(self) -> float:
        """Share of the datagrams that has not arrived."""
        return self._left / self.due if self.due else 0.0

    @property
    def quiet_s(self) -> float:
        """Since when nothing new has come, of a stage that has ended early; else -inf."""
        if self.end is not End.EARLY or self._quiet_s is None:
            return -math.inf
        return self._quiet_s

    @property
    def hard_s(self) -> float:
        """The bound: :meth:`poll` ends the stage then, whatever arrives."""
        return self._all_there_s + self._allowed_s

    @property
    def deadline_s(self) -> float:
        """When :meth:`poll` will end the stage, if nothing more arrives."""
        early = math.inf if self._quiet_s is None else self._quiet_s + self.grace_s
        return min(self.hard_s, early)

    def begin(self, now_s: float) -> None:
        """From now on it is waited for (the second stage: when the first is over)."""
        self.began_s = now_s

    def enter(self, sender: int, now_s: float) -> None:
        """A sign that ``sender`` has entered the operation."""
        if sender in self._absent:
            self._absent.discard(sender)
            if not self._absent:
                self._all_there_s = min(self._all_there_s, now_s)

    def take(
        self,
        sender: int,
        offsets: np.ndarray,
        lengths: np.ndarray,
        flags: np.ndarray,
        now_s: float,
        drop: Drop,
    ) -> tuple[Numbers, Numbers, int]:
        """Data arrives; see :meth:`SenderBitmap.take`. After the end everything is stale."""
        if self.end is not None or sender not in self.senders:
            drop("stale", len(offsets))
            return slice(0, 0), slice(0, 0), 0
        self.enter(sender, now_s)
        expected = self.senders[sender]
        rows, numbers, count = expected.take(offsets, lengths, drop)
        if count:
            self._left -= count
            self._quiet_s, self._last_s = None, now_s
            expected.marked = expected.marked or bool((flags[rows] & LAST).any())
        return rows, numbers, count

    def all_sent(self, sender: int, now_s: float) -> None:
        """``sender`` says that it has sent everything."""
        if sender in self.senders and self.end is None:
            self.enter(sender, now_s)
            self.senders[sender].marked = True

    def poll(self, now_s: float, grace_s: float, empty: bool) -> End | None:
        """Whether the stage is over.

        Args:
            now_s: the clock.
            grace_s: x % of t_C: how long to wait on after the last marks.
            empty: the socket has just been found empty.
        """
        if self.end is None:
            self.grace_s = grace_s
            if not self._left:
                self.end = End.COMPLETE
            elif now_s >= self.hard_s:
                self.end = End.TIMEOUT
            elif empty and all(s.marked or s.complete for s in self.senders.values()):
                self._marked_s = min(self._marked_s, now_s)
                if self._quiet_s is None:
                    self._quiet_s = now_s
                if now_s >= self._quiet_s + grace_s:
                    self.end = End.EARLY
            if self.end is not None:
                self.ended_s = now_s
        return self.end
