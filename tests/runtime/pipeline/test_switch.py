"""All ranks change the schedule at one step or none does, whatever comes late or never."""

from __future__ import annotations

import contextlib
import functools

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.runtime.pipeline.switch import FOR, GO, Switch

NEVER = 10**6
STEPS = 9


class LateStore:
    """Keys that each reader sees a delay after they are written; a delay of NEVER is a loss."""

    def __init__(self, delay):
        self.now = 0
        self.written = {}  # by key: when, and the value
        # once drawn, a delay stays
        self.seen_at = functools.cache(lambda key, rank: self.written[key][0] + delay())


class View(StoreExchange):
    """What a rank writes and sees of them."""

    def send(self, key, value=""):
        assert key not in self.store.written, "written twice"
        self.store.written[key] = (self.store.now, value)

    def peek(self, keys):
        values = {}
        for rank, key in keys.items():
            if key not in self.store.written:
                continue
            if self.store.seen_at(key, self.rank) <= self.store.now:
                _, values[rank] = self.store.written[key]
        return values


class Waits(Exception):
    """No decision yet: the rank stands still."""


def _stand_still(proposal):
    raise Waits


class Rank:
    """Runs steps; votes some time after it noticed a proposal, against it if that is negative."""

    def __init__(self, rank, size, store, vote_after):
        self.rank = rank
        self.store = store
        self.switch = Switch(View(store, rank, size, 0))
        self.vote_after = vote_after
        self.voting = []  # (when, on which proposal, what is wrong with it)
        self.proposing = False
        self.version = 0
        self.ran = []  # by step: the version
        self.refusals = []

    def boundary(self, propose, ahead):
        """Everything before a step begins, then the step; raises Waits where it has to."""
        step = len(self.ran)
        self.vote()
        if self.rank == 0:
            reason = self.switch.decide(step)
            if reason:
                self.refusals.append(reason)
            self.proposing = self.proposing and reason is None
            if propose and not self.proposing:
                self.switch.propose(step + ahead, "")
                self.proposing = True

        proposal = self.switch.notice(step)
        if proposal is not None:
            after = self.vote_after[proposal.number % len(self.vote_after)]
            problem = "not proved" if after < 0 else ""
            self.voting.append((self.store.now + after, proposal, problem))
        self.vote()

        changed = self.switch.change(step, _stand_still)
        if changed is not None:
            self.version = changed.number + 1
        self.ran.append(self.version)

    def vote(self):
        """On the proposals for which it is time."""
        waiting = []
        for due, proposal, problem in self.voting:
            if due <= self.store.now:
                self.switch.vote(proposal, problem)
            else:
                waiting.append((due, proposal, problem))
        self.voting = waiting


@settings(max_examples=150, deadline=None)
@given(st.data(), st.integers(2, 4), st.integers(1, 4))
def test_one_schedule_per_step_on_all_ranks(data, size, ahead):
    delays = st.sampled_from([0] * 9 + [1, 3, 10, NEVER])
    store = LateStore(lambda: data.draw(delays))
    vote_after = st.lists(st.sampled_from([0] * 8 + [1, 5, 40, -1]), min_size=1, max_size=3)
    ranks = [Rank(rank, size, store, data.draw(vote_after)) for rank in range(size)]

    for _ in range(40 * size):
        store.now += 1
        fewest_steps = min(len(rank.ran) for rank in ranks)
        # finishing a step needs everybody in it: nobody begins a step while another is to enter
        # the one before
        able = [rank for rank in ranks if len(rank.ran) <= min(fewest_steps + 1, STEPS - 1)]
        if not able:
            break
        rank = data.draw(st.sampled_from(able))
        with contextlib.suppress(Waits):
            rank.boundary(data.draw(st.booleans()), ahead)

    for step in range(STEPS):
        assert len({rank.ran[step] for rank in ranks if step < len(rank.ran)}) <= 1
    event(f"switched: {any(rank.version for rank in ranks)}")

    for key, (_, value) in store.written.items():
        kind, number, *_ = key.split("/")
        if kind == "decision" and value == GO:
            for rank in range(size):
                _, vote = store.written.get(f"vote/{number}/{rank}", (0, ""))
                assert vote == FOR


@pytest.mark.parametrize(
    ("order", "after", "ran", "refusals"),
    [
        ([0, 1, 2], [0], [0, 0, 1, 1], []),
        ([2, 1, 0], [0], [0, 0, 1, 1], []),
        ([1, 2, 0], [0], [0, 0, 1, 1], []),
        ([0, 1, 2], [-1], [0, 0, 0, 0], ["rank 1: not proved"]),
        ([0, 1, 2], [40], [0, 0, 0, 0], ["no vote yet from rank(s) 1"]),
    ],
)
def test_with_a_prompt_store_two_steps_ahead_is_enough(order, after, ran, refusals):
    """Nobody ever waits; a vote against and a missing vote are named."""
    store = LateStore(lambda: 0)
    ranks = [Rank(0, 3, store, [0]), Rank(1, 3, store, after), Rank(2, 3, store, [0])]

    for step in range(len(ran)):
        for rank in order:
            ranks[rank].boundary(propose=step == 0, ahead=2)

    assert [rank.ran for rank in ranks] == [ran] * 3
    assert ranks[0].refusals == refusals
