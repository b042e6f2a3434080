"""What ``latecomer.watch`` watches: a recorder of each dispatcher and OptiReduce engine."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from msgspec.structs import replace

from latecomer.runtime.host import host
from latecomer.runtime.network.clock import Alignment
from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.runtime.telemetry.records import (
    Collective,
    Members,
    Rank,
    Record,
    Round,
    Stage,
    UbtStep,
)
from latecomer.runtime.work import CollectiveWork, Observer

OfOperation = Record | Round | Stage
Event = OfOperation | Collective
Kind = TypeVar("Kind", bound=OfOperation)
KEPT = 100_000  # operations of which a record is kept
LIVE: list[OperationRecorder] = []  # those that are not closed


class Watchable(Protocol):
    """Has a recorder: a dispatcher, an engine."""

    source: OperationRecorder


class Decisions(Protocol):
    """How one rank's part in deciding is seen from here: its clock, and what it has sent."""

    @property
    def sent(self) -> int:
        """Messages sent about operations and epochs so far."""

    def alignment(self) -> Alignment:
        """How this rank's clock relates to the reference's now."""


class Feed:
    """What one recorder remembers from now on, for who looks in every now and then.

    A thread that moves data only appends here: it never waits for who reads, and where nobody does
    the oldest gets lost.
    """

    def __init__(self) -> None:
        self.last_step = -1  # over UBT: that has been taken
        self.lost = 0  # about: it is counted without a lock
        self._events: deque[Event] = deque(maxlen=KEPT)

    def append(self, event: Event) -> None:
        """It has happened; on any thread, and quick."""
        if len(self._events) == KEPT:
            self.lost += 1
        self._events.append(event)

    def take(self) -> list[Event]:
        """What has happened since the last call."""
        events = []
        while self._events:
            events.append(self._events.popleft())
        return events


class OperationRecorder:
    """Remembers one rank's last operations; ``count`` of those so far: all ranks count alike."""

    def __init__(
        self, group: StoreExchange, alignment: Callable[[], Alignment], count: Callable[[], int]
    ) -> None:
        self.group = group
        self.alignment = alignment
        self.count = count
        self.records: deque[Record] = deque(maxlen=KEPT)
        self._first = 0
        self._feeds: tuple[Feed, ...] = ()
        self.knows_steps = False  # somebody says where steps end
        self.step_ends: deque[int] = deque(maxlen=KEPT)  # operations before each, from the first on
        self._program_says = False  # the program itself says so, which counts more than the hook
        self.end_of_watch_by_environment: Callable[[], None] | None = None  # while there is one
        LIVE.append(self)

    def close(self) -> None:
        """It is no longer there to be watched, and lets go of the store, a connection."""
        self.end_watch_by_environment()
        self.group = self.group.without_store()
        if self in LIVE:
            LIVE.remove(self)

    def end_watch_by_environment(self) -> None:
        """End the watch that no program has asked for, if there is one."""
        end = self.end_of_watch_by_environment
        self.end_of_watch_by_environment = None
        if end is not None:
            end()

    def record(
        self,
        work: CollectiveWork,
        number: int,
        way: str,
        reason: str,
        decided_s: float | None = None,
        late: tuple[int, ...] = (),
        done_s: float | None = None,
    ) -> None:
        """Remember an operation that is done; default: decided on arrival, done as ``work`` is."""
        alignment = self.alignment()
        record = Record(
            operation=number,
            rank=self.group.rank,
            arrived_s=work.arrived_s + alignment.offset_s,
            decided_s=(decided_s or work.arrived_s) + alignment.offset_s,
            done_s=(done_s or work.done_s) + alignment.offset_s,
            uncertainty_s=alignment.uncertainty_s,
            bytes=work.nbytes,
            way=way,
            late=late,
            reason=reason,
            by=work.by,
            collective=work.collective,
        )
        self.records.append(record)
        self._tell(record)

    def begin(self, rounds: range) -> None:
        """Remember from now on; of ``rounds``, counted from here, also the rounds."""
        self._first = self.count()
        self._program_says = False
        self.step_ends.clear()

    def end(self) -> Rank:
        """What was remembered since then, operations counted from there."""
        records = sorted(self._since(self.records), key=lambda record: record.operation)
        dropped = self.count() - self._first - len(records)
        return Rank(self.group.rank, tuple(records), dropped=dropped)

    @property
    def entered(self) -> int:
        """Operations since the beginning."""
        return self.count() - self._first

    @property
    def messages(self) -> int:
        """Sent for control since the beginning."""
        return 0

    def bucket_submitted(self, *, is_last: bool) -> None:
        """DDP has handed a bucket of gradients over; ``is_last``: of its backward pass."""
        self.knows_steps = True
        if is_last and not self._program_says:
            self.step_ends.append(self.entered)

    def step_over(self) -> None:
        """The program says that a step has all its operations; DDP's passes count no more."""
        if not self._program_says:
            self.step_ends.clear()
        self._program_says = True
        self.knows_steps = True
        self.step_ends.append(self.entered)

    def feed(self) -> Feed:
        """A feed of what is remembered from now on, until :meth:`unfeed`."""
        feed = Feed()
        self._feeds = (*self._feeds, feed)
        return feed

    def unfeed(self, feed: Feed) -> None:
        """Nobody reads it any more."""
        self._feeds = tuple(each for each in self._feeds if each is not feed)

    def news(self, feed: Feed) -> tuple[list[Event], list[UbtStep]]:
        """What is new in a feed, operations counted from the beginning; and steps over UBT."""
        events = (event for event in feed.take() if not isinstance(event, Collective))
        return list(self._since(events)), []

    def open_collectives(self) -> tuple[Collective, ...]:
        """Those of torch's own groups in which this rank is now."""
        return ()

    def groups(self) -> tuple[Members, ...]:
        """The groups of torch's own that are watched."""
        return ()

    def _tell(self, event: Event) -> None:
        for feed in self._feeds:
            feed.append(event)

    def _since(self, remembered: Iterable[Kind]) -> Iterator[Kind]:
        """What is of operations since the beginning, counted from there."""
        for event in list(remembered):  # a copy: operations end on other threads meanwhile
            if event.operation >= self._first:
                yield replace(event, operation=event.operation - self._first)


