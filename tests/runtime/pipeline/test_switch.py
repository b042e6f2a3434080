"""All ranks change the schedule at one step or none does, whatever comes late or never."""

from __future__ import annotations

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from runtime.network.store_exchange import StoreExchange
from runtime.pipeline.switch import FOR, GO, Switch

NEVER = 10**6
STEPS = 9


class Late:
    """Keys that each reader sees a delay after they are written; a delay of NEVER is a loss."""

    def __init__(self, draw_delay):
        self.now, self._delay = 0, draw_delay
        self.written = {}
        self._seen_at = {}

    def seen(self, key, rank):
        if key not in self.written:
            return None
        at, value = self.written[key]
        if (key, rank) not in self._seen_at:
            self._seen_at[key, rank] = at + self._delay()
        return value if self.now >= self._seen_at[key, rank] else None


class View(StoreExchange):
    """What a rank writes and sees of them."""

    def send(self, key, value=""):
        assert key not in self.store.written, "written twice"
        self.store.written[key] = (self.store.now, value)

    def peek(self, keys):
        seen = {rank: self.store.seen(key, self.rank) for rank, key in keys.items()}
        return {rank: value for rank, value in seen.items() if value is not None}


class Waits(Exception):
    """No decision yet: the rank stands still."""


def _stand_still(proposal):
    raise Waits


class Rank:
    """Runs steps; votes some time after it noticed a proposal, or never."""

    def __init__(self, rank, size, late, vote_after):
        self.rank, self.step, self.version = rank, 0, 0
        self.switch = Switch(View(late, rank, size, 0))
        self.vote_after, self.voting = vote_after, []
        self.proposing = False
        self.ran = []
        self.refusals = []

    def boundary(self, now, propose, ahead):
        """Everything before a step begins, then the step; raises Waits where it has to."""
        self.vote(now)
        if self.rank == 0:
            reason = self.switch.decide(self.step)
            self.proposing = self.proposing and reason is None
            if reason:
                self.refusals.append(reason)
            if propose and not self.proposing:
                self.switch.propose(self.step + ahead, "")
                self.proposing = True
        proposal = self.switch.notice(self.step)
        if proposal is not None:
            after = self.vote_after[proposal.number % len(self.vote_after)]
            self.voting.append((now + max(after, 0), proposal, after < 0))
        self.vote(now)
        changed = self.switch.change(self.step, _stand_still)
        if changed is not None:
            self.version = changed.number + 1
        self.ran.append(self.version)
        self.step += 1

    def vote(self, now):
        for due, proposal, against in self.voting[:]:
            if now >= due:
                self.voting.remove((due, proposal, against))
                self.switch.vote(proposal, "not proved" if against else "")


@settings(max_examples=150, deadline=None)
@given(st.data(), st.integers(2, 4), st.integers(1, 4))
def test_one_schedule_per_step_on_all_ranks(data, size, ahead):
    delays = st.sampled_from([0] * 9 + [1, 3, 10, NEVER])
    late = Late(lambda: data.draw(delays))
    after = st.lists(st.sampled_from([0] * 8 + [1, 5, 40, -1]), min_size=1, max_size=3)
    ranks = [Rank(r, size, late, data.draw(after)) for r in range(size)]
    for _ in range(40 * size):
        late.now += 1
        behind = min(rank.step for rank in ranks)
        # finishing a step needs everybody in it: nobody begins a step while another is to enter
        # the one before
        able = [r for r in ranks if r.step <= behind + 1 and r.step < STEPS]
        if not able:
            break
        rank = data.draw(st.sampled_from(able))
        try:
            rank.boundary(late.now, data.draw(st.booleans()), ahead)
        except Waits:
            continue
    for step in range(STEPS):
        assert len({rank.ran[step] for rank in ranks if step < len(rank.ran)}) <= 1
    switched = any(rank.version for rank in ranks)
    event(f"switched: {switched}")
    decisions = {k: v for k, (_, v) in late.written.items() if k.startswith("decision")}
    for key, value in decisions.items():
        number = key.split("/")[1]
        votes = [late.written.get(f"vote/{number}/{r}") for r in range(size)]
        assert value != GO or all(vote is not None and vote[1] == FOR for vote in votes)


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
            ranks[r].boundary(late.now, propose=step == 0, ahead=2)
    assert [rank.ran for rank in ranks] == [ran] * 3
    assert ranks[0].refusals == refusals
