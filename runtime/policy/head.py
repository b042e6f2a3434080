"""What ranks say to coordinators: each for itself, or many through heads, which gather it.

A coordinator of thousands of ranks that heard each of them would be as slow as it has ranks. So
where there are many, a head gathers the arrivals of its ranks, and tells them when a decision may
depend on them: when all have come and, those of ``TOGETHER_S`` together, when no more are missing
than an operation may be started without. It tells what it has, too, if it has waited long, and
again while there is no decision. Every rank is a head, if only of itself; it speaks to the head
above it in a tree, or to the coordinator. Loss, doubling and reordering are dealt with at each step
alike: who waits asks again, and who has the decision answers. Who hears nothing from the head above
it asks the coordinator itself now and then.

What a head says for all of its ranks together: operations are consumed, and done, when all have.
"""

from __future__ import annotations

import functools
import math
import operator
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from latecomer.runtime.network.protocol import Protocol
from latecomer.runtime.policy.arrivals import Arrival, ArrivalState
from latecomer.runtime.policy.messages import Arrive, Decide, PolicyMessage
from latecomer.runtime.policy.options import PolicyInputs
from latecomer.runtime.policy.rules import RULES

TOGETHER_S = 0.001  # arrivals within it are told in one message
RETRY_S = 0.1  # before it asks again: well above a round trip through busy links
LONGEST_RETRY_S = 1.0  # as the pause doubles from one time to the next
PAST_HEAD = 6
"""Each so many-th time it asks not the head above it, but the coordinator. With the pauses above, a
head whose process has stopped costs the ranks below it 2.5 s."""
REPORT_S = 0.5  # in quiet times a head reports so often,
MOST_REPORTED = 64  # or when so many operations have gathered
MOST_TOLD = 2048  # arrivals in one message: it has to fit into a datagram
MOST_DONE = 64  # ends of operations that one message tells of; older ones are not told


@dataclass
class _Gathered(ArrivalState):
    """What is to be told of one operation, to which coordinator, and when again."""

    to: int = 0
    again_s: float = math.inf
    pause_s: float = RETRY_S
    tries: int = 0


