"""All ranks change the schedule at one step or none does, whatever comes late or never."""

from __future__ import annotations

import contextlib
import functools

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from runtime.network.store_exchange import StoreExchange
from runtime.pipeline.switch import FOR, GO, Switch

NEVER = 10**6
STEPS = 9


class Late:
    """Keys that each reader sees a delay after they are written; a delay of NEVER is a loss."""

    def __init__(self, delay):
        self.now = 0
        self.written = {}
        self.seen_at = functools.cache(lambda key, rank: self.written[key][0] + delay())


class View(StoreExchange):
    """What a rank writes and sees of them."""

    def send(self, key, value=""):
        assert key not in self.store.written, "written twice"
        self.store.written[key] = (self.store.now, value)

    def peek(self, keys):
        now = self.store.now
        written = self.store.written
        seen_at = self.store.seen_at
        there = {rank: key for rank, key in keys.items() if key in written}
        return {r: written[key][1] for r, key in there.items() if seen_at(key, self.rank) <= now}


class Waits(Exception):
    """No decision yet: the rank stands still."""


def _stand_still(proposal):
    raise Waits


class Rank:
    """Runs steps; votes some time after it noticed a proposal, against it if that is negative."""

    def __init__(self, rank, size, late, vote_after):
        self.rank, self.late, self.switch = rank, late, Switch(View(late, rank, size, 0))
        self.vote_after = vote_after
        self.voting = []
        self.proposing = False
        self.version = 0
        self.ran = []
        self.refusals = []

    def boundary(self, propose, ahead):
        """Everything before a step begins, then the step; raises Waits where it has to."""
        step = len(self.ran)
        self.vote()
        if self.rank == 0:
            reason = self.switch.decide(step)
            self.refusals += [reason] if reason else []
            self.proposing = self.proposing and reason is None
            if propose and not self.proposing:
                self.switch.propose(step + ahead, "")
                self.proposing = True
        if (proposal := self.switch.notice(step)) is not None:
            after = self.vote_after[proposal.number % len(self.vote_after)]
            self.voting.append((self.late.now + after, proposal, "not proved" if after < 0 else ""))
        self.vote()
        if (changed := self.switch.change(step, _stand_still)) is not None:
            self.version = changed.number + 1
        self.ran.append(self.version)

    def vote(self):
        due = [each for each in self.voting if each[0] <= self.late.now]
        self.voting = [each for each in self.voting if each not in due]
        for _, proposal, problem in due:
            self.switch.vote(proposal, problem)


@settings(max_examples=150, deadline=None)
@given(st.data(), st.integers(2, 4), st.integers(1, 4))
def test_one_schedule_per_step_on_all_ranks(data, size, ahead):
    delays = st.sampled_from([0] * 9 + [1, 3, 10, NEVER])
    late = Late(lambda: data.draw(delays))
    after = st.lists(st.sampled_from([0] * 8 + [1, 5, 40, -1]), min_size=1, max_size=3)
    ranks = [Rank(r, size, late, data.draw(after)) for r in range(size)]
    for _ in range(40 * size):
        late.now += 1
        behind = min(len(rank.ran) for rank in ranks)
        # finishing a step needs everybody in it: nobody begins a step while another is to enter
        # the one before
        able = [r for r in ranks if len(r.ran) <= min(behind + 1, STEPS - 1)]
        if not able:
            break
        rank = data.draw(st.sampled_from(able))
        with contextlib.suppress(Waits):
            rank.boundary(data.draw(st.booleans()), ahead)
    for step in range(STEPS):
        assert len({rank.ran[step] for rank in ranks if step < len(rank.ran)}) <= 1
    event(f"switched: {any(rank.version for rank in ranks)}")
    for key, (_, value) in late.written.items():
        kind, number, *_ = key.split("/")
        votes = [late.written.get(f"vote/{number}/{r}", (0, ""))[1] for r in range(size)]
        assert (kind, value) != ("decision", GO) or votes == [FOR] * size


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
    late = Late(lambda: 0)
    ranks = [Rank(r, 3, late, after if r == 1 else [0]) for r in range(3)]
    for step in range(len(ran)):
        for r in order:
            ranks[r].boundary(propose=step == 0, ahead=2)
    assert [rank.ran for rank in ranks] == [ran] * 3
    assert ranks[0].refusals == refusals
