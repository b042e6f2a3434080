"""All ranks run an operation in the same epoch, for any order and fate of messages."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latecomer.runtime.policy.epochs import RETRY_S, EpochCommit
from latecomer.runtime.policy.messages import Epoch

SIZE = 4
OPERATIONS = 60


def _run(seed, lost, impatience=0.0, kind=EpochCommit):
    """Random steps; per rank the versions that its operations were bound to, in order."""
    dice = random.Random(seed)
    ranks = [kind(rank, SIZE, coordinator=0) for rank in range(SIZE)]
    bound = [[] for _ in range(SIZE)]
    flying = []
    now_s = 0.0

    def post(rank):
        for peer, message in ranks[rank].messages_to_send(now_s):
            assert peer != rank
            if dice.random() >= lost:
                flying.extend([(peer, rank, message)] * dice.choice([1, 1, 2]))

    for _ in range(20_000):
        now_s += dice.random() * RETRY_S
        rank = dice.randrange(SIZE)
        chance = dice.random()
        if chance < 0.3 and flying:
            peer, sender, message = flying.pop(dice.randrange(len(flying)))
            ranks[peer].receive_message(message, sender, now_s)
            post(peer)
        elif chance < 0.5:
            ranks[rank].handle_timer(now_s + impatience)
        elif chance < 0.52 and ranks[rank].may_propose:
            ranks[rank].propose(Epoch(0, 0, dice.randrange(SIZE)), now_s)
        elif chance > 0.9 and len(bound[rank]) < OPERATIONS + 5 * rank:
            epoch = ranks[rank].bind(len(bound[rank]))
            if epoch is not None:
                bound[rank].append(epoch.version)
        post(rank)
        if min(map(len, bound)) >= OPERATIONS:
            break
    return bound


def _differ(bound):
    """Whether ranks bound an operation to different versions."""
    return any(len(set(versions)) > 1 for versions in zip(*bound, strict=False))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.2, 0.6]), st.sampled_from([0.0, 0.9]))
def test_an_operation_has_one_epoch(seed, lost, impatience):
    bound = _run(seed, lost, impatience)
    assert not _differ(bound)
    assert min(map(len, bound)) >= OPERATIONS  # and nobody is stuck


def test_epochs_do_take_effect_and_pass_from_coordinator_to_coordinator():
    epochs_of_runs = [len(set().union(*_run(seed, 0.1))) for seed in range(20)]
    assert sum(epochs_of_runs) > 3 * len(epochs_of_runs)


class _Majority(EpochCommit):
    """Wrong: an epoch holds when three of four have accepted."""

    def _on_accept(self, proposal, sender):
        super()._on_accept(proposal, sender)
        if len(proposal.accepted) == 3:
            self._decide(True)


class _Hasty(EpochCommit):
    """Wrong: accepts an epoch for operations that it has bound already."""

    def _on_propose(self, epoch, sender):
        self._bound = 0
        super()._on_propose(epoch, sender)


@pytest.mark.parametrize("kind", [_Majority, _Hasty])
def test_the_test_notices_wrong_protocols(kind):
    assert any(_differ(_run(seed, 0.2, kind=kind)) for seed in range(40))


def test_who_stands_before_an_unsettled_epoch_waits_for_its_proposer():
    proposer = EpochCommit(0, 2, coordinator=0)
    acceptor = EpochCommit(1, 2, coordinator=0)

    def delivered(sent, to, sender):
        """What a rank has to send after the only message that was sent."""
        ((_, message),) = sent
        to.receive_message(message, sender, 0.0)
        return to.messages_to_send(0.0)

    proposer.propose(Epoch(0, 0, coordinator=1, reason="handover"), 0.0)
    proposal = proposer.messages_to_send(0.0)
    first = proposal[0][1].epoch.first
    acceptance = delivered(proposal, acceptor, sender=0)
    assert acceptor.bind(first - 1).version == 0
    assert acceptor.bind(first) is None
    assert acceptor.stuck_on == 0

    acceptor.handle_timer(0.0)
    question = acceptor.messages_to_send(0.0)
    outcome = delivered(question, proposer, sender=1)
    assert not outcome[0][1].holds  # it was asked before all had accepted: nobody has to wait

    delivered(outcome, acceptor, sender=0)
    assert acceptor.bind(first).version == 0

    # the acceptance comes too late
    assert delivered(acceptance, proposer, sender=1) == outcome
    assert proposer.bind(first).version == 0


def test_deciding_may_begin_with_a_later_operation():
    """Those before have measured the profile: they do not count as tries."""
    epochs = EpochCommit(0, 2, coordinator=0, first=700)
    first = epochs.bind(700)
    assert first is not None
    assert first.first == 700
    epochs.propose(first, now_s=1.0)
    (_, message), *_ = epochs.messages_to_send(1.0)
    assert message.epoch.first > 700