class Head(Protocol[PolicyMessage, None]):
    """One rank's part: it speaks for the ranks that it heads, itself among them."""

    def __init__(self, rank: int, inputs: PolicyInputs) -> None:
        super().__init__()
        self.rank = rank
        self.inputs = inputs
        # the head above; who speaks to this one, and for which ranks; for whom this one speaks
        self._above, senders, self._below = inputs.headed(rank)
        self._is_alone = len(self._below) == 1
        self._ranks_of = {sender: inputs.speaks_for(sender) for sender in senders}
        self._ranks_of[rank] = range(rank, rank + 1)  # a rank tells its own head of itself only
        self._has_rule = inputs.options.mode in RULES
        self._states: dict[int, _Gathered] = {}
        self._decided: dict[int, Decide] = {}
        self._consumed = dict.fromkeys(senders, 0)
        self._made = dict.fromkeys(senders, inputs.made)
        self._needed = 0  # operations below need no decision any more on its ranks
        self._ends: dict[int, dict[int, float]] = {}  # of operations that not all have done
        self._done: deque[tuple[int, float]] = deque(maxlen=MOST_DONE)
        self._reports: list[Arrival] = []
        self._report_s = -math.inf  # when the next report is due

    def receive_message(self, message: PolicyMessage, sender: int, now_s: float) -> None:
        """One of its ranks has come to operations, or a coordinator has decided one."""
        if isinstance(message, Decide):
            if message.operation >= self._needed and message.operation not in self._decided:
                self._decided[message.operation] = message
                self._outbox += ((rank, message) for rank in self._consumed if rank != self.rank)
                if message.operation in self._states:
                    self._states[message.operation].again_s = math.inf
        elif isinstance(message, Arrive) and message.to is not None and sender in self._consumed:
            for arrival in message.arrivals:
                arrival.require(self._ranks_of[sender])
            if message.asks:
                self._note(message, sender)
                for arrival in message.arrivals:
                    self._on_question(arrival, message.to, sender, now_s)
            else:
                self._on_report(message.arrivals, message.to, sender, now_s)
                self._note(message, sender)

    def get_timer(self) -> float | None:
        """When something has to be said again."""
        return min([state.again_s for state in self._states.values()], default=None)

    def handle_timer(self, now_s: float) -> None:
        """Say again what is due by now."""
        due = [state for state in self._states.values() if state.again_s <= now_s]
        for state in due:
            self._tell(state, now_s)

    def done(self, operation: int, rank: int, done_s: float) -> None:
        """One of its ranks has the result of an operation; to be told with what comes next."""
        ends = self._ends.setdefault(operation, {})
        ends[rank] = done_s
        if len(ends) == len(self._consumed):
            self._done.append((operation, max(self._ends.pop(operation).values())))
        elif len(self._ends) > MOST_DONE:  # of the oldest a rank's word was lost
            del self._ends[next(iter(self._ends))]

    def can_wait(self, now_s: float) -> bool:
        """Whether one more arrival can be added to the next report, which is not due yet."""
        return self._is_alone and now_s < self._report_s and len(self._reports) < MOST_REPORTED - 1

    def add_report(self, arrival: Arrival) -> None:
        """This rank has come to an operation, and speaks for itself alone: it says so once."""
        self._reports.append(arrival)

    def _on_question(self, arrival: Arrival, to: int, sender: int, now_s: float) -> None:
        if arrival.operation < self._needed:
            return
        if self._reports:  # what happened before goes first: it is what decisions are made from
            self._report(to, now_s)
        state = self._open(arrival, to)
        decided = self._decided.get(arrival.operation)
        if decided is None:
            state.again_s = min(state.again_s, now_s + state.pause_s)
        elif sender != self.rank:
            self._send(sender, decided)
        if state.enter(arrival, sender, now_s):
            if not state.absent:
                self._tell(state, now_s)
            elif state.absent <= self.inputs.most_late:
                state.again_s = min(state.again_s, now_s + TOGETHER_S)

    def _on_report(self, arrivals: Iterable[Arrival], to: int, sender: int, now_s: float) -> None:
        for arrival in arrivals:
            if arrival.operation < self._needed:
                continue
            if self._is_alone:
                self.add_report(arrival)
                continue
            state = self._open(arrival, to)
            if state.enter(arrival, sender, now_s) and not state.absent:
                self._reports.append(state.arrival)
        if self._reports and (now_s >= self._report_s or len(self._reports) >= MOST_REPORTED):
            self._report(to, now_s)

    def _open(self, arrival: Arrival, to: int) -> _Gathered:
        if (state := self._states.get(arrival.operation)) is None:
            state = _Gathered(arrival.operation, arrival.buffer, self._below, to=to)
            self._states[arrival.operation] = state
        return state

    def _tell(self, state: _Gathered, now_s: float) -> None:
        """Tell who has come; until the coordinator has decided, again."""
        state.tries += 1
        state.again_s = now_s + state.pause_s
        state.pause_s = min(LONGEST_RETRY_S, 2 * state.pause_s)
        if state.operation in self._decided or not (state.absent or self._has_rule):
            state.again_s = math.inf  # it is decided; or nobody will, and all have come
        above = self._above
        if state.tries % PAST_HEAD == 0:
            above = None
        self._say([state.arrival], asks=True, to=state.to, above=above)

    def _report(self, to: int, now_s: float) -> None:
        """Tell what happened while nobody asked."""
        self._report_s = now_s + REPORT_S
        per_message = max(1, MOST_TOLD // len(self._below))
        for first in range(0, len(self._reports), per_message):
            reports = self._reports[first : first + per_message]
            self._say(reports, asks=False, to=to, above=self._above)
        self._reports = []

    def _say(self, arrivals: list[Arrival], *, asks: bool, to: int, above: int | None) -> None:
        """Send it to coordinator ``to``, or to the head above, which passes it on."""
        message = Arrive(
            arrivals=tuple(arrivals),
            asks=asks,
            consumed=self._needed,
            made=functools.reduce(operator.and_, self._made.values()),
            done=tuple(self._done),
            to=None if above is None else to,
        )
        self._send(to if above is None else above, message)
        self._done.clear()

    def _note(self, message: Arrive, sender: int) -> None:
        """What a rank tells beside."""
        for operation, done_s in message.done:
            self.done(operation, sender, done_s)
        self._made[sender] |= message.made
        before = self._consumed[sender]
        self._consumed[sender] = max(before, message.consumed)
        if before == self._needed < message.consumed:
            self._needed = min(self._consumed.values())
            for operation in range(before, self._needed):
                self._decided.pop(operation, None)
                self._states.pop(operation, None)
