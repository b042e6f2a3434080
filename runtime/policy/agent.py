"""One rank's control plane as a state machine: messages and time in, messages and decisions out.

Who decides an operation:

    native, static    everybody by itself, from what all share; nothing is sent
    predict           everybody by itself, from the plan in force (``agreement``); arrivals are told
                      to the coordinator, nobody waits for an answer
    eager, auto       the coordinator of the plan in force (``desk``); small buffers by everybody,
                      and in mode auto all, while the plan in force is quiet: nobody asks then, and
                      what ranks report now and then tells the coordinator when to ask again

An operation's number, its decision and the rank that was asked belong together: see ``agreement``
and ``desk`` for why no two ranks can act on different decisions. A rank whose buffer is not the one
that was decided on says so (``fault``) and acts on nothing.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from runtime.network.clock import REFERENCE, Alignment, Clock, Ping, Pong
from runtime.policy import forecast
from runtime.policy.coordinator import QUIET, Coordinator, Fault, disagreement
from runtime.policy.decision import NATIVE, Decision
from runtime.policy.epochs import Answer, Ask, EpochCommit, Outcome, Propose
from runtime.policy.messages import Arrive, Decide, Message, Report, Send
from runtime.policy.options import COORDINATED, DETERMINISTIC, Options, PolicyInputs
from runtime.policy.rules import small

RETRY_S, LONGEST_RETRY_S = 0.1, 1.0
"""Well above a round trip through links that are busy, or everything would be said twice."""
REPORT_S, MOST_REPORTED = 0.5, 64
"""In quiet times a rank reports so often, or when so many operations have gathered."""
MOST_DONE = 64
"""Ends of operations that one message tells of; older ones are not told."""


@dataclass
class _Entered:
    """An operation that this rank has come to and that is not decided here."""

    at_s: float
    bytes: int
    kind: str
    again_s: float
    pause_s: float = RETRY_S
    told: bool = False


class RankAgent:
    """A rank's control plane.

    Args:
        rank: the own.
        knowledge: with the candidates and profile that all ranks share.
        options: the same on all ranks.
    """

    def __init__(self, rank: int, options: Options, knowledge: PolicyInputs) -> None:
        self.rank, self.size = rank, knowledge.size
        self.options, self.knowledge = options, knowledge
        self.clock = Clock(rank)
        self.agreement = EpochCommit(rank, self.size, coordinator=0)
        self._desk = Coordinator(self.size, options, knowledge, self._mine)
        self._entered: dict[int, _Entered] = {}
        self._decided: dict[int, Decide] = {}
        self._consumed = 0
        self._done: deque[tuple[int, float]] = deque(maxlen=MOST_DONE)
        self._unreported: list[tuple[int, float, int, str]] = []
        self._report_s = float("-inf")  # when the next report is due
        self._fault: Fault | None = None
        self._forecast_at = 0

    @property
    def fault(self) -> Fault | None:
        """Ranks that disagree, if that was seen here."""
        return self._fault or self._desk.fault

    def arrive(self, now_s: float, operation: int, size: int, kind: str) -> list[Send]:
        """This rank comes to ``operation`` (they come in order) with a buffer of ``size`` bytes."""
        alignment = self.alignment(now_s)
        at_s = now_s + alignment.offset_s if math.isfinite(alignment.uncertainty_s) else math.nan
        self._entered[operation] = _Entered(at_s, size, kind, now_s)
        known = self._decided.get(operation)
        if known is not None and (known.bytes, known.kind) != (size, kind):
            self._differs(operation, known)
        return self._progress(now_s)

    def decision(self, operation: int) -> Decision | None:
        """How ``operation`` runs, as soon as that is known; taken once, in order."""
        known = self._decided.get(operation)
        if known is None or operation not in self._entered or self.fault is not None:
            return None
        del self._entered[operation], self._decided[operation]
        self._consumed = operation + 1
        return known.decision

    def done(self, now_s: float, operation: int) -> None:
        """This rank has the result of ``operation``."""
        if self.options.mode not in DETERMINISTIC:
            self._done.append((operation, now_s + self.alignment(now_s).offset_s))

    def waits_for(self, operation: int) -> int:
        """The rank that a decision waits for: for its word, or for its arrival."""
        if (stuck := self.agreement.stuck_on) is not None:
            return stuck
        coordinator = self._coordinator(operation)
        missing = self._desk.missing(operation) if coordinator == self.rank else ()
        return missing[0] if missing else coordinator

    def alignment(self, now_s: float) -> Alignment:
        """How the own clock relates to the reference's."""
        return self.clock.alignment(now_s)

    @property
    def wake_s(self) -> float:
        """When to :meth:`tick` next."""
        retries = (each.again_s for number, each in self._entered.items() if self._asks(number))
        return min(
            self.clock.wake_s,
            self.agreement.wake_s,
            self._desk.wake_s,
            min(retries, default=float("inf")),
        )

    def tick(self, now_s: float) -> list[Send]:
        """What is to be said, or decided, by now."""
        found: list[Send] = []
        if (ping := self.clock.tick(now_s)) is not None:
            found.append((REFERENCE, ping))
        found += self.agreement.tick(now_s)
        found += self._sent(now_s, self._desk.look(now_s))
        return found + self._progress(now_s)

    def receive(self, now_s: float, sender: int, message: Message) -> list[Send]:
        """Take a message; what to send now."""
        if isinstance(message, Ping):
            return [(sender, Clock.answer(message, now_s))]
        if isinstance(message, Pong):
            self.clock.receive(message, now_s)
            return []
        if isinstance(message, Decide):
            self._learned(message)
            return []
        if isinstance(message, Report):
            self._desk.reported(now_s, sender, message)
            return self._replan(now_s)
        if isinstance(message, Arrive):
            if sender != self.rank and not self._desk.knows(sender, message.operation):
                alignment = self.alignment(now_s)
                self.knowledge.experience.heard(now_s + alignment.offset_s - message.at_s)
            return self._sent(now_s, self._desk.hear(now_s, sender, message)) + self._replan(now_s)
        assert isinstance(message, Propose | Answer | Ask | Outcome)
        found: list[Send] = list(self.agreement.receive(sender, message))
        return found + self._progress(now_s)

    def _coordinator(self, operation: int) -> int:
        plan = self.agreement.plan(operation)
        return self.agreement.latest.coordinator if plan is None else plan.coordinator

    def _mine(self, operation: int) -> bool:
        plan = self.agreement.plan(operation)
        return plan is not None and plan.coordinator == self.rank

    def _asks(self, operation: int) -> bool:
        """Whether this rank still has to say that it has come, or wants to hear a decision."""
        entered = self._entered[operation]
        return not entered.told or operation not in self._decided

    def _progress(self, now_s: float) -> list[Send]:
        """Decide what can be decided here, and tell coordinators what they have to know by now."""
        found: list[Send] = []
        for operation in sorted(self._entered):
            entered = self._entered[operation]
            if not self._asks(operation) or (entered.told and entered.again_s > now_s):
                continue
            if self._here(operation, entered):
                continue
            plan = self.agreement.plan(operation)
            if plan is None:  # `agreement` asks for the outcome
                entered.again_s = now_s + RETRY_S
            elif plan.quiet:
                self._run(operation, entered, QUIET)
                self._unreported.append((operation, entered.at_s, entered.bytes, entered.kind))
                if now_s >= self._report_s or len(self._unreported) >= MOST_REPORTED:
                    found += self._report(now_s, plan.coordinator)
            else:
                found += self._report(now_s, plan.coordinator) if self._unreported else []
                found += self._tell(now_s, operation, entered, plan.coordinator)
        return found

    def _run(self, operation: int, entered: _Entered, decision: Decision) -> None:
        """Decide here; nobody is asked."""
        entered.told = True
        self._decided[operation] = Decide(operation, entered.bytes, entered.kind, decision)

    def _report(self, now_s: float, to: int) -> list[Send]:
        """Tell the coordinator what happened while nobody asked."""
        said = Report(tuple(self._unreported), self._consumed, tuple(self._done))
        self._unreported.clear()
        self._done.clear()
        self._report_s = now_s + REPORT_S
        return self._sent(now_s, [(to, said)])

    def _here(self, operation: int, entered: _Entered) -> bool:
        """Decide an operation about which nothing has to be said."""
        if self.options.mode in DETERMINISTIC:
            decision = forecast.static(entered.bytes, self.knowledge, self.options)
        elif self.options.mode in COORDINATED:
            reason = small(entered.bytes, self.knowledge, self.options)
            if not reason:
                return False
            decision = Decision(NATIVE, (), reason)
        else:
            return False
        self._run(operation, entered, decision)
        return True

    def _tell(self, now_s: float, operation: int, entered: _Entered, to: int) -> list[Send]:
        """Say that this rank has come; in mode predict its decision follows from the plan."""
        done = tuple(self._done)
        self._done.clear()
        said = Arrive(operation, entered.at_s, entered.bytes, entered.kind, self._consumed, done)
        entered.told = True
        entered.again_s = now_s + entered.pause_s
        entered.pause_s = min(LONGEST_RETRY_S, 2 * entered.pause_s)
        sends = self._sent(now_s, [(to, said)])
        if self.options.mode == "predict":
            plan = self.agreement.plan(operation)
            assert plan is not None  # bound before
            decision = forecast.predicted(entered.bytes, plan, self.knowledge)
            self._run(operation, entered, decision)
            self._desk.decided_elsewhere(operation, decision)
        return sends

    def _sent(self, now_s: float, sends: Iterable[Send]) -> list[Send]:
        """What goes to others; what goes to this rank is taken at once."""
        found: list[Send] = []
        for peer, message in sends:
            if peer == self.rank:
                found += self.receive(now_s, self.rank, message)
            else:
                found.append((peer, message))
        return found

    def _learned(self, told: Decide) -> None:
        if told.operation < self._consumed or told.operation in self._decided:
            return
        self._decided[told.operation] = told
        entered = self._entered.get(told.operation)
        if entered is not None and (entered.bytes, entered.kind) != (told.bytes, told.kind):
            self._differs(told.operation, told)

    def _differs(self, operation: int, told: Decide) -> None:
        entered = self._entered[operation]
        others = [rank for rank in range(self.size) if rank != self.rank]
        buffers = dict.fromkeys(others, (told.bytes, told.kind))
        self._fault = disagreement(operation, buffers | {self.rank: (entered.bytes, entered.kind)})

    def _replan(self, now_s: float) -> list[Send]:
        """As coordinator: propose another plan if the history says so."""
        seen = self.knowledge.history.added
        if seen == self._forecast_at or seen < forecast.LEAST or not self.agreement.leads:
            return []
        self._forecast_at = seen
        plan = self.agreement.latest
        largest, knowledge, quiet = self._desk.largest, self.knowledge, plan.quiet
        found = forecast.Forecast(plan.late, plan.delay_s, plan.reason)
        if self.options.mode == "predict":
            found = forecast.forecast(largest, knowledge, self.options)
        elif self.options.mode == "auto":
            quiet = forecast.quiet(largest, knowledge, self.options, now=plan.quiet)
        coordinator = forecast.better_coordinator(self.rank, largest, knowledge)
        if (set(found.late), coordinator, quiet) == (set(plan.late), plan.coordinator, plan.quiet):
            return []
        return [
            *self.agreement.propose(
                now_s, coordinator, found.late, found.delay_s, found.reason, quiet=quiet
            )
        ]
