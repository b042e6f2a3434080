"""Ranks with agents in simulated time, on a network that loses, doubles, delays and reorders."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field

import msgspec

from latecomer.runtime.collective import ALL_REDUCE
from latecomer.runtime.policy.agent import Decided, RankAgent
from latecomer.runtime.policy.arrivals import BufferSignature
from latecomer.runtime.policy.coordinator import Fault
from latecomer.runtime.policy.cost_model import AlphaBeta, Phase, Profile, ScheduleCandidate
from latecomer.runtime.policy.messages import NATIVE, Arrive, Decide, PolicyMessage
from latecomer.runtime.policy.options import Options, PolicyInputs
from latecomer.runtime.simulation.cluster import Links

MESSAGES = msgspec.msgpack.Decoder(PolicyMessage)
LARGE = 10**4
"""Bytes for which S*beta is 10 ms in ``inputs``."""
# the first two cost what they do for 8 ranks: messages, and shares of the buffer
CANDIDATES = (
    ScheduleCandidate("m = 1", 1, Phase(6, 6 / 7), Phase(9, 9 / 7)),
    ScheduleCandidate("m = 4", 1, Phase(24, 6 / 7), Phase(30, 30 / 28), on_demand=True),
    ScheduleCandidate("two late", 2, Phase(20, 5 / 6), Phase(30, 1.25)),
)
RING, DOUBLING, TREE = ON_TIME = range(len(CANDIDATES), len(CANDIDATES) + 3)
SCATTER, GATHER = range(len(CANDIDATES) + 3, len(CANDIDATES) + 5)
CANDIDATES_ON_TIME = (
    ScheduleCandidate("ring", 0, Phase(14, 14 / 8), Phase(0, 0)),
    ScheduleCandidate("doubling", 0, Phase(3, 3), Phase(0, 0)),
    ScheduleCandidate("tree", 0, Phase(6, 6), Phase(0, 0)),
    ScheduleCandidate("ring", 0, Phase(7, 7 / 8), Phase(0, 0), collective="reduce_scatter"),
    ScheduleCandidate("ring", 0, Phase(7, 7 / 8), Phase(0, 0), collective="all_gather"),
)


def inputs(ranks, options=None, head_of=0, *, all_made=True, on_time=False):
    """What decisions are made from, with ``CANDIDATES``; ``all_made``: all ranks have made them.

    ``on_time``: and with ``CANDIDATES_ON_TIME``.
    """
    profile = Profile(ranks, native=AlphaBeta(1e-5, 1e-6), schedule=AlphaBeta(2e-5, 1e-6))
    candidates = CANDIDATES + CANDIDATES_ON_TIME if on_time else CANDIDATES
    policy_inputs = PolicyInputs(options or Options(), ranks, candidates, profile, head_of=head_of)
    if all_made:
        policy_inputs.made = -1  # bits: all are set
    return policy_inputs


def floats(nbytes):
    """The buffer of an all-reduce of so many bytes."""
    return BufferSignature(nbytes, "float32")


@dataclass
class Network:
    """``size`` ranks that run ``operations`` operations, each rank at its own pace.

    Links serve the oldest operation first: an operation is one piece of work N from when all ranks
    run it natively, or W from when those who are not late run the schedule, and then C from when
    all do.
    """

    size: int
    options: Options
    operations: int = 30
    _: KW_ONLY
    lateness: Callable = lambda rank, operation: 0.0  # seconds of own work before that operation
    nbytes: Callable = lambda rank, operation: LARGE  # of the buffer
    collective: Callable = lambda rank, operation: ALL_REDUCE
    stopped: dict = field(default_factory=dict)  # rank -> (from, until): says and hears nothing
    lost: float = 0.0  # share of the messages
    doubled: float = 0.0
    longest_s: float = 0.001  # that a message takes
    window: int = 3  # operations of a step; the next begins when all of them are done
    seed: int = 0
    clocks: tuple = ()  # by how much each rank's clock is ahead of the true time
    made_at: dict = field(default_factory=dict)  # rank -> the operation by which it has made all
    head_of: int = 0  # how many ranks have a head, if not as many as usual
    slower: tuple = (1.0, 1.0)  # what operations take, native and by schedule, over the profile
    on_time: bool = False  # there are schedules for ranks that are all on time
    slower_ways: dict = field(default_factory=dict)  # by candidate: besides, by such a factor

    def __post_init__(self):
        n = self.size
        self.agents = []
        for rank in range(n):
            all_made = not self.made_at
            own_inputs = inputs(
                n, self.options, self.head_of, all_made=all_made, on_time=self.on_time
            )
            self.agents.append(RankAgent(rank, own_inputs))
        self.clocks = self.clocks or (0.0,) * n
        self.dice = random.Random(self.seed)

        # per rank, by operation
        self.decisions = [[] for _ in range(n)]
        self.decided_s = [[] for _ in range(n)]
        self.arrived_s = [[] for _ in range(n)]

        self.done_s = []
        self.sent = Counter()
        self.faults = []
        self.now_s = 0.0
        self.heard = Counter()  # messages about operations, by rank
        self.at_once = Counter()  # operations that were decided as a rank came to them, by rank
        self._events = []  # a heap of (when, count, rank, action, its arguments)
        self._count = itertools.count()
        self._woken = [math.inf] * n
        self._finished = [0] * n
        self._busy = [False] * n
        self._links = Links()

    def run(self, limit_s=600.0):
        """Until all operations are decided everywhere, ranks disagree, or the limit."""
        for rank in range(self.size):
            self._next(rank)
            self._happen(rank)
        while self._events and self.now_s < limit_s and not self.faults:
            at_s, _, rank, action, *arguments = heapq.heappop(self._events)

            since_s, until_s = self.stopped.get(rank, (0.0, 0.0))
            if since_s <= at_s < until_s:
                if action != self._receive:  # what reaches a stopped host is lost
                    self._at(until_s, rank, action, *arguments)
                continue

            self.now_s = at_s
            self._happen(rank, action, *arguments)
            if all(len(decisions) == self.operations for decisions in self.decisions):
                break
        return self

    def _at(self, at_s, rank, action, *arguments):
        # the count: events of the same time happen in order, and their actions aren't compared
        heapq.heappush(self._events, (at_s, next(self._count), rank, action, *arguments))

    def _clock(self, rank):
        return self.now_s + self.clocks[rank]

    def _happen(self, rank, action=None, *arguments):
        """Something happens at a rank, now; then what follows from it."""
        if action:
            action(rank, *arguments)
        self._post(rank)

        while (event := self.agents[rank].next_event()) is not None:
            if isinstance(event, Fault):
                self.faults.append(event)
            elif isinstance(event, Decided):
                self._decided(rank, event.operation, event.decision)

        timer_s = self.agents[rank].get_timer()
        if timer_s is None:
            return
        at_s = max(self.now_s + 1e-6, timer_s - self.clocks[rank])  # time goes on in any case
        if at_s < self._woken[rank]:
            self._woken[rank] = at_s
            self._at(at_s, rank, self._tick)

    def _post(self, rank):
        for peer, message in self.agents[rank].messages_to_send(self._clock(rank)):
            assert peer != rank
            self.sent[type(message).__name__] += 1
            payload = msgspec.msgpack.encode(message)
            copies = (self.dice.random() >= self.lost) + (self.dice.random() < self.doubled)
            for _ in range(copies):
                delay_s = self.dice.random() * self.longest_s
                self._at(self.now_s + delay_s, peer, self._receive, rank, payload)

    def _receive(self, rank, sender, payload):
        message = MESSAGES.decode(payload)
        self.heard[rank] += isinstance(message, Arrive | Decide)
        self.agents[rank].receive_message(message, sender, self._clock(rank))

    def _tick(self, rank):
        self._woken[rank] = math.inf
        self.agents[rank].handle_timer(self._clock(rank))

    def _next(self, rank):
        """The rank works, then comes to its next operation, if it may go on."""
        number = len(self.arrived_s[rank])
        may_go_on = number - number % self.window <= self._finished[rank]
        if number < self.operations and may_go_on and not self._busy[rank]:
            self._busy[rank] = True
            self._at(self.now_s + self.lateness(rank, number), rank, self._arrive, number)

    def _arrive(self, rank, number):
        self._busy[rank] = False
        self.arrived_s[rank].append(self.now_s)
        nbytes = self.nbytes(rank, number)
        if number >= self.made_at.get(rank, 0):
            self.agents[rank].made = -1
        agent = self.agents[rank]
        buffer = BufferSignature(nbytes, "float32", self.collective(rank, number))
        decision = agent.decide_at_once(number, buffer, self._clock(rank))
        if decision is not None:
            self.at_once[rank] += 1
            self._decided(rank, number, decision)
        else:
            agent.arrive(number, buffer, self._clock(rank))
        self._post(rank)
        self._next(rank)

    def _done(self, rank, number):
        self._finished[rank] += 1
        self.agents[rank].done(number, self._clock(rank))
        self._next(rank)

    def _decided(self, rank, operation, decision):
        """When all ranks are in an operation it is known when its result will be there."""
        assert operation == len(self.decisions[rank])
        self.decisions[rank].append(decision)
        self.decided_s[rank].append(self.now_s)
        if any(len(decisions) <= operation for decisions in self.decisions):
            return
        assert all(agent.made >> max(0, decision.candidate) & 1 for agent in self.agents)

        begins_s = sorted(decided_s[operation] for decided_s in self.decided_s)
        end_s = self._end_s(operation, decision, begins_s)
        self.done_s.append(end_s)
        for peer in range(self.size):
            self._at(end_s, peer, self._done, operation)

    def _end_s(self, operation, decision, begins_s):
        """When all have the result of an operation that the ranks begin at these times, sorted."""
        nbytes = self.nbytes(0, operation)
        native_slower, schedule_slower = self.slower
        schedule_slower *= self.slower_ways.get(decision.candidate, 1.0)
        if decision.candidate == NATIVE:
            native_s = self.agents[0].inputs.native_s(nbytes, corrected=False)
            return self._links.serve(begins_s[-1], native_slower * native_s)

        schedule = self.predicted(decision, nbytes, self.collective(0, operation))
        last_on_time_s = begins_s[-1 - len(decision.late)]
        waited_s = self._links.serve(last_on_time_s, schedule_slower * schedule.waiting_s)
        return self._links.serve(
            max(begins_s[-1], waited_s), schedule_slower * schedule.completion_s
        )

    def predicted(self, decision, nbytes, collective=ALL_REDUCE):
        """W and C of the schedule that was decided, by the profile."""
        schedules = self.agents[0].inputs.times(
            len(decision.late), nbytes, corrected=False, collective=collective
        )
        return next(times for times in schedules if times.candidate == decision.candidate)
