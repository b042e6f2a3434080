"""A job of many ranks, with what decides as it ships, and a coarse model of what moves bytes.

Every rank has its agent (``policy.agent``), with coordinator, heads, epochs and rules, on virtual
time; messages between them take a latency, and wait behind bulk data where a port is busy. Bytes
are not moved: an operation takes the time that its phases take on the links, the native one as a
ring from the last arrival on, a schedule its waiting phases from when all that are on time have
come, and its completion from the late ranks' arrival on. All operations share the links, which
serve the oldest first. So a thousand ranks take seconds where whole executors would take days; and
what this leaves out is compared with whole executors in the tests.

Ranks' clocks are aligned. All schedules are made before the first step.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from latecomer.runtime.executor.tcp.frames import NETWORK
from latecomer.runtime.host import host
from latecomer.runtime.network.clock import Ping, Pong
from latecomer.runtime.policy.agent import Decided, RankAgent
from latecomer.runtime.policy.arrivals import BufferSignature
from latecomer.runtime.policy.cost_model import Profile, ScheduleCandidate
from latecomer.runtime.policy.messages import NATIVE, Decision, PolicyMessage
from latecomer.runtime.policy.options import Options, PolicyInputs
from latecomer.runtime.simulation.arrivals import Arrivals, Step
from latecomer.runtime.simulation.world import Dice

MESSAGES = msgspec.msgpack.Decoder(PolicyMessage)
ALL_MADE = -1  # bits: all are set
JITTER = 0.5  # of a message's latency, on average, as on simulated hosts
SOON_S = 1e-6  # after a timer that is overdue


@dataclass(frozen=True)
class StepWork:
    """What a step reduces.

    Args:
        nbytes: of each bucket.
        buckets: of a step.
        overlap_s: the buckets are ready one after the other, over so long before the last one is.
    """

    nbytes: int
    buckets: int = 1
    overlap_s: float = 0.0


@dataclass(frozen=True)
class Took:
    """One step, in seconds from its beginning."""

    first_s: float  # until the first rank had all its gradients
    last_s: float  # until the last rank had
    end_s: float  # until all ranks had all results


@dataclass
class Figures:
    """What became of a job."""

    steps: list[Took] = field(default_factory=list)
    operations: int = 0
    early: int = 0  # operations that were started without the ranks that were late
    reasons: Counter[str] = field(default_factory=Counter)  # by reason, operations
    messages: int = 0  # between ranks, about operations and epochs
    cpu_s: list[float] = field(default_factory=list)  # by rank: in its agent, if it is metered


@dataclass
class _Operation:
    """Who has come to it, and knows its decision."""

    decision: Decision | None = None
    undecided: int = 0
    on_time_s: float = 0.0  # when the last of those that are not late began
    all_s: float = 0.0  # when the last rank began


class Links:
    """Ports that all operations share; the oldest is served first, and who is younger in between.

    As one server of unit speed: an operation is so many seconds of work.
    """

    def __init__(self) -> None:
        self._busy: list[tuple[float, float]] = []  # (from, until), in order

    def serve(self, from_s: float, work_s: float) -> float:
        """When so much work is done that can begin at a time, in the gaps that others leave."""
        if not work_s:
            return from_s  # what takes no time takes no place
        parts = []
        for since_s, until_s in self._busy:
            gap_s = max(0.0, since_s - from_s)
            if gap_s >= work_s:
                break
            if gap_s:
                parts.append((from_s, since_s))
                work_s -= gap_s
            from_s = max(from_s, until_s)
        self._busy = sorted([*self._busy, *parts, (from_s, from_s + work_s)])
        return from_s + work_s

    def are_busy(self, at_s: float) -> bool:
        """Whether something moves then."""
        return any(since_s <= at_s < until_s for since_s, until_s in self._busy)

    def forget(self, before_s: float) -> None:
        """What was done before that time is not asked for any more."""
        self._busy = [part for part in self._busy if part[1] > before_s]


class Cluster:
    """A job in one mode.

    Args:
        options: its mode.
        candidates: the schedules to choose from.
        profile: the links, which are as they were measured.
        work: what a step reduces.
        arrivals: when ranks come; for as many ranks.
        seed: of the messages' delays.
        is_metered: whether the processor's time of each rank's agent is measured.
    """

    def __init__(
        self,
        options: Options,
        candidates: tuple[ScheduleCandidate, ...],
        profile: Profile,
        work: StepWork,
        arrivals: Arrivals,
        *,
        seed: int = 0,
        is_metered: bool = False,
    ) -> None:
        self.ranks = arrivals.ranks
        self._work = work
        self._arrivals = arrivals
        self._latency_s = profile.schedule.alpha_s
        self._queue_s = NETWORK.held * profile.schedule.beta_s  # what a port has before a message
        self._dice = Dice(seed, "messages")
        self._is_metered = is_metered

        self._agents = [
            RankAgent(rank, PolicyInputs(options, self.ranks, candidates, profile))
            for rank in range(self.ranks)
        ]
        for agent in self._agents:
            agent.made = ALL_MADE
        self._links = Links()
        self._operations: dict[int, _Operation] = {}
        self._left = 0  # operations of this step
        self._began_s = 0.0
        self._step = Step(0.0, ())
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = 0
        self._rings_s = [float("inf")] * self.ranks  # by rank: when its timer does
        self.figures = Figures(cpu_s=[0.0] * self.ranks)

    def run(self, steps: int) -> Iterator[Took]:
        """Run so many steps, and tell of each when it is done."""
        for rank in range(self.ranks):
            self._follow(rank)
        while len(self.figures.steps) < steps:
            self._begin()
            while self._left:
                self._next_event()
            yield self.figures.steps[-1]

    def _begin(self) -> None:
        """All ranks begin a step; each comes to its buckets as its backward makes them."""
        number = len(self.figures.steps)
        self._began_s = self.now_s
        self._links.forget(self.now_s)
        self._step = self._arrivals.step(number)
        buckets = self._work.buckets
        self._left = buckets
        for bucket in range(buckets):
            operation = number * buckets + bucket
            self._operations[operation] = _Operation(undecided=self.ranks)
            before_s = self._work.overlap_s * (1.0 - (bucket + 1) / buckets)
            for rank, offset_s in enumerate(self._step.offsets_s):
                ready_s = max(0.0, self._step.compute_s + offset_s - before_s)
                self._at(self._began_s + ready_s, self._arrive, rank, operation)

    def _at(self, at_s: float, call: Callable[..., None], *args: Any) -> None:
        self._numbers += 1
        heapq.heappush(self._events, (at_s, self._numbers, call, args))

    def _next_event(self) -> None:
        at_s, _, call, args = heapq.heappop(self._events)
        self.now_s = max(self.now_s, at_s)
        call(*args)

    def _metered(self, rank: int, call: Callable[..., Any], *args: Any) -> Any:
        """Call it; the processor's time counts for the rank."""
        if not self._is_metered:
            return call(*args)
        began_s = host.thread_time()
        result = call(*args)
        self.figures.cpu_s[rank] += host.thread_time() - began_s
        return result

    def _arrive(self, rank: int, operation: int) -> None:
        arrive = self._agents[rank].arrive
        buffer = BufferSignature(self._work.nbytes, "float32")
        self._metered(rank, arrive, operation, buffer, self.now_s)
        self._follow(rank)

    def _ring(self, rank: int) -> None:
        self._rings_s[rank] = float("inf")
        self._metered(rank, self._agents[rank].handle_timer, self.now_s)
        self._follow(rank)

    def _receive(self, rank: int, sender: int, payload: bytes) -> None:
        def take() -> None:
            message = MESSAGES.decode(payload)
            self._agents[rank].receive_message(message, sender, self.now_s)

        self._metered(rank, take)
        self._follow(rank)

    def _follow(self, rank: int) -> None:
        """What follows from what has happened at a rank: messages, decisions, its timer."""
        agent = self._agents[rank]
        for peer, payload in self._metered(rank, self._packed, agent):
            self._at(self.now_s + self._message_s(), self._receive, peer, rank, payload)

        while (event := self._metered(rank, agent.next_event)) is not None:
            if isinstance(event, Decided):
                self._decided(rank, event.operation, event.decision)
            else:
                agent.clock.asks = False  # aligned, and these clocks do not drift

        timer_s = agent.get_timer()
        if timer_s is not None and timer_s < self._rings_s[rank]:
            self._rings_s[rank] = max(self.now_s + SOON_S, timer_s)
            self._at(self._rings_s[rank], self._ring, rank)

    def _packed(self, agent: RankAgent) -> list[tuple[int, bytes]]:
        """What the rank sends, packed once for all to whom it goes."""
        payloads: dict[int, bytes] = {}  # by the message's identity
        sends = list(agent.messages_to_send(self.now_s))
        for _, message in sends:
            self.figures.messages += not isinstance(message, Ping | Pong)
            if id(message) not in payloads:
                payloads[id(message)] = msgspec.msgpack.encode(message)
        return [(peer, payloads[id(message)]) for peer, message in sends]

    def _message_s(self) -> float:
        delay_s = self._latency_s * (1.0 + JITTER * self._dice.exponential(1.0))
        if self._links.are_busy(self.now_s):
            delay_s += self._queue_s * self._dice.random()
        return delay_s

    def _decided(self, rank: int, number: int, decision: Decision) -> None:
        """A rank begins an operation; when all do it is known when its result is there."""
        operation = self._operations[number]
        if operation.decision is None:
            operation.decision = decision
        operation.undecided -= 1
        operation.all_s = self.now_s
        if rank not in decision.late:
            operation.on_time_s = self.now_s
        if operation.undecided:
            return

        self.figures.operations += 1
        self.figures.early += decision.candidate != NATIVE
        self.figures.reasons[decision.reason] += 1
        del self._operations[number]
        self._at(self._end_s(operation, decision), self._done, number)

    def _end_s(self, operation: _Operation, decision: Decision) -> float:
        inputs = self._agents[0].inputs
        nbytes = self._work.nbytes
        if decision.candidate == NATIVE:
            native_s = inputs.native_s(nbytes, corrected=False)
            return self._links.serve(operation.all_s, native_s)

        schedules = inputs.times(len(decision.late), nbytes, corrected=False)
        schedule = next(times for times in schedules if times.candidate == decision.candidate)
        waited_s = self._links.serve(operation.on_time_s, schedule.waiting_s)
        return self._links.serve(max(operation.all_s, waited_s), schedule.completion_s)

    def _done(self, number: int) -> None:
        """All ranks have the result."""
        for rank, agent in enumerate(self._agents):
            self._metered(rank, agent.done, number, self.now_s)
            self._follow(rank)
        self._left -= 1
        if not self._left:
            took = Took(
                first_s=self._step.compute_s,
                last_s=self._step.last_s,
                end_s=self.now_s - self._began_s,
            )
            self.figures.steps.append(took)
