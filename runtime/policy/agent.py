"""One rank's part of the control plane: messages and time in, messages and decisions out.

Ranks decide by themselves what follows from what all share (native, static, small buffers) or
from the epoch (predict; auto while it is quiet); the rest is for the epoch's coordinator. On a
device with streams nobody asks (``dispatcher``), and a rank tells of an arrival when its stream has
come to it, which may be long after it was decided and enqueued. What it tells, and how it asks
again, is its ``head``'s part. Why no two ranks can act on different decisions: see ``epochs`` and
``coordinator``. A rank that has another buffer than was decided on says so (``Fault``) and stops.
"""

from __future__ import annotations

import functools
import math
import struct
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from latecomer.runtime.network.clock import Aligned, Clock, Ping, Pong
from latecomer.runtime.network.protocol import Protocol
from latecomer.runtime.policy.arrivals import Arrival, BufferSignature
from latecomer.runtime.policy.coordinator import Coordinator, Fault, disagreement
from latecomer.runtime.policy.epochs import EpochCommit
from latecomer.runtime.policy.head import Head
from latecomer.runtime.policy.messages import (
    NATIVE,
    Arrive,
    Decide,
    Decision,
    Epoch,
    PolicyMessage,
)
from latecomer.runtime.policy.options import DETERMINISTIC, PolicyInputs
from latecomer.runtime.policy.rules import (
    QUIET,
    RULES,
    next_epoch,
    predicted,
    static,
    useless,
    waited_for,
)

SWITCHED_OFF = Decision(NATIVE, (), "switched off")
KEPT_SIZES = 256  # of buffers, for which what needs no message is decided once
ASKING = 4  # operations between two forecasts while ranks ask: then it can only save messages


@dataclass(frozen=True)
class Decided:
    """The event that it is known how an operation runs; in order, each once."""

    operation: int
    decision: Decision


