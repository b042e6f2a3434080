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

from runtime.policy.cost_model import Times, times
from runtime.policy.decision import NATIVE, Decision
from runtime.policy.messages import Arrive, Decide, Report, Send
from runtime.policy.options import Options, PolicyInputs
from runtime.policy.rules import RULES, Gathered

QUIET = Decision(NATIVE, (), "nobody was late lately: nobody asks")
REMEMBERED = 1024
"""Operations whose arrivals and ends are kept until all have told."""


@dataclass(frozen=True)
class Fault:
    """Ranks that disagree with the others, and on what."""

    ranks: tuple[int, ...]
    text: str


@dataclass
class ArrivalState:
    """What is known of one operation.

    Attributes:
        at_s, done_s: on the reference clock.
        ready_s: when a schedule's waiting phases end, by prediction, on the own clock.
        unready_s: what of them the profile left to do when the last rank came.
    """

    gathered: Gathered
    at_s: dict[int, float] = field(default_factory=dict)
    buffers: dict[int, tuple[int, str]] = field(default_factory=dict)
    decision: Decision | None = None
    done_s: dict[int, float] = field(default_factory=dict)
    ready_s: float = float("-inf")
    unready_s: float = 0.0

    @property
    def known(self) -> bool:
        """All arrivals are on one clock."""
        return not any(math.isnan(at_s) for at_s in self.at_s.values())