class Rounds(Observer):
    """Remembers rounds of the ``watched`` operations in the order of their end; own clock."""

    def __init__(self) -> None:
        self.watched = range(0)
        self.tell: Callable[[Round], None] | None = None
        self.ended: list[Round] = []
        self._begun: dict[tuple[int, str, int], float] = {}

    def step_begins(self, operation: int, phase: str, round: int) -> None:
        """Note when a watched round begins."""
        if operation in self.watched:
            self._begun[operation, phase, round] = host.monotonic()

    def step_ends(self, operation: int, phase: str, round: int) -> None:
        """Remember a watched round."""
        began_s = self._begun.pop((operation, phase, round), None)
        if began_s is not None:
            ended = Round(operation, phase, round, began_s, host.monotonic())
            self.ended.append(ended)
            if self.tell is not None:
                self.tell(ended)


class DispatcherRecorder(OperationRecorder):
    """A dispatcher's: with the rounds of chosen operations, and the messages about decisions."""

    def __init__(
        self,
        group: StoreExchange,
        decisions: Decisions,
        rounds: Rounds,
        count: Callable[[], int],
    ) -> None:
        self._decisions = decisions
        self._rounds = rounds
        self._sent_before = 0
        super().__init__(group, decisions.alignment, count)
        rounds.tell = self._tell_round

    def begin(self, rounds: range) -> None:
        """As for all recorders, with the rounds of ``rounds``."""
        super().begin(rounds)
        first = self._first
        self._sent_before = self._decisions.sent
        self._rounds.ended.clear()
        self._rounds.watched = range(first + rounds.start, first + rounds.stop, rounds.step)

    def end(self) -> Rank:
        """As for all recorders, with rounds and messages."""
        self._rounds.watched = range(0)
        remembered = super().end()
        offset_s = self.alignment().offset_s
        rounds = [_shifted(ended, offset_s) for ended in self._since(self._rounds.ended)]
        return replace(remembered, rounds=tuple(rounds), messages=self.messages)

    @property
    def messages(self) -> int:
        """As for all recorders: about operations and epochs."""
        return self._decisions.sent - self._sent_before

    def _tell_round(self, ended: Round) -> None:
        if self._feeds:
            self._tell(_shifted(ended, self.alignment().offset_s))


def _shifted(ended: Round, offset_s: float) -> Round:
    """A round by the rank's own clock, on the reference clock."""
    began_s = ended.began_s + offset_s
    return replace(ended, began_s=began_s, ended_s=ended.ended_s + offset_s)
