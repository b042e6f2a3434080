"""One rank's part of the control plane: messages and time in, messages and decisions out.

Who decides an operation:

    native, static    every rank by itself, from what all share; nothing is sent
    predict           every rank by itself, from its epoch; arrivals are sent to the coordinator,
                      nobody waits for an answer
    eager, auto       the coordinator of its epoch; small buffers by every rank, and in mode auto
                      all, while the epoch is quiet: nobody asks then, and what ranks report now
                      and then tells the coordinator when to ask again

Why no two ranks can act on different decisions: see ``epochs`` and ``coordinator``. A rank whose
buffer is not the one that was decided on says so (``Fault``) and acts on nothing.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from runtime.network.clock import Aligned, Clock, Ping, Pong
from runtime.network.protocol import Protocol
from runtime.policy.coordinator import QUIET, Coordinator, Fault, disagreement
from runtime.policy.epochs import EpochCommit
from runtime.policy.messages import NATIVE, Arrival, Arrive, Decide, Decision, Message
from runtime.policy.options import DETERMINISTIC, PolicyInputs
from runtime.policy.rules import RULES, next_epoch, predicted, small, static

RETRY_S, LONGEST_RETRY_S = 0.1, 1.0  # well above a round trip through busy links
REPORT_S, MOST_REPORTED = 0.5, 64  # in quiet times a rank reports so often, or when so many gather
MOST_DONE = 64  # ends of operations that one message tells of; older ones are not told


@dataclass(frozen=True)
class Decided:
    """The event that it is known how an operation runs; in order, each once."""

    operation: int
    decision: Decision


@dataclass
class _Entered:
    """An operation that this rank has come to."""

    arrival: Arrival
    again_s: float
    pause_s: float = RETRY_S
    told: bool = False


class RankAgent(Protocol[Message, Aligned | Decided | Fault]):
    """One rank's agent; all ranks have the same options, candidates and profile."""

    def __init__(self, rank: int, inputs: PolicyInputs) -> None:
        super().__init__()
        self.rank, self.inputs = rank, inputs
        self.clock = Clock(rank)
        self.epochs = EpochCommit(rank, inputs.world_size, coordinator=0)
        self._coordinator = Coordinator(rank, inputs, self.epochs)
        self._entered: dict[int, _Entered] = {}  # and not handed out as decided
        self._decided: dict[int, Decide] = {}
        self._consumed = 0
        self._done: deque[tuple[int, float]] = deque(maxlen=MOST_DONE)
        self._unreported: list[Arrival] = []
        self._report_s = -math.inf  # when the next report is due
        self._faulty = False
        self._forecast_at = 0
        self._collect(self.clock, 0.0)

    def arrive(self, operation: int, nbytes: int, kind: str, now_s: float) -> None:
        """This rank comes to ``operation`` (they come in order) with this buffer."""
        alignment = self.clock.alignment(now_s)
        at_s = now_s + alignment.offset_s if math.isfinite(alignment.uncertainty_s) else math.nan
        self._entered[operation] = _Entered(Arrival(operation, at_s, (nbytes, kind)), now_s)
        self._compare(operation)
        self._progress(now_s)

    def done(self, operation: int, now_s: float) -> None:
        """This rank has the result of ``operation``."""
        if self.inputs.options.mode not in DETERMINISTIC:
            self._done.append((operation, now_s + self.clock.alignment(now_s).offset_s))

    def waits_for(self, operation: int) -> int:
        """The rank that a decision waits for: for its word, or for its arrival."""
        if (stuck := self.epochs.stuck_on) is not None:
            return stuck
        epoch = self.epochs.bind(operation)
        coordinator = (epoch or self.epochs.latest).coordinator
        missing = self._coordinator.missing(operation) if coordinator == self.rank else ()
        return missing[0] if missing else coordinator

    def next_event(self) -> Aligned | Decided | Fault | None:
        """Decisions in the order of operations, as soon as they are known; none after a fault."""
        if (event := super().next_event()) is not None:
            return event
        operation = next(iter(self._entered), -1)
        if operation not in self._decided or self._faulty:
            return None
        del self._entered[operation]
        self._consumed = operation + 1
        return Decided(operation, self._decided.pop(operation).decision)

    def get_timer(self) -> float | None:
        """When something is to be sent, or decided."""
        timers = [part.get_timer() for part in (self.clock, self.epochs, self._coordinator)]
        timers += [each.again_s for number, each in self._entered.items() if self._asks(number)]
        return min((timer for timer in timers if timer is not None), default=None)

    def handle_timer(self, now_s: float) -> None:
        """Send, and decide, what is due by now."""
        for part in (self.clock, self.epochs, self._coordinator):
            part.handle_timer(now_s)
            self._collect(part, now_s)
        self._progress(now_s)

    def receive_message(self, message: Message, sender: int, now_s: float) -> None:
        """Hand a message to whom it concerns."""
        if isinstance(message, Ping | Pong):
            self.clock.receive_message(message, sender, now_s)
            self._collect(self.clock, now_s)
        elif isinstance(message, Decide):
            if message.operation >= self._consumed:
                self._decided.setdefault(message.operation, message)
                self._compare(message.operation)
        elif isinstance(message, Arrive):
            if message.asks and not self._coordinator.knows(sender, arrival := message.arrivals[0]):
                offset_s = self.clock.alignment(now_s).offset_s
                self.inputs.correction.add_delay(now_s + offset_s - arrival.at_s)
            self._coordinator.receive_message(message, sender, now_s)
            self._collect(self._coordinator, now_s)
            self._replan(now_s)
        else:
            self.epochs.receive_message(message, sender, now_s)
            self._collect(self.epochs, now_s)
            self._progress(now_s)

    def _asks(self, operation: int) -> bool:
        """Whether this rank still has to say that it has come, or wants to hear a decision."""
        return not self._entered[operation].told or operation not in self._decided

    def _progress(self, now_s: float) -> None:
        """Decide what can be decided here, and tell coordinators what they have to know by now."""
        for operation, entered in list(self._entered.items()):
            if not self._asks(operation) or (entered.told and entered.again_s > now_s):
                continue
            if (decision := self._own_decision(entered)) is not None:
                self._run(entered, decision)
                continue
            epoch = self.epochs.bind(operation)
            if epoch is None:  # `epochs` asks for the outcome
                entered.again_s = now_s + RETRY_S
            elif epoch.quiet:
                self._run(entered, QUIET)
                self._unreported.append(entered.arrival)
                if now_s >= self._report_s or len(self._unreported) >= MOST_REPORTED:
                    self._report(epoch.coordinator, now_s)
            else:
                if self._unreported:
                    self._report(epoch.coordinator, now_s)
                entered.told = True
                entered.again_s = now_s + entered.pause_s
                entered.pause_s = min(LONGEST_RETRY_S, 2 * entered.pause_s)
                self._tell([entered.arrival], True, epoch.coordinator, now_s)
                if self.inputs.options.mode == "predict":
                    decision = predicted(entered.arrival.buffer[0], epoch, self.inputs)
                    self._run(entered, decision)
                    self._coordinator.decided_elsewhere(operation, decision)

    def _own_decision(self, entered: _Entered) -> Decision | None:
        """How an operation runs about which nothing has to be sent."""
        mode, nbytes = self.inputs.options.mode, entered.arrival.buffer[0]
        if mode in DETERMINISTIC:
            return static(nbytes, self.inputs)
        reason = small(nbytes, self.inputs) if mode in RULES else ""
        return Decision(NATIVE, (), reason) if reason else None

    def _run(self, entered: _Entered, decision: Decision) -> None:
        """Decide here; nobody is asked."""
        operation, _, buffer = entered.arrival
        entered.told = True
        self._decided[operation] = Decide(operation, buffer, decision)

    def _report(self, to: int, now_s: float) -> None:
        """Tell the coordinator what happened while nobody asked."""
        arrivals, self._unreported = self._unreported, []
        self._report_s = now_s + REPORT_S
        self._tell(arrivals, False, to, now_s)

    def _tell(self, arrivals: list[Arrival], asks: bool, to: int, now_s: float) -> None:
        """Tell the coordinator that this rank has come, and what it has done since."""
        message = Arrive(tuple(arrivals), asks, self._consumed, tuple(self._done))
        self._done.clear()
        self._post([(to, message)], now_s)

    def _collect(self, part: Clock | EpochCommit | Coordinator, now_s: float) -> None:
        """Take what a part of this agent has to send and to tell."""
        while (event := part.next_event()) is not None:
            self._raise(event)
        self._post(part.messages_to_send(now_s), now_s)

    def _post(self, sends: Iterable[tuple[int, Message]], now_s: float) -> None:
        """What goes to this rank itself is taken at once."""
        for to, message in sends:
            if to == self.rank:
                self.receive_message(message, to, now_s)
            else:
                self._send(to, message)

    def _raise(self, event: Aligned | Fault) -> None:
        if isinstance(event, Aligned) or not self._faulty:
            self._events.append(event)
        self._faulty = self._faulty or isinstance(event, Fault)

    def _compare(self, operation: int) -> None:
        """See to it that the decision is for the buffer that this rank has."""
        entered, decide = self._entered.get(operation), self._decided.get(operation)
        if entered is not None and decide is not None and entered.arrival.buffer != decide.buffer:
            buffers = dict.fromkeys(range(self.inputs.world_size), decide.buffer)
            own = {self.rank: entered.arrival.buffer}
            self._raise(disagreement(operation, buffers | own))

    def _replan(self, now_s: float) -> None:
        """As coordinator: propose another epoch if the history says so."""
        seen = self.inputs.history.added
        if seen == self._forecast_at or not self.epochs.may_propose:
            return
        self._forecast_at = seen
        largest, current = self._coordinator.largest, self.epochs.latest
        if (epoch := next_epoch(current, largest, self.inputs)) is not None:
            self.epochs.propose(epoch, now_s)
            self._collect(self.epochs, now_s)
