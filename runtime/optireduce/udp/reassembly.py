"""The receive side of one stage: what is expected of whom, and when the stage is over.

Source: OptiReduce (arXiv 2310.06993), sections 3.2.1 and 3.2.2: a hard bound t_B, and an early end
when the last percentile of every sender has been seen, the socket is empty and a part of t_C has
passed since. Deviations: the clock of t_B starts when the last rank has entered the operation (or
``absence_s`` after this one has), and a sender says twice more that it has sent everything.

Invariants: after the end nothing counts any more; the end is within ``absence_s + bound_s`` of the
entry, in which time that this rank wanted to run and could not does not count (:meth:`extend`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum


class End(StrEnum):
    """How a stage ended."""

    COMPLETE = "complete"
    EARLY = "early"
    TIMEOUT = "timeout"


class SenderProgress:
    """How far one sender has come in a stage of ``count`` datagrams."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.seen = 0  # datagrams that are in their place
        self.passed = 0  # datagrams that had been sent with the latest of those
        self.credit_at = 0.0  # ``passed`` for the next credit
        self.repeated = 0  # ``passed`` at the last repeat
        self.marked = count == 0  # its last percentile has been seen, or its "all is sent"

    @property
    def complete(self) -> bool:
        """Everything has arrived."""
        return self.seen == self.count


class StageReceiver:
    """One receive stage of one operation, which this rank enters now.

    ``counts`` are the datagrams due from each sender; ``absence_s`` is how long to wait for ranks
    that have not entered it, ``bound_s`` from then on.
    """

    def __init__(
        self, counts: Mapping[int, int], *, now_s: float, absence_s: float, bound_s: float
    ) -> None:
        self.senders = {rank: SenderProgress(count) for rank, count in counts.items()}
        self.due = sum(counts.values())
        self.lost = self.due
        self.absent = set(counts)  # have given no sign of having entered the operation
        self.end: End | None = None
        self.began_s = now_s  # the second stage begins when the first is over
        self.ended_s = 0.0
        self.quiet_s: float | None = None  # since when all is marked and nothing new has come
        self._grace_s = 0.0
        self._bound_s = bound_s
        self._all_there_s = now_s + absence_s if counts else now_s
        self._marked_s = math.inf
        self._last_s = now_s

    @property
    def loss(self) -> float:
        """Share of the datagrams that has not arrived."""
        return self.lost / self.due if self.due else 0.0

    @property
    def elapsed_s(self) -> float:
        """From when it began and all ranks were there to the last marks, or arrival so far."""
        # with the wait after the marks in it, t_C would feed itself
        until_s = min(self._last_s, self._marked_s)
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

    def placed(self, sender: int, count: int, *, marked: bool, now_s: float) -> None:
        """``count`` new datagrams are in their place; ``marked``: one of the last percentile."""
        if self.end is not None:
            return
        self.enter(sender, now_s)
        if count:
            progress = self.senders[sender]
            progress.seen += count
            progress.marked = progress.marked or marked
            self.lost -= count
            self.quiet_s = None
            self._last_s = now_s

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
