"""Credits and transfers as they are, without sockets: whatever comes when, nothing is stuck.

Of the executor this runs ``TransferState``, ``ReceiveCredits`` and, for what comes before its
receiver has entered the operation, ``EarlyFrame``, several operations at a time, over links that
keep the order of each pair of ranks and are otherwise as slow as chance will have it. Windows are
so small that buffers are full most of the time; operations have whatever priority, and ranks enter
them when chance will have it, some of them only after the one before is done. What is demanded is
what ``proofs/coq/SendAhead.v`` proves of a model: all ends, with the sums of the rounds.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from latecomer.runtime.executor.program import rank_program
from latecomer.runtime.executor.tcp.flow_control import ReceiveCredits
from latecomer.runtime.executor.tcp.frames import Sizes
from latecomer.runtime.executor.tcp.priority import Priority
from latecomer.runtime.executor.tcp.transfer import EarlyFrame, TransferState
from latecomer.runtime.work import AllReduceWork, Observer
from latecomer.synth.transpose.generate import transpose
from tests.runtime import schedules

SMALL = Sizes(frame=48, wake=16, due=64, nearly=64, ahead=32, held=0, whole=False)
SMALL_WHOLE = Sizes(frame=64, wake=32, due=64, nearly=64, ahead=32, held=0, whole=True)
MOST_ROUNDS = 20_000  # of steps, after which the test gives up
SCHEDULES = [
    schedules.ring(3),
    schedules.direct(4),
    schedules.direct(6),
    schedules.straggler(5),
    schedules.swapping(),
    schedules.crossing(3),
    schedules.crossing(6),
    transpose(6, incast=2),
]


@dataclass
class Frame:
    """A piece of a transfer on its way; what is left of it."""

    operation: int
    index: int
    data: bytes
    early: EarlyFrame | None = None  # its receiver has not entered the operation


class Rank:
    """One rank's operations, its credits, and what is on its way to it from each other rank.

    ``waits``: it enters an operation when it is done with the one before.
    """

    def __init__(self, schedule, rank, numels, sizes, priorities, waits):
        self.rank = rank
        self.sizes = sizes
        self.waits = waits
        self.program = rank_program(schedule, rank)
        self.frames = {peer: deque() for peer in range(schedule.ranks)}  # from that rank
        self.grants = {peer: deque() for peer in range(schedule.ranks)}  # credit, from that rank
        self.states = [self._state(schedule, number, numel) for number, numel in enumerate(numels)]
        for state, priority in zip(self.states, priorities, strict=True):
            state.priority = priority
            state.needs_credit = priority is not Priority.SMALL
            if state.needs_credit:  # small as they are here, all of them
                state.credit = [0] * len(self.program.ends)
        self.entered = []  # of the states
        self.early = {number: [] for number in range(len(numels))}  # frames, by operation

    def _state(self, schedule, number, numel):
        values = torch.arange(numel, dtype=torch.int32) * (self.rank + 1) + number
        work = AllReduceWork(number, values, False)
        work.program = self.program
        k = schedule.chunks
        work.bounds = tuple(numel * chunk // k for chunk in range(k + 1))
        return TransferState(work, [], Observer(), self.sizes)


class ToSender:
    """In place of a connection: takes a credit to the rank that sends."""

    def __init__(self, receiver, sender):
        self.receiver = receiver
        self.sender = sender

    def give_credit(self, state, index, upto):
        self.sender.grants[self.receiver.rank].append((state.number, index, upto))


class Network:
    """All ranks; each step is one that chance draws of those that can be made."""

    def __init__(self, schedule, numels, sizes, dice, priorities, credits=ReceiveCredits):
        self.dice = dice
        self.ranks = [
            Rank(schedule, number, numels, sizes, priorities, waits=dice.random() < 0.5)
            for number in range(schedule.ranks)
        ]
        self.credits = []
        for rank in self.ranks:
            peers = {peer.rank: ToSender(rank, peer) for peer in self.ranks if peer != rank}
            self.credits.append(credits(len(schedule.phases), peers, (), sizes))

    def run(self):
        """Until nothing moves; true if all of it has ended."""
        for _ in range(MOST_ROUNDS):
            for credit in self.credits:
                credit.renew()
            steps = [*self._entries(), *self._credits(), *self._sends(), *self._arrivals()]
            if not steps:
                return not any(state.left for rank in self.ranks for state in rank.states)
            drawn = self.dice.sample(steps, self.dice.randint(1, len(steps)))
            for step, *arguments in drawn:
                step(*arguments)
        raise AssertionError("it moves on and on")

    def _entries(self):
        for rank, credit in zip(self.ranks, self.credits, strict=True):
            before = rank.entered[-1] if rank.entered and rank.waits else None
            if len(rank.entered) < len(rank.states) and not (before and before.left):
                yield self._enter, rank, credit

    def _enter(self, rank, credit):
        state = rank.states[len(rank.entered)]
        rank.entered.append(state)
        if state.needs_credit:
            credit.enter(state)
        for early in rank.early[state.number]:
            _, index, *_ = early.header
            early.pass_to(state, rank.program.at[index])

    def _credits(self):
        for rank in self.ranks:
            for grants in rank.grants.values():
                if grants:
                    yield self._take_credit, rank, grants

    def _take_credit(self, rank, grants):
        number, index, upto = grants.popleft()
        state = rank.states[number]
        position = rank.program.at[index]
        state.credit[position] = max(state.credit[position], upto)

    def _sends(self):
        for rank in self.ranks:
            for state, (i, end) in itertools.product(rank.entered, enumerate(rank.program.ends)):
                if end.send and state.sendable(i):
                    yield self._send, rank, state, i, end

    def _send(self, rank, state, i, end):
        length = state.sendable(i)
        if not length:  # with more credit it may be worth waiting for more
            return
        frame = Frame(state.number, end.index, bytes(state.piece(i, length)))
        self.ranks[end.peer].frames[rank.rank].append(frame)
        state.advance(i, length)

    def _arrivals(self):
        for rank in self.ranks:
            for frames in rank.frames.values():
                if frames:
                    yield self._arrive, rank, frames

    def _arrive(self, rank, frames):
        frame = frames[0]
        state = rank.states[frame.operation]
        i = rank.program.at[frame.index]
        if state not in rank.entered and frame.early is None:
            assert not state.needs_credit
            header = (0, frame.index, state.number, 0, len(frame.data), 0)
            frame.early = EarlyFrame(header)
            rank.early[state.number].append(frame.early)
        goes_to = frame.early or state
        landing = goes_to.landing(i, len(frame.data))
        length = self.dice.randint(1, min(len(landing), len(frame.data)))
        landing[:length] = frame.data[:length]
        goes_to.landed(i, length)
        frame.data = frame.data[length:]
        if not frame.data:
            frames.popleft()


@settings(max_examples=60, deadline=None)
@given(
    schedule=st.sampled_from(SCHEDULES),
    sizes=st.sampled_from([SMALL, SMALL_WHOLE]),
    operations=st.lists(
        st.tuples(st.integers(0, 60), st.sampled_from(Priority)), min_size=1, max_size=3
    ),
    seed=st.integers(0, 2**32),
)
def test_whatever_comes_when_all_ends_with_the_sums(schedule, sizes, operations, seed):
    numels = [per_chunk * schedule.chunks + seed % 3 for per_chunk, _ in operations]
    priorities = [priority for _, priority in operations]
    network = Network(schedule, numels, sizes, random.Random(seed), priorities)
    assert network.run(), "nothing moves, and not all has ended"
    total = schedule.ranks * (schedule.ranks + 1) // 2
    for rank in network.ranks:
        for number, state in enumerate(rank.states):
            expected = torch.arange(numels[number], dtype=torch.int32) * total
            assert torch.equal(state.work.tensor, expected + number * schedule.ranks)


@pytest.mark.parametrize("seed", range(3))
def test_a_due_round_of_which_some_get_no_credit_is_stuck_and_that_is_noticed(monkeypatch, seed):
    """Ranks 0 and 1 then hold back what the other one's due receives, from rank 2, wait for."""
    honest = ToSender.give_credit

    def stingy(self, state, index, upto):
        program = state.program
        end = program.ends[program.at[index]]
        is_last_round = end.step == len(program.steps) - 1
        if end.peer == 2 or not is_last_round:
            honest(self, state, index, upto)

    dice = random.Random(seed)
    network = Network(schedules.crossing(3), [6 * 60], SMALL, dice, [Priority.OTHER])
    monkeypatch.setattr(ToSender, "give_credit", stingy)
    assert not network.run()
    assert all(state.left <= 9 for rank in network.ranks for state in rank.states)


class OnlyTheFirst(ReceiveCredits):
    """Gives credit to what has the highest priority, and to nothing else until that is there."""

    def renew(self):
        for queue in self._queues:
            while queue.states and not queue.states[0].receives_left(queue.phase):
                queue.states.popleft()
            if queue.states:
                self._renew(queue.phase, queue.states)
                return


def test_the_oldest_operation_without_credit_is_stuck_where_others_wait_for_it():
    """A rank that has entered both wants the second one, which another enters after the first."""
    stuck = 0
    for seed in range(20):
        for credits in (ReceiveCredits, OnlyTheFirst):
            dice = random.Random(seed)
            priorities = [Priority.OTHER, Priority.ALL_GATHER]
            network = Network(schedules.ring(3), [90, 9], SMALL, dice, priorities, credits)
            ended = network.run()
            assert ended or credits is OnlyTheFirst
            stuck += not ended
    assert stuck > 0