class Coordinator:
    """One rank's desk; most stand empty.

    Args:
        mine: whether this rank coordinates an operation (binds it); false if it is not known yet.
    """

    def __init__(
        self,
        size: int,
        options: Options,
        knowledge: PolicyInputs,
        mine: Callable[[int], bool],
    ) -> None:
        self.size, self.options, self.knowledge = size, options, knowledge
        self.fault: Fault | None = None
        self.largest = 0
        """Bytes of the largest buffer seen."""
        self.wake_s = float("inf")
        """When a wait that is going on will be over."""
        self._mine = mine
        self._rule = RULES.get(options.mode)
        self._sheets: OrderedDict[int, ArrivalState] = OrderedDict()
        self._decided: dict[int, Decide] = {}
        self._consumed = [0] * size
        self._reported = [-1] * size
        self._last_done_s = float("-inf")
        self._free_s = float("-inf")  # when the links have done what was decided, by prediction
        self._newest = -1  # the last operation that was
        self._done_to = -1  # operations up to here are done

    def hear(self, now_s: float, sender: int, said: Arrive) -> list[Send]:
        """A rank has come to an operation, or says so again."""
        self._note(sender, said)
        sheet = self._sheets.get(said.operation)
        known = self._decided.get(said.operation)
        if sheet is None and known is None and said.operation >= min(self._consumed):
            sheet = self._open_sheet(said.operation, said.bytes)
        if sheet is not None and sender not in sheet.at_s:
            self._enter(now_s, sender, sheet, said.at_s, (said.bytes, said.kind))
        if known is not None:
            return [(sender, known)]
        return self._look(now_s) if sheet is not None else []

    def reported(self, now_s: float, sender: int, said: Report) -> None:
        """What a rank did while nobody asked."""
        for operation, at_s, size, kind in said.arrivals:
            if operation <= self._reported[sender]:
                continue  # doubled or overtaken
            self._reported[sender] = operation
            sheet = self._sheets.get(operation) or self._open_sheet(operation, size)
            sheet.decision = sheet.decision or QUIET
            if sender not in sheet.at_s:
                self._enter(now_s, sender, sheet, at_s, (size, kind))
        self._note(sender, said)

    def look(self, now_s: float) -> list[Send]:
        """Decide what has waited long enough by now."""
        return self._look(now_s) if self.wake_s <= now_s else []

    def knows(self, rank: int, operation: int) -> bool:
        """Whether this desk has heard of a rank's arrival before (or has forgotten)."""
        sheet = self._sheets.get(operation)
        return operation < min(self._consumed) or (sheet is not None and rank in sheet.at_s)

    def missing(self, operation: int) -> tuple[int, ...]:
        """Who has not come to an operation; nobody if nothing is known of it."""
        sheet = self._sheets.get(operation)
        return () if sheet is None else sheet.gathered.missing(self.size)

    def decided_elsewhere(self, operation: int, decision: Decision) -> None:
        """Note how an operation runs that needed no word from this desk."""
        if (sheet := self._sheets.get(operation)) is not None:
            sheet.decision = decision

    def _open(self) -> list[ArrivalState]:
        if self._rule is None:
            return []
        undecided = [sheet for sheet in self._sheets.values() if sheet.decision is None]
        return sorted(undecided, key=lambda sheet: sheet.gathered.operation)

    def _open_sheet(self, operation: int, size: int) -> ArrivalState:
        sheet = self._sheets[operation] = ArrivalState(Gathered(operation, size))
        while len(self._sheets) > REMEMBERED:
            self._sheets.popitem(last=False)
        return sheet

    def _enter(
        self, now_s: float, sender: int, sheet: ArrivalState, at_s: float, buffer: tuple[int, str]
    ) -> None:
        sheet.at_s[sender] = at_s
        sheet.gathered.heard[sender] = now_s
        sheet.buffers[sender] = buffer
        self.largest = max(self.largest, buffer[0])
        if len(set(sheet.buffers.values())) > 1 and self.fault is None:
            found = disagreement(sheet.gathered.operation, sheet.buffers)
            if len(found.ranks) < len(sheet.buffers) or len(sheet.buffers) == self.size:
                self.fault = found  # else one against one: the next arrival tells who differs
        if len(sheet.at_s) == self.size:
            if sheet.known:
                self.knowledge.history.add(sheet.at_s)
            if sheet.decision is not None:
                self._occupy(now_s, sheet, complete=True)

    def _look(self, now_s: float) -> list[Send]:
        """Ask the rule, operation by operation; tell all what it decides.

        Ranks start operations in order, so the first one that has to wait holds up all after it.
        """
        found: list[Send] = []
        self.wake_s = float("inf")
        for sheet in self._open():
            operation, buffers = sheet.gathered.operation, set(sheet.buffers.values())
            if not self._mine(operation):
                continue
            if len(buffers) > 1:
                break
            assert self._rule is not None
            sheet.gathered.free_s = self._free_s
            sheet.gathered.started = self._started()
            decision = self._rule(now_s, sheet.gathered, self.knowledge, self.options)
            if not isinstance(decision, Decision):
                self.wake_s = decision.at_s
                break
            sheet.decision = decision
            self._occupy(now_s, sheet, complete=False)
            told = self._decided[operation] = Decide(operation, *buffers.pop(), decision)
            found += [(rank, told) for rank in range(self.size)]
        return found

    def _started(self) -> int:
        """How many operations have been started and still miss somebody."""
        return sum(
            sheet.decision is not None
            and sheet.decision.candidate != NATIVE
            and len(sheet.at_s) < self.size
            and operation > self._done_to
            for operation, sheet in self._sheets.items()
        )

    def _occupy(self, now_s: float, sheet: ArrivalState, *, complete: bool) -> None:
        """The links are busy with an operation that starts, or (``complete``) is complete now."""
        decision, knowledge = sheet.decision, self.knowledge
        assert decision is not None
        takes_s = 0.0
        if decision.candidate == NATIVE:
            takes_s = 0.0 if complete else knowledge.native_s(sheet.gathered.bytes)
        else:
            factor = knowledge.experience.factor(False)
            chosen = self._times(decision, sheet.gathered.bytes)
            takes_s = factor * (chosen.completion_s if complete else chosen.waiting_s)
            if complete:
                sheet.unready_s = max(0.0, sheet.ready_s - now_s) / factor
        self._free_s = max(self._free_s, now_s) + takes_s
        if not complete:
            sheet.ready_s = self._free_s
            self._newest = sheet.gathered.operation

    def _times(self, decision: Decision, size: int) -> Times:
        """What a schedule takes by the profile."""
        found = times(self.knowledge.candidates, self.knowledge.profile, len(decision.late), size)
        return next(each for each in found if each.candidate == decision.candidate)

    def _note(self, sender: int, said: Arrive | Report) -> None:
        """What a rank says beside: which operations are done, and need no decision any more."""
        for operation, done_s in said.done:
            self._done(operation, sender, done_s)
        before = min(self._consumed)
        self._consumed[sender] = max(self._consumed[sender], said.consumed)
        for operation in range(before, min(self._consumed)):
            self._decided.pop(operation, None)

    def _done(self, operation: int, sender: int, done_s: float) -> None:
        self._done_to = max(self._done_to, operation)
        if operation >= self._newest:
            self._free_s = float("-inf")  # where one rank is done, the links are, or nearly
        sheet = self._sheets.get(operation)
        if sheet is None:
            return
        sheet.done_s[sender] = done_s
        if len(sheet.done_s) == self.size == len(sheet.at_s):
            del self._sheets[operation]
            if sheet.known:
                self._learn(sheet)

    def _learn(self, sheet: ArrivalState) -> None:
        """Compare what an operation took, from the last arrival on, with the prediction."""
        last_s, end_s = max(sheet.at_s.values()), max(sheet.done_s.values())
        begins_s = max(last_s, self._last_done_s)
        self._last_done_s = max(end_s, self._last_done_s)
        decision, knowledge, size = sheet.decision, self.knowledge, sheet.gathered.bytes
        if decision is None:
            return
        native = decision.candidate == NATIVE
        if native:
            expected_s = knowledge.profile.native_s(size)
        else:
            unready_s = max(0.0, sheet.unready_s - (begins_s - last_s))
            expected_s = unready_s + self._times(decision, size).completion_s
        knowledge.experience.add(native, expected_s, end_s - begins_s)


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