class RankAgent(Protocol[PolicyMessage, Aligned | Decided | Fault]):
    """One rank's agent; all ranks have the same options, candidates and profile.

    Args:
        rank: this one.
        inputs: what decisions are made from.
        shares_clock: with the reference, see :class:`Clock`.
        first: the operation with which deciding begins; those before have measured the profile.
    """

    def __init__(
        self, rank: int, inputs: PolicyInputs, *, shares_clock: bool = False, first: int = 0
    ) -> None:
        super().__init__()
        self.rank = rank
        self.inputs = inputs
        self.clock = Clock(rank, is_shared=shares_clock)
        self.epochs = EpochCommit(
            rank, inputs.world_size, coordinator=0, on_time=inputs.settled_before, first=first
        )
        # by buffer: most operations have the size of one before
        self._own_decision = functools.lru_cache(KEPT_SIZES)(self._decide_alone)
        self._useless = functools.lru_cache(KEPT_SIZES)(self._why_useless)
        self._coordinator = Coordinator(rank, inputs, self.epochs, self.clock, self._useless)
        self._head = Head(rank, inputs)
        self._parts = (self.clock, self.epochs, self._coordinator, self._head)
        self._entered: dict[int, Arrival] = {}  # and not handed out as decided
        self._to_bind: deque[Arrival] = deque()  # in order: those whose epoch is not known
        self._unseen: dict[int, Arrival] = {}  # the device has yet to come to them
        self._to_tell: deque[Arrive] = deque()  # in order, and when the device has come to them
        self._decided: dict[int, Decide] = {}
        self._consumed = 0
        self.made = inputs.made  # bits: the candidates that this rank has made
        self._faulty = False
        self._forecast_at = 0
        self._collect(self.clock, 0.0)

    def arrive(
        self,
        operation: int,
        buffer: BufferSignature,
        now_s: float,
        *,
        on_device: bool = False,
        is_off: bool = False,
    ) -> None:
        """This rank comes to ``operation`` (they come in order) with this buffer.

        Args:
            operation: its number.
            buffer: what all ranks must agree on.
            now_s: the time.
            on_device: it is to be decided now, but its device has yet to come (:meth:`reached`).
            is_off: it runs natively, on all ranks alike: nothing is decided, and nothing learned.
        """
        arrival = self._arrival(operation, buffer, now_s)
        self._entered[operation] = arrival
        if is_off:
            self._decided[operation] = Decide(operation, arrival.buffer, SWITCHED_OFF)
            return
        if on_device:
            self._unseen[operation] = arrival
        self._to_bind.append(arrival)
        self._compare(operation)
        self._progress(now_s)

    def decide_at_once(
        self, operation: int, buffer: BufferSignature, now_s: float
    ) -> Decision | None:
        """How ``operation`` runs, to which this rank comes, if nothing has to be sent about it now.

        That is so where what all ranks share decides, and the next report tells of the arrival.
        None: it is not, or other operations come first; to be told by :meth:`arrive`.
        """
        if self._entered or self._to_bind or self._faulty or operation in self._decided:
            return None
        decision = self._own_decision(buffer)
        if decision is None:
            decision = self._decide_reported(operation, buffer, now_s)
        if decision is not None:
            self._consumed = operation + 1
        return decision

    def reached(self, operation: int, at_s: float, now_s: float) -> None:
        """This rank's device came to ``operation`` at ``at_s`` (own clock)."""
        if (arrival := self._unseen.pop(operation, None)) is not None:
            arrival.at_s[0] = self._aligned(at_s, now_s)
            self._tell(now_s)

    def done(self, operation: int, now_s: float) -> None:
        """This rank has the result of ``operation``."""
        if self.inputs.options.mode not in DETERMINISTIC:
            self._head.done(operation, self.rank, now_s + self.clock.alignment(now_s).offset_s)

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
        earliest_s = None
        for part in self._parts:
            timer_s = part.get_timer()
            if timer_s is not None and (earliest_s is None or timer_s < earliest_s):
                earliest_s = timer_s
        return earliest_s

    def handle_timer(self, now_s: float) -> None:
        """Send, and decide, what is due by now."""
        for part in self._parts:
            part.handle_timer(now_s)
            self._collect(part, now_s)
        self._progress(now_s)

    def receive_message(self, message: PolicyMessage, sender: int, now_s: float) -> None:
        """Hand a message to whom it concerns."""
        if isinstance(message, Arrive) and message.to is None:
            self._coordinator.receive_message(message, sender, now_s)
            self._collect(self._coordinator, now_s)
            self._replan(now_s)
        elif isinstance(message, Arrive | Decide):
            self._pass(message, sender, now_s)
            if isinstance(message, Decide) and message.operation >= self._consumed:
                self._decided.setdefault(message.operation, message)
                self._compare(message.operation)
        elif isinstance(message, Ping | Pong):
            self.clock.receive_message(message, sender, now_s)
            self._collect(self.clock, now_s)
        else:
            self.epochs.receive_message(message, sender, now_s)
            self._collect(self.epochs, now_s)
            self._progress(now_s)

    def _pass(self, message: Arrive | Decide, sender: int, now_s: float) -> None:
        """Hand it to this rank as a head."""
        self._head.receive_message(message, sender, now_s)
        self._collect(self._head, now_s)

    def _progress(self, now_s: float) -> None:
        """Decide what can be decided here, and tell of all else that this rank has come."""
        # In order: an operation whose epoch is not known yet holds up those behind it.
        while self._to_bind:
            arrival = self._to_bind[0]
            operation = arrival.operation
            buffer = arrival.buffer
            decision = self._own_decision(buffer)
            message = None
            if decision is None:
                epoch = self.epochs.bind(operation)
                if epoch is None:
                    return  # `epochs` asks for the outcome
                decision = self._decide_in(epoch, operation, buffer)
                message = Arrive(
                    arrivals=(arrival,),
                    asks=self._asks(epoch, buffer),
                    consumed=min(self._consumed, operation),
                    made=self.made,
                    to=epoch.coordinator,
                )
                if decision is not None and epoch.coordinator == self.rank:
                    self._coordinator.decided_elsewhere(operation, buffer, decision)

            # Handed out already: the decision came while it was not known under which epoch this
            # rank is in the operation, which is told all the same, for the history.
            is_consumed = operation < self._consumed
            if decision is not None and not is_consumed:
                self._decided[operation] = Decide(operation, buffer, decision)
            self._to_bind.popleft()
            if message is not None:
                self._to_tell.append(message)
                self._tell(now_s)

    def _tell(self, now_s: float) -> None:
        """Tell of the arrivals that are known, in order."""
        while self._to_tell and self._to_tell[0].arrivals[0].operation not in self._unseen:
            self._pass(self._to_tell.popleft(), self.rank, now_s)

    def _aligned(self, at_s: float, now_s: float) -> float:
        """``at_s`` on the reference's clock; NaN while that is unknown."""
        alignment = self.clock.alignment(now_s)
        return at_s + alignment.offset_s if math.isfinite(alignment.uncertainty_s) else math.nan

    def _decide_alone(self, buffer: BufferSignature) -> Decision | None:
        """How an operation runs about which nothing has to be sent."""
        mode = self.inputs.options.mode
        if buffer.nbytes == 0:
            # Nobody needs another's data: ranks that know the decision are done and may close, and
            # one that does not know it yet would ask a coordinator that is gone.
            return Decision(NATIVE, (), "nothing to sum")
        if mode in DETERMINISTIC:
            return static(buffer, self.inputs)
        reason = self._useless(buffer)
        if reason and not self.inputs.has_ways_on_time:
            return Decision(NATIVE, (), reason)
        return None

    def _decide_in(self, epoch: Epoch, operation: int, buffer: BufferSignature) -> Decision | None:
        """How an operation of an epoch runs that is told of, unless the coordinator decides."""
        if reason := self._useless(buffer):
            return waited_for(operation, buffer, epoch, reason, self.inputs)
        if self.inputs.options.mode == "predict":
            return predicted(operation, buffer, epoch, self.inputs)
        if epoch.quiet:
            return waited_for(operation, buffer, epoch, QUIET, self.inputs)
        return None

    def _decide_reported(
        self, operation: int, buffer: BufferSignature, now_s: float
    ) -> Decision | None:
        """How an operation runs whose arrival can wait for the next report, and is added to it."""
        epoch = self.epochs.bind(operation)
        if epoch is None or not self._head.can_wait(now_s):
            return None
        decision = self._decide_in(epoch, operation, buffer)
        if decision is None or self._asks(epoch, buffer):
            return None
        self._head.add_report(self._arrival(operation, buffer, now_s))
        if epoch.coordinator == self.rank:
            self._coordinator.decided_elsewhere(operation, buffer, decision)
        return decision

    def _arrival(self, operation: int, buffer: BufferSignature, now_s: float) -> Arrival:
        """This rank's own, now."""
        stamp = bytearray(struct.pack("<d", self._aligned(now_s, now_s)))
        return Arrival(operation, buffer, stamp, {})

    def _asks(self, epoch: Epoch, buffer: BufferSignature) -> bool:
        """Whether ranks ask about an operation of an epoch, and do not only report it."""
        return not (epoch.quiet or self._useless(buffer))

    def _why_useless(self, buffer: BufferSignature) -> str:
        """Why nothing is gained by a decision of the coordinator's; empty if something may be."""
        has_rule = self.inputs.options.mode in RULES
        return useless(buffer, self.inputs) if has_rule or not buffer.can_be_begun else ""

    def _collect(self, part: Clock | EpochCommit | Coordinator | Head, now_s: float) -> None:
        """Take what a part of this agent has to send and to tell."""
        while (event := part.next_event()) is not None:
            self._raise(event)
        self._post(part.messages_to_send(now_s), now_s)

    def _post(self, sends: Iterable[tuple[int, PolicyMessage]], now_s: float) -> None:
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
        entered = self._entered.get(operation)
        decide = self._decided.get(operation)
        if entered is not None and decide is not None and entered.buffer != decide.buffer:
            buffers = dict.fromkeys(range(self.inputs.world_size), decide.buffer)
            self._raise(disagreement(operation, buffers | {self.rank: entered.buffer}))

    def _replan(self, now_s: float) -> None:
        """As coordinator: propose another epoch if the history says so."""
        operations = self.inputs.history.added + self.inputs.on_time.added
        current = self.epochs.latest
        if operations < self._forecast_at or not self.epochs.may_propose:
            return
        ranks_ask = self.inputs.options.mode in RULES and not current.quiet
        self._forecast_at = operations + (ASKING if ranks_ask else 1)

        epoch = next_epoch(current, self._coordinator.largest, self.inputs)
        if epoch is not None:
            self.epochs.propose(epoch, now_s)
            self._collect(self.epochs, now_s)
