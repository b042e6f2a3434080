"""What ``runtime.watch`` watches: a recorder of each dispatcher and OptiReduce engine there is."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import msgspec

from runtime.network.clock import Alignment
from runtime.network.store_exchange import StoreExchange
from runtime.telemetry.records import Rank, Record, Round
from runtime.work import Observer

if TYPE_CHECKING:
    from runtime.policy.control_plane import ControlPlane
    from runtime.work import AllReduceWork

KEPT = 100_000
"""Operations of which a record is kept."""
LIVE: list[Recorder] = []
"""Those that are not closed."""


class Watchable(Protocol):
    """Has a recorder: a dispatcher, an engine."""

    source: Recorder


class Recorder:
    """Remembers the operations of one rank.

    Args:
        group: for telling the others.
        alignment: of this rank's clock, now.
        count: how many operations there were so far; all ranks count alike.

    Attributes:
        records: of the last operations; reference clock.
    """

    def __init__(
        self, group: StoreExchange, alignment: Callable[[], Alignment], count: Callable[[], int]
    ) -> None:
        self.group, self.alignment, self.count = group, alignment, count
        self.records: deque[Record] = deque(maxlen=KEPT)
        self._first = 0
        LIVE.append(self)

    def close(self) -> None:
        """It is no longer there to be watched."""
        if self in LIVE:
            LIVE.remove(self)

    def record(
        self, work: AllReduceWork, number: int, way: str, reason: str, *, done_s: float,
        decided_s: float | None = None, late: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        """Remember an operation that is done; it was decided on arrival unless told (own clock)."""
        alignment = self.alignment()
        record = Record(
            operation=number,
            rank=self.group.rank,
            arrived_s=work.arrived_s + alignment.offset_s,
            decided_s=(work.arrived_s if decided_s is None else decided_s) + alignment.offset_s,
            done_s=done_s + alignment.offset_s,
            uncertainty_s=alignment.uncertainty_s,
            bytes=work.flat.numel() * work.flat.element_size(),
            way=way,
            late=late,
            reason=reason,
        )
        self.records.append(record)

    def begin(self, rounds: range) -> None:
        """Remember from now on; of ``rounds``, counted from here, also the rounds."""
        self._first = self.count()

    def end(self) -> Rank:
        """What was remembered since then, operations counted from there."""
        first = self._first
        records = [
            msgspec.structs.replace(record, operation=record.operation - first)
            for record in sorted(list(self.records), key=lambda record: record.operation)
            if record.operation >= first
        ]
        dropped = self.count() - first - len(records)
        return Rank(self.group.rank, tuple(records), dropped=dropped)


class Rounds(Observer):
    """Remembers rounds; own clock.

    Attributes:
        watched: of these operations only; may be set at any time.
        found: in the order of their end.
    """

    def __init__(self) -> None:
        self.watched = range(0)
        self.found: list[Round] = []
        self._begun: dict[tuple[int, str, int], float] = {}

    def step_begins(self, operation: int, phase: str, round: int) -> None:
        """Note when a watched round begins."""
        if operation in self.watched:
            self._begun[operation, phase, round] = time.monotonic()

    def step_ends(self, operation: int, phase: str, round: int) -> None:
        """Remember a watched round."""
        began_s = self._begun.pop((operation, phase, round), None)
        if began_s is not None:
            self.found.append(Round(operation, phase, round, began_s, time.monotonic()))


class DispatcherRecorder(Recorder):
    """A dispatcher's: with the rounds of chosen operations, and the messages about decisions."""

    def __init__(
        self, group: StoreExchange, control_plane: ControlPlane, rounds: Rounds,
        count: Callable[[], int],
    ) -> None:  # fmt: skip
        self._control_plane, self._rounds, self._sent = control_plane, rounds, 0
        super().__init__(group, control_plane.alignment, count)

    def begin(self, rounds: range) -> None:
        """As for all recorders, with the rounds of ``rounds``."""
        super().begin(rounds)
        first, self._sent = self._first, self._control_plane.sent
        self._rounds.found.clear()
        self._rounds.watched = range(first + rounds.start, first + rounds.stop, rounds.step)

    def end(self) -> Rank:
        """As for all recorders, with rounds and messages."""
        self._rounds.watched = range(0)
        remembered, offset_s = super().end(), self.alignment().offset_s
        rounds = tuple(
            Round(
                each.operation - self._first,
                each.phase,
                each.round,
                each.began_s + offset_s,
                each.ended_s + offset_s,
            )
            for each in self._rounds.found
        )
        sent = self._control_plane.sent - self._sent
        return msgspec.structs.replace(remembered, rounds=rounds, messages=sent)
