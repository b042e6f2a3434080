"""When the other ranks are asked where they stand, and what follows from their answers.

A check has no clock and sends nothing: the watchdog asks, and gives up where one finds trouble.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from latecomer.runtime.health.diagnosis import RankStatus, WaitFor, diagnose, patience_s
from latecomer.verify.errors import ArgumentError, RankFailure

LONGEST_GRACE_S = 5.0
CONFIRM_SHARE = 0.25  # of the grace period, on top of it: to ask once more with the alarm
WAIT_SHARE = 0.9  # of the time left for waits: the rest is for reacting
LOOK_SHARE = 0.2  # of the silence that is allowed: after so much of a wait all are asked, each time

WaitSince = tuple[WaitFor, float]  # what a rank waits for, and since when (``time.monotonic()``)


class WaitSource(Protocol):
    """Something in which this rank may wait for others; asked from any thread."""

    @property
    def moved_s(self) -> float:
        """When it last went on (``time.monotonic()``)."""

    def waiting(self) -> WaitSince | None:
        """What this rank waits for there, if it does."""


class Trouble(NamedTuple):
    """Time to give up: what was noticed, time for asking once more, who failed (if known)."""

    noticed: str
    grace_s: float
    verdict: RankFailure | None = None


@dataclass
class Limits:
    """What follows from ``timeout_s``, how long a rank may keep others waiting.

    ``silence_s`` is how long a rank that others wait for may give no sign of life. Without it that
    is looked into only where a wait has lasted nearly ``timeout_s``, or a connection is gone.
    """

    timeout_s: float
    silence_s: float | None = None

    @property
    def grace_s(self) -> float:
        """How long ranks are given for a sign of life."""
        if self.silence_s is not None:
            return self.silence_s
        return min(LONGEST_GRACE_S, self.timeout_s / 3)

    @property
    def wait_s(self) -> float:
        """How long a wait may last before the others are asked; 48 s of a time-out of 60 s."""
        return (self.timeout_s - (1 + CONFIRM_SHARE) * self.grace_s) * WAIT_SHARE


def require_times(timeout_s: float, silence_s: float | None, join_timeout_s: float) -> None:
    """Raise ArgumentError for times that make no sense; see :class:`latecomer.Executor`."""
    times_s = {"timeout_s": timeout_s, "silence_s": silence_s, "join_timeout_s": join_timeout_s}
    for name, time_s in times_s.items():
        if time_s is not None and not time_s > 0:
            raise ArgumentError(name, time_s, "must be positive")
    if silence_s is not None and silence_s > timeout_s / 2:
        requirement = f"must be at most half of timeout_s, {timeout_s / 2:g} s"
        raise ArgumentError("silence_s", silence_s, requirement)


@dataclass
class Check:
    """What the checks have in common."""

    rank: int
    world_size: int
    limits: Limits
    # asked for when ranks are silent: of whom no datagram has ever come (see ``diagnose``)
    never_heard: Callable[[], Collection[int]] = field(default=tuple, kw_only=True)
    gone: Collection[int] = field(default=(), kw_only=True)  # ranks that are proved gone by now

    @property
    def grace_s(self) -> float:
        """How long to ask."""
        return self.limits.grace_s

    def diagnosed(
        self, answers: Mapping[int, RankStatus], noticed: str, suspects: Collection[int]
    ) -> Trouble:
        """Trouble, with the verdict that follows from these answers."""
        verdict = diagnose(
            self.world_size,
            answers,
            self.rank,
            noticed,
            self.grace_s,
            suspects,
            self.never_heard(),
            self.gone,
        )
        return Trouble(noticed, CONFIRM_SHARE * self.grace_s, verdict)


@dataclass
class WaitCheck(Check):
    """Whether this rank's oldest wait has been long enough."""

    sources: list[WaitSource] = field(default_factory=list)
    _asked: tuple[WaitSince, float] | None = None
    _granted_s: float = 0.0

    def oldest(self) -> WaitSince | None:
        """The wait in the oldest operation."""
        waits = [wait for source in self.sources if (wait := source.waiting()) is not None]
        return min(waits, key=lambda wait: wait[0].operation, default=None)

    def is_due(self, now_s: float) -> bool:
        """Whether to ask now."""
        wait = self.oldest()
        self._asked = (wait, now_s) if wait is not None else None
        return wait is not None and now_s >= max(wait[1] + self.limits.wait_s, self._granted_s)

    def judge(self, answers: Mapping[int, RankStatus], now_s: float) -> Trouble | None:
        """Grant more time, or find trouble."""
        assert self._asked is not None
        wait, asked_s = self._asked
        if self.oldest() != wait:  # it has ended while the others were asked
            return None
        limit_s = self.limits.wait_s
        more_s = 0.0
        if len(answers) == self.world_size:
            more_s = patience_s(answers, self.rank, limit_s)
        self._granted_s = now_s + more_s
        if more_s > 0:
            return None
        left_s = (1 + CONFIRM_SHARE) * self.grace_s - (now_s - asked_s)
        noticed = f"rank {self.rank} {wait[0]} for more than {limit_s:.3g} s"
        return Trouble(noticed, max(left_s, CONFIRM_SHARE * self.grace_s))


@dataclass
class LifeCheck(Check):
    """Whether all ranks are there while this one waits; only where silence has a limit.

    One that has closed before it came to the operation will never come. Else a rank may be late for
    as long as it likes, if it answers: that is another thread's work.
    """

    oldest: Callable[[], WaitSince | None]  # this rank's wait
    _heard_s: float = -math.inf  # when all had answered, the last time

    def is_due(self, now_s: float) -> bool:
        """Whether to ask now."""
        silence_s = self.limits.silence_s
        if silence_s is None:
            return False
        wait = self.oldest()
        return wait is not None and now_s >= max(wait[1], self._heard_s) + LOOK_SHARE * silence_s

    def judge(self, answers: Mapping[int, RankStatus], now_s: float) -> Trouble | None:
        """Trouble with ranks that have not answered, or have left before the operation."""
        self._heard_s = now_s
        wait = self.oldest()
        if wait is None:  # it has ended while the others were asked
            return None
        operation = wait[0].operation
        left = [
            rank
            for rank, status in answers.items()
            if status.closed and status.entered <= operation
        ]
        if len(answers) == self.world_size and not left:
            return None
        return self.diagnosed(answers, f"rank {self.rank} {wait[0]}", suspects=left)


@dataclass
class SilenceCheck(Check):
    """Whether ranks of which nothing is heard are there; trouble: silent, broken, closed."""

    find: Callable[[float], Iterable[int]]  # given the longest wait in seconds: those ranks now
    noticed: str  # why they are asked, for the message
    own_grace_s: float | None = None  # how long they are given; default: as for waits
    _suspects: frozenset[int] = frozenset()

    @property
    def grace_s(self) -> float:
        """How long to ask."""
        return self.own_grace_s or self.limits.grace_s

    def is_due(self, now_s: float) -> bool:
        """Whether to ask now."""
        self._suspects = frozenset(self.find(self.limits.wait_s))
        return bool(self._suspects)

    def judge(self, answers: Mapping[int, RankStatus], now_s: float) -> Trouble | None:
        """Trouble with a suspect that has not answered, or says that it broke or has closed."""
        if all(rank in answers and answers[rank].is_well for rank in self._suspects):
            return None
        return self.diagnosed(answers, self.noticed, self._suspects)
