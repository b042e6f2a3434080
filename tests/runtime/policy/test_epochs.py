"""All ranks run an operation under the same plan, for any order and fate of messages."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.policy.epochs import RETRY_S, EpochCommit

SIZE = 4
OPERATIONS = 60


def _run(seed, lost, impatience=0.0, kind=EpochCommit):
    """Random steps; per rank the version each operation was bound to, and all agreements."""
    dice = random.Random(seed)
    ranks = [kind(rank, SIZE, coordinator=0) for rank in range(SIZE)]
    bound = [[] for _ in range(SIZE)]
    flying, now_s, versions = [], 0.0, set()

    def send(rank, sends):
        for peer, message in sends:
            assert peer != rank
            if dice.random() >= lost:
                flying.extend([(peer, rank, message)] * dice.choice([1, 1, 2]))

    for _ in range(20_000):
        now_s += dice.random() * RETRY_S
        rank = dice.randrange(SIZE)
        what = dice.random()
        if what < 0.3 and flying:
            peer, sender, message = flying.pop(dice.randrange(len(flying)))
            send(peer, ranks[peer].receive(sender, message))
        elif what < 0.5:
            send(rank, ranks[rank].tick(now_s + impatience))
        elif what < 0.52 and ranks[rank].leads:
            found = ranks[rank].propose(now_s, dice.randrange(SIZE), (), 0.0, "")
            send(rank, found)
        elif what > 0.9 and len(bound[rank]) < OPERATIONS + 5 * rank:
            plan = ranks[rank].plan(len(bound[rank]))
            if plan is not None:
                bound[rank].append(plan.version)
                versions.add(plan.version)
        if min(map(len, bound)) >= OPERATIONS:
            break
    return bound, versions


def _differ(bound):
    return any(len(set(versions)) > 1 for versions in zip(*bound, strict=False))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.2, 0.6]), st.sampled_from([0.0, 0.9]))
def test_an_operation_has_one_plan(seed, lost, impatience):
    bound, _ = _run(seed, lost, impatience)
    assert not _differ(bound)
    assert min(map(len, bound)) >= OPERATIONS  # and nobody is stuck


def test_plans_do_take_effect_and_pass_from_coordinator_to_coordinator():
    taken = [len(_run(seed, 0.1)[1]) for seed in range(20)]
    assert sum(taken) > 3 * len(taken)


class _Majority(EpochCommit):
    """Wrong: a plan holds when three of four have accepted."""

    def _answered(self, sender, answer):
        found = super()._answered(sender, answer)
        if self._proposal is not None and len(self._proposal.accepted) == 3:
            return self._decide(True)
        return found


class _Hasty(EpochCommit):
    """Wrong: accepts a plan for operations that it has bound already."""

    def _proposed(self, sender, plan):
        self._bound = 0
        return super()._proposed(sender, plan)


@pytest.mark.parametrize("kind", [_Majority, _Hasty])
def test_the_test_notices_wrong_protocols(kind):
    assert any(_differ(_run(seed, 0.2, kind=kind)[0]) for seed in range(40))


def test_who_stands_before_an_unsettled_plan_waits_for_its_proposer():
    proposer, other = EpochCommit(0, 2, coordinator=0), EpochCommit(1, 2, coordinator=0)
    ((_, proposal),) = proposer.propose(0.0, 1, (), 0.0, "handover")
    ((_, answer),) = other.receive(0, proposal)
    first = proposal.plan.first
    assert other.plan(first - 1).version == 0
    assert other.plan(first) is None
    assert other.stuck_on == 0
    ((peer, asked),) = other.tick(0.0)
    assert peer == 0
    ((_, told),) = proposer.receive(1, asked)
    assert not told.holds  # it was asked before all had accepted: nobody has to wait
    other.receive(0, told)
    assert other.plan(first).version == 0
    assert proposer.receive(1, answer) == [(1, told)]  # too late
    assert proposer.plan(first).version == 0
