"""The coordinator: gathers arrivals, decides each operation once, remembers what it has sent.

Only the coordinator of an operation decides it, once, and answers every question about it with
that same decision until all ranks have acted on it. So decisions cannot differ however often
messages are lost, doubled or delayed; what asks again is the rank that waits. A decision needs no
rank's main thread: it is made where messages are received, even while the coordinator is late.

What it hears comes from heads (``head``), as arrays of stamps. A message costs a copy of its bytes,
however many ranks there are: nothing is looked through that grows with these, until all have come.

Ranks that come to one operation with different buffers are a ``Fault``: it names those that differ
from most (with a tie, all).
"""

from __future__ import annotations

import functools
import math
import operator
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from latecomer.runtime.network.clock import Clock
from latecomer.runtime.network.protocol import Protocol
from latecomer.runtime.policy.arrivals import Arrival, BufferSignature
from latecomer.runtime.policy.cost_model import Times
from latecomer.runtime.policy.epochs import EpochCommit
from latecomer.runtime.policy.messages import NATIVE, Arrive, Decide, Decision, PolicyMessage
from latecomer.runtime.policy.options import PolicyInputs
from latecomer.runtime.policy.rules import RULES, OperationState

REMEMBERED = 1024
"""Operations whose arrivals and ends are kept until all ranks have told of them.

There has to be a limit: what a rank tells while nobody asks is sent once and may be lost, so of
some operations not all is ever told.
"""


@dataclass(frozen=True)
class Fault:
    """Ranks that disagree with the others, and on what."""

    ranks: tuple[int, ...]
    text: str


