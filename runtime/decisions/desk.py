"""The coordinator's desk: gathers arrivals, decides each operation once, remembers what it said.

Only the coordinator of an operation decides it, once, and answers every question about it with
that same decision until all ranks have acted on it. So decisions cannot differ however often
messages are lost, doubled or delayed; what asks again is the rank that waits. A decision needs no
rank's main thread: it is made where messages are heard, even while the coordinator itself is late.

Ranks that come to one operation with different buffers are a ``Fault``: it names those that differ
from most (with a tie, all).
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from runtime.decisions.costs import times
from runtime.decisions.decision import NATIVE, Decision
from runtime.decisions.messages import Arrive, Decide, Send
from runtime.decisions.options import Knowledge, Options
from runtime.decisions.rules import RULES, Gathered

REMEMBERED = 1024
"""Operations whose arrivals and ends are kept until all have told."""


@dataclass(frozen=True)
class Fault:
    """Ranks that disagree with the others, and on what."""

    ranks: tuple[int, ...]
    text: str


@dataclass
class _Sheet:
    """What is known of one operation."""

    gathered: Gathered
    at_s: dict[int, float] = field(default_factory=dict)  # reference clock
    buffers: dict[int, tuple[int, str]] = field(default_factory=dict)
    decision: Decision | None = None
    look_s: float = float("inf")
    done_s: dict[int, float] = field(default_factory=dict)

    @property
    def known(self) -> bool:
        """All arrivals are on one clock."""
        return not any(math.isnan(at_s) for at_s in self.at_s.values())


class Desk:
    """One rank's desk; most stand empty.

    Args:
        mine: whether this rank coordinates an operation (binds it); false if it is not known yet.
    """

    def __init__(
        self,
        size: int,
        options: Options,
        knowledge: Knowledge,
        mine: Callable[[int], bool],
    ) -> None:
        self.size, self.options, self.knowledge = size, options, knowledge
        self.fault: Fault | None = None
        self.largest = 0
        """Bytes of the largest buffer seen."""
        self._mine = mine
        self._rule = RULES.get(options.mode)
        self._sheets: OrderedDict[int, _Sheet] = OrderedDict()
        self._decided: dict[int, Decide] = {}
        self._consumed = [0] * size
        self._last_done_s = float("-inf")

    @property
    def wake_s(self) -> float:
        """When a wait that is going on will be over."""
        return min((sheet.look_s for sheet in self._open()), default=float("inf"))

    def hear(self, now_s: float, sender: int, said: Arrive) -> list[Send]:
        """A rank has come to an operation, or says so again."""
        for operation, done_s in said.done:
            self._done(operation, sender, done_s)
        self._note_consumed(sender, said.consumed)
        sheet = self._sheets.get(said.operation)
        known = self._decided.get(said.operation)
        if sheet is None and known is None and said.operation >= min(self._consumed):
            sheet = _Sheet(Gathered(said.operation, said.bytes))
            self._sheets[said.operation] = sheet
            while len(self._sheets) > REMEMBERED:
                self._sheets.popitem(last=False)
        if sheet is not None and sender not in sheet.at_s:
            self._enter(now_s, sender, said, sheet)
        if known is not None:
            return [(sender, known)]
        return self._look(now_s, sheet) if sheet is not None else []

    def look(self, now_s: float) -> list[Send]:
        """Decide whatever has waited long enough, or has become this rank's to decide."""
        found: list[Send] = []
        for sheet in self._open():
            if sheet.look_s <= now_s:
                found += self._look(now_s, sheet)
        return found

    def missing(self, operation: int) -> tuple[int, ...]:
        """Who has not come to an operation; nobody if nothing is known of it."""
        sheet = self._sheets.get(operation)
        return () if sheet is None else sheet.gathered.missing(self.size)

    def decided_elsewhere(self, operation: int, decision: Decision) -> None:
        """Note how an operation runs that needed no word from this desk."""
        if (sheet := self._sheets.get(operation)) is not None:
            sheet.decision = decision

    def _open(self) -> list[_Sheet]:
        if self._rule is None:
            return []
        return [sheet for sheet in self._sheets.values() if sheet.decision is None]

    def _enter(self, now_s: float, sender: int, said: Arrive, sheet: _Sheet) -> None:
        sheet.at_s[sender] = said.at_s
        sheet.gathered.heard[sender] = now_s
        sheet.buffers[sender] = said.bytes, said.kind
        self.largest = max(self.largest, said.bytes)
        if len(set(sheet.buffers.values())) > 1 and self.fault is None:
            found = disagreement(said.operation, sheet.buffers)
            if len(found.ranks) < len(sheet.buffers) or len(sheet.buffers) == self.size:
                self.fault = found  # else one against one: the next arrival tells who differs
        if len(sheet.at_s) == self.size and sheet.known:
            self.knowledge.history.add(sheet.at_s)

    def _look(self, now_s: float, sheet: _Sheet) -> list[Send]:
        """Ask the rule; tell all if it decides."""
        operation = sheet.gathered.operation
        agree = len(set(sheet.buffers.values())) == 1
        if self._rule is None or sheet.decision is not None or not agree:
            return []
        if not self._mine(operation):
            sheet.look_s = float("inf")
            return []
        found = self._rule(now_s, sheet.gathered, self.knowledge, self.options)
        if not isinstance(found, Decision):
            sheet.look_s = found.at_s
            return []
        sheet.decision = found
        size, kind = next(iter(sheet.buffers.values()))
        told = self._decided[operation] = Decide(operation, size, kind, found)
        return [(rank, told) for rank in range(self.size)]

    def _note_consumed(self, sender: int, consumed: int) -> None:
        before = min(self._consumed)
        self._consumed[sender] = max(self._consumed[sender], consumed)
        for operation in range(before, min(self._consumed)):
            self._decided.pop(operation, None)

    def _done(self, operation: int, sender: int, done_s: float) -> None:
        sheet = self._sheets.get(operation)
        if sheet is None:
            return
        sheet.done_s[sender] = done_s
        if len(sheet.done_s) == self.size == len(sheet.at_s):
            del self._sheets[operation]
            if sheet.known:
                self._learn(sheet)

    def _learn(self, sheet: _Sheet) -> None:
        """Compare what an operation took, from the last arrival on, with the prediction."""
        ordered = sorted(sheet.at_s.values())
        end_s = max(sheet.done_s.values())
        taken_s = end_s - max(ordered[-1], self._last_done_s)
        self._last_done_s = max(end_s, self._last_done_s)
        decision, knowledge, size = sheet.decision, self.knowledge, sheet.gathered.bytes
        if decision is None:
            return
        if decision.candidate == NATIVE:
            knowledge.experience.add(True, knowledge.profile.native_s(size), taken_s)
            return
        late = len(decision.late)
        lateness_s = ordered[-1] - ordered[-1 - late]
        for each in times(knowledge.candidates, knowledge.profile, late, size):
            if each.candidate == decision.candidate:
                expected_s = each.total_s(lateness_s) - lateness_s
                knowledge.experience.add(False, expected_s, taken_s)


def disagreement(operation: int, buffers: dict[int, tuple[int, str]]) -> Fault:
    """Who has come to ``operation`` with another buffer than most."""
    counts = Counter(buffers.values())
    (usual, most), *others = counts.most_common()
    tie = any(count == most for _, count in others)
    ranks = tuple(rank for rank in sorted(buffers) if tie or buffers[rank] != usual)
    shown = "; ".join(
        f"rank {rank}: {size} bytes of {kind}" for rank, (size, kind) in sorted(buffers.items())
    )
    return Fault(ranks, f"operation {operation}: the ranks' buffers differ ({shown})")