class Coordinator(Protocol[PolicyMessage, Fault]):
    """One rank's part; idle on most ranks.

    ``epochs`` tells who coordinates what, ``useless`` why a buffer's decision gains nothing.
    """

    def __init__(
        self,
        rank: int,
        inputs: PolicyInputs,
        epochs: EpochCommit,
        clock: Clock,
        useless: Callable[[BufferSignature], str],
    ) -> None:
        super().__init__()
        self.rank = rank
        self.world_size = inputs.world_size
        self.inputs = inputs
        self.largest = 0  # bytes of a buffer
        self._epochs = epochs
        self._clock = clock
        heads = range(0, self.world_size, inputs.stride)
        self._rule = RULES.get(inputs.options.mode)
        self._useless = useless
        self._states: dict[int, OperationState] = {}
        self._undecided: set[int] = set()  # may have to be decided here
        self._started: set[int] = set()  # by a schedule, and still miss a rank
        self._decided: dict[int, Decide] = {}
        self._consumed = dict.fromkeys(heads, 0)
        self._reported = dict.fromkeys(heads, -1)
        self._made = dict.fromkeys(heads, inputs.made)
        self._needed = 0  # operations below need no decision any more
        self._wait_s: float | None = None  # when a wait that is going on will be over
        self._free_s = -math.inf  # when the links have done what was decided, by prediction
        self._newest = -1  # the last operation that was
        self._done_to = -1  # operations up to here are done
        self._last_done_s = -math.inf
        self._faulty = False

    def receive_message(self, message: PolicyMessage, sender: int, now_s: float) -> None:
        """A rank has come to an operation, or says so again; or what it did while nobody asked."""
        assert isinstance(message, Arrive)
        ranks = self.inputs.speaks_for(sender)
        for arrival in message.arrivals:
            arrival.require(ranks)
        if message.asks:
            # Ends first: an operation that is done frees the links, and so moves decisions.
            self._note(message, sender)
            for arrival in message.arrivals:
                self._on_question(arrival, sender, now_s)
        else:
            last = self._reported.get(sender, math.inf)  # only heads that speak to it report
            for arrival in message.arrivals:
                if arrival.operation > last:  # neither doubled nor overtaken
                    self._reported[sender] = arrival.operation
                    self._on_report(arrival, sender, now_s)
            # Ends last: a report may have the end of the very operation that it tells of.
            self._note(message, sender)

    def get_timer(self) -> float | None:
        """When a wait is over."""
        return self._wait_s

    def handle_timer(self, now_s: float) -> None:
        """Decide what has waited long enough by now."""
        if self._wait_s is not None and self._wait_s <= now_s:
            self._decide(now_s)

    def missing(self, operation: int) -> tuple[int, ...]:
        """The ranks that have not come to an operation; none if nothing is known of it."""
        state = self._states.get(operation)
        return () if state is None else state.missing

    def decided_elsewhere(
        self, operation: int, buffer: BufferSignature, decision: Decision
    ) -> None:
        """Note how an operation of this coordinator's runs that every rank decides by itself."""
        state = self._states.get(operation) or self._open(operation, buffer)
        state.decision = decision

    def _on_question(self, arrival: Arrival, sender: int, now_s: float) -> None:
        operation = arrival.operation
        state = self._states.get(operation)
        decided = self._decided.get(operation)
        if state is None and decided is None and operation >= self._needed:
            state = self._open(operation, arrival.buffer)
            if self._rule is not None:
                self._undecided.add(operation)

        if state is not None:
            state.asking.add(sender)
            is_new = self._enter(state, arrival, sender, now_s) and sender != self.rank
            # While more are missing a head holds back what it has: that is no delay of the network.
            if is_new and state.absent <= self.inputs.most_late:
                heard_s = now_s + self._clock.alignment(now_s).offset_s
                self.inputs.correction.add_delay(heard_s - float(arrival.at_s.max()))

        if decided is not None:
            self._send(sender, decided)
        elif state is not None and state.absent <= self.inputs.most_late:
            self._decide(now_s)

    def _on_report(self, arrival: Arrival, sender: int, now_s: float) -> None:
        operation = arrival.operation
        state = self._states.get(operation) or self._open(operation, arrival.buffer)
        self._undecided.discard(operation)
        self._enter(state, arrival, sender, now_s)

    def _open(self, operation: int, buffer: BufferSignature) -> OperationState:
        state = OperationState(operation, buffer, range(self.world_size))
        self._states[operation] = state
        while len(self._states) > REMEMBERED:
            self._forget(next(iter(self._states)))
        return state

    def _forget(self, operation: int) -> None:
        del self._states[operation]
        self._undecided.discard(operation)
        self._started.discard(operation)

    def _enter(self, state: OperationState, arrival: Arrival, sender: int, now_s: float) -> bool:
        """Take down the arrivals that are not known yet; whether there are any."""
        if not state.enter(arrival, sender, now_s):
            return False
        if arrival.buffer.can_be_begun:
            self.largest = max(self.largest, arrival.buffer.nbytes)
        if state.odd and not self._faulty:
            arrived = sorted({*state.ranks} - {*state.missing})
            buffers = {rank: state.odd.get(rank, state.buffer) for rank in arrived}
            fault = disagreement(state.operation, buffers)
            if fault.ranks and (len(fault.ranks) < len(arrived) or not state.absent):
                self._faulty = True  # else one against one: the next arrival tells who differs
                self._events.append(fault)
        if not state.absent:
            self._started.discard(state.operation)
            # in rules' modes ranks ask of what may gain, and who is late there is what counts
            if state.aligned and not self._useless(state.buffer):
                self.inputs.history.add(state.at_s)
            if state.decision is not None:
                self._occupy(state, state.decision, now_s, complete=True)
        return True

    def _decide(self, now_s: float) -> None:
        """Ask the rule, operation by operation; tell all what it decides.

        Ranks start operations in order, so the first one that has to wait holds up all after it.
        """
        self._wait_s = None
        for operation in sorted(self._undecided):
            epoch = self._epochs.bind(operation)
            state = self._states[operation]
            if epoch is None or self._rule is None:
                continue
            if epoch.coordinator != self.rank:  # nor ever will be, since it is bound
                self._undecided.discard(operation)
                continue
            if state.odd or state.absent > self.inputs.most_late:
                break

            state.epoch = epoch
            state.free_s = self._free_s
            state.started = len(self._started)
            decision = self._rule(now_s, state, self.inputs)
            if not isinstance(decision, Decision):
                self._wait_s = decision.at_s
                break

            state.decision = decision
            self._undecided.discard(operation)
            if decision.late and operation > self._done_to:
                self._started.add(operation)
            self._occupy(state, decision, now_s, complete=False)
            decide = Decide(operation, state.buffer, decision)
            self._decided[operation] = decide
            self._outbox += ((rank, decide) for rank in self._consumed.keys() | state.asking)

    def _occupy(
        self, state: OperationState, decision: Decision, now_s: float, *, complete: bool
    ) -> None:
        """The links are busy with an operation that starts, or (``complete``) is complete now."""
        correction = self.inputs.correction
        factor = correction.factor(state.buffer.of_class, native=not decision.late)
        times = self._times(decision, state.buffer)
        takes_s = times.completion_s if complete else times.waiting_s
        self._free_s = max(self._free_s, now_s) + factor * takes_s
        if complete:
            state.unready_s = max(0.0, state.ready_s - now_s) / factor
        else:
            state.ready_s = self._free_s
            self._newest = state.operation

    def _times(self, decision: Decision, buffer: BufferSignature) -> Times:
        """What a way takes by the profile; on time nothing is left to do after its start.

        The library's other collectives are taken for as long as its all-reduce.
        """
        if decision.candidate == NATIVE:
            return Times(NATIVE, self.inputs.native_s(buffer.nbytes, corrected=False), 0.0)
        schedules = self.inputs.times(
            len(decision.late), buffer.nbytes, corrected=False, collective=buffer.collective
        )
        return next(schedule for schedule in schedules if schedule.candidate == decision.candidate)

    def _note(self, message: Arrive, sender: int) -> None:
        """What a rank tells beside: which operations are done, and need no decision any more."""
        if sender not in self._consumed:
            return  # a rank whose head does not answer
        if message.made | self._made[sender] != self._made[sender]:
            self._made[sender] |= message.made
            self.inputs.made = functools.reduce(operator.and_, self._made.values())
        for operation, done_s in message.done:
            self._on_done(operation, sender, done_s)
        before = self._consumed[sender]
        self._consumed[sender] = max(before, message.consumed)
        if before == self._needed < message.consumed:
            self._needed = min(self._consumed.values())
            for operation in range(before, self._needed):
                self._decided.pop(operation, None)

    def _on_done(self, operation: int, sender: int, done_s: float) -> None:
        if operation > self._done_to:
            self._done_to = operation
            self._started = {started for started in self._started if started > operation}
        if operation >= self._newest:
            self._free_s = -math.inf  # where one rank is done, the links are, or nearly
        if (state := self._states.get(operation)) is not None:
            state.done_s[sender] = done_s
            if len(state.done_s) == len(self._consumed) and not state.absent:
                self._forget(operation)
                if state.aligned:
                    self._learn(state)

    def _learn(self, state: OperationState) -> None:
        """Compare what an operation took, from the last arrival on, with the prediction."""
        last_s = float(state.at_s.max())
        end_s = max(state.done_s.values())
        begins_s = max(last_s, self._last_done_s)  # links are busy with the one before until then
        self._last_done_s = max(end_s, self._last_done_s)
        if state.decision is None:
            return

        decision = state.decision
        took_s = end_s - begins_s
        native = decision.candidate == NATIVE
        if not decision.late:
            # With its wait for operations before it: these may go on beside it, or end after it.
            # Which way they ran was random, too, so no way of this one had more of it.
            self.inputs.on_time.add(state.buffer.of_class, decision.candidate, end_s - last_s)
            if not native or not state.buffer.can_be_begun:
                return  # what schedules take after a late rank's arrival has another error

        times = self._times(decision, state.buffer)
        unready_s = max(0.0, state.unready_s - (begins_s - last_s))
        expected_s = times.waiting_s if native else unready_s + times.completion_s
        self.inputs.correction.add(state.buffer.of_class, native, expected_s, took_s)


def disagreement(operation: int, buffers: dict[int, BufferSignature]) -> Fault:
    """Which ranks have come to ``operation`` with another buffer (by rank) than most."""
    usual = statistics.multimode(buffers.values())
    ranks = tuple(rank for rank, buffer in buffers.items() if [buffer] != usual)
    shown = "; ".join(f"rank {rank}: {buffer}" for rank, buffer in buffers.items())
    return Fault(ranks, f"operation {operation}: the ranks' buffers differ ({shown})")
