"""Survivors learn one outcome, and soon, whatever becomes of messages and of other ranks."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latecomer.runtime.elastic import agreement
from latecomer.runtime.elastic.agreement import (
    Agreement,
    AgreementMessage,
    Ballot,
    Decided,
    MustChoose,
    Outcome,
    Promise,
    Report,
)

SETTLE_S = 0.3
DECODER = msgspec.msgpack.Decoder(AgreementMessage)


@dataclass
class Survivors:
    """``size`` ranks whose group has failed, on a network that loses, doubles and delays.

    Every rank chooses, if it has to, who has reported to it, marked with its own ballot.
    """

    size: int
    seed: int = 0
    lost: float = 0.0
    doubled: float = 0.0
    longest_s: float = 0.01  # that a message takes
    dies_s: dict[int, float] = field(default_factory=dict)  # rank -> when
    proof_s: dict[int, float] = field(default_factory=dict)  # dead rank -> how long until it shows
    cut: frozenset[tuple[int, int]] = frozenset()  # (from, to): nothing goes through
    cut_until_s: float = 0.0
    flaps_s: float = 1.0  # every link is up or down for so long, by chance,
    down: float = 0.0  # of which this share of the time it is down
    begins_s: dict[int, float] = field(default_factory=dict)  # rank -> when it gives up
    suspects: frozenset[int] = frozenset()
    reports_s: float = SETTLE_S
    settle_s: float = SETTLE_S
    fails_s: dict[int, float] = field(default_factory=dict)  # rank -> when a verdict names it
    kind: type[Agreement] = Agreement

    def __post_init__(self):
        self.dice = random.Random(self.seed)
        self.ranks = {}
        self.outcomes = {}
        self.decided_s = {}
        self.now_s = 0.0
        self.sent = 0
        self._events = []
        self._count = itertools.count()

    def run(self, limit_s=60.0):
        for rank in range(self.size):
            self._at(self.begins_s.get(rank, 0.0), self._begin, rank)
        for dead, at_s in self.dies_s.items():
            if dead in self.proof_s:
                for peer in range(self.size):
                    self._at(at_s + self.proof_s[dead], self._show, peer, dead)
        for failed, at_s in self.fails_s.items():
            for peer in range(self.size):
                self._at(at_s, self._suspect, peer, failed)
        while self._events and self._events[0][0] < limit_s:
            self.now_s, _, act, *arguments = heapq.heappop(self._events)
            act(*arguments)
        return self

    @property
    def living(self):
        return [rank for rank in range(self.size) if rank not in self.dies_s]

    def is_dead(self, rank):
        return self.now_s >= self.dies_s.get(rank, float("inf"))

    def _at(self, at_s, act, *arguments):
        heapq.heappush(self._events, (at_s, next(self._count), act, *arguments))

    def _begin(self, rank):
        if self.is_dead(rank):
            return
        self.ranks[rank] = self.kind(
            rank,
            range(self.size),
            f"rank {rank}".encode(),
            suspects=self.suspects - {rank},
            reports_s=self.reports_s,
            settle_s=self.settle_s,
            now_s=self.now_s,
        )
        self._post(rank)

    def _show(self, rank, dead):
        if rank not in self.ranks:  # it learns it when it begins
            if not self.is_dead(rank) and rank != dead:
                self._at(self.now_s + 0.01, self._show, rank, dead)
        elif not self.is_dead(rank):
            self.ranks[rank].prove_gone(dead, self.now_s)
            self._post(rank)

    def _suspect(self, rank, failed):
        if rank in self.ranks and not self.is_dead(rank) and rank != failed:
            self.ranks[rank].suspect([failed], self.now_s)
            self._post(rank)

    def _receive(self, rank, sender, data):
        if not self.is_dead(rank) and rank in self.ranks:
            self.ranks[rank].receive_message(DECODER.decode(data), sender, self.now_s)
            self._post(rank)

    def _wake(self, rank, timer_s):
        if not self.is_dead(rank) and self.ranks[rank].get_timer() == timer_s:
            self.ranks[rank].handle_timer(self.now_s)
            self._post(rank)

    def _is_down(self, sender, receiver):
        if self.now_s >= self.cut_until_s:
            return False
        period = int(self.now_s / self.flaps_s)
        flaps = random.Random(f"{self.seed} {sender} {receiver} {period}").random() < self.down
        return flaps or (sender, receiver) in self.cut

    def _post(self, rank):
        own = self.ranks[rank]
        while (event := own.next_event()) is not None:
            if isinstance(event, MustChoose):
                chosen = f"{sorted(event.reports)} by {event.ballot}".encode()
                own.choose(event.ballot, chosen, self.now_s)
            elif isinstance(event, Decided):
                assert rank not in self.outcomes
                self.outcomes[rank] = event.outcome
                self.decided_s[rank] = self.now_s
        for peer, message in own.messages_to_send(self.now_s):
            assert peer != rank
            self.sent += 1
            if self._is_down(rank, peer) or self.dice.random() < self.lost:
                continue
            for _ in range(2 if self.dice.random() < self.doubled else 1):
                delay_s = self.dice.random() * self.longest_s
                data = msgspec.msgpack.encode(message)
                self._at(self.now_s + delay_s, self._receive, peer, rank, data)
        timer_s = own.get_timer()
        if timer_s is not None:
            self._at(max(self.now_s, timer_s), self._wake, rank, timer_s)


def survivors_of(seed, kind=Agreement):
    """A random group and its fate; deaths come before, in, and after all phases."""
    dice = random.Random(seed)
    size = dice.randint(2, 7)
    dying = dice.sample(range(size), dice.randint(0, size - 1))
    dies_s = {rank: dice.choice([0.0, dice.random() * 0.1, dice.random() * 2]) for rank in dying}
    proved = [rank for rank in dying if dice.random() < 0.6]
    side = dice.sample(range(size), dice.randint(1, size - 1))
    others = set(range(size)) - set(side)
    in_two = [*itertools.product(side, others), *itertools.product(others, side)]
    cut = dice.choice([[], in_two])
    return Survivors(
        size,
        seed,
        lost=dice.choice([0.0, 0.1, 0.5, 0.8]),
        doubled=dice.choice([0.0, 0.3]),
        longest_s=dice.choice([0.0002, 0.02, 0.5, 2.0]),
        dies_s=dies_s,
        proof_s={rank: dice.choice([0.0, 0.2, 1.0]) for rank in proved},
        cut=frozenset(cut),
        flaps_s=dice.choice([0.01, 0.1, 1.0]),
        down=dice.choice([0.0, 0.5, 0.8]),
        cut_until_s=dice.choice([0.5, 5.0, 100.0]),
        begins_s={rank: dice.choice([0.0, dice.random() * 1.5]) for rank in range(size)},
        suspects=frozenset(rank for rank in dying if dice.random() < 0.7),
        fails_s={rank: dice.random() * 2 for rank in range(size) if dice.random() < 0.3},
        reports_s=dice.choice([SETTLE_S, SETTLE_S, 0.02, 2.0]),
        settle_s=dice.choice([SETTLE_S, SETTLE_S, 0.02]),  # less than messages take: ballots clash
        kind=kind,
    )


def differ(group):
    """Whether survivors have learned different outcomes."""
    return len({group.outcomes[rank] for rank in group.living if rank in group.outcomes}) > 1


def clashing(seed, kind=Agreement):
    """Outcomes of the survivors where messages go in any order and all begin ballots at any time.

    Ranks die between any two steps, and it shows at any time after that, or never.
    """
    dice = random.Random(seed)
    size = dice.randint(2, 5)
    lost = dice.choice([0.0, 0.2, 0.5])
    dying = dice.sample(range(size), dice.randint(0, size - 1))
    dies_at = {rank: dice.choice([0, dice.randrange(200)]) for rank in dying}
    ranks = []
    for rank in range(size):
        suspects = set(dying) - {rank}
        own = kind(
            rank, range(size), b"", suspects=suspects, reports_s=0.0, settle_s=0.0, now_s=0.0
        )
        ranks.append(own)
    in_transit = []
    outcomes = {}
    waking = dice.choice([0.03, 0.1, 0.3])  # the share of steps that are timers
    eagerness = [dice.choice([0.0, 0.1, 1.0]) for _ in range(size)]  # of ranks to begin a ballot
    for step in range(600):
        now_s = step * agreement.RETRY_S / size
        living = [rank for rank in range(size) if step < dies_at.get(rank, math.inf)]
        rank = dice.choice(living)
        own = ranks[rank]
        dead = [rank for rank in range(size) if rank not in living]
        if dead and dice.random() < 0.02:
            own.prove_gone(dice.choice(dead), now_s)
        elif not in_transit or dice.random() < waking:
            if dice.random() < eagerness[rank]:
                own.handle_timer(now_s)
        else:
            rank, sender, message = in_transit.pop(dice.randrange(len(in_transit)))
            own = ranks[rank]
            if rank in living:
                own.receive_message(message, sender, now_s)
        while (event := own.next_event()) is not None:
            if isinstance(event, MustChoose):
                own.choose(event.ballot, f"by {event.ballot}".encode(), now_s)
            else:
                outcomes[rank] = event.outcome
        for peer, message in own.messages_to_send(now_s):
            if dice.random() >= lost:
                in_transit.append((peer, rank, message))
    return {rank: outcome for rank, outcome in outcomes.items() if rank not in dies_at}


@settings(max_examples=500, deadline=None)
@given(st.integers(0, 2**40))
def test_survivors_never_learn_different_outcomes(seed):
    assert len(set(clashing(seed).values())) <= 1
    assert not differ(survivors_of(seed).run(limit_s=15.0))


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**40))
def test_survivors_learn_an_outcome_if_they_are_a_quorum(seed):
    group = survivors_of(seed)
    # no worse than that: where nearly nothing arrives in time, ballots may clash for minutes
    group.settle_s = SETTLE_S
    group.lost = min(group.lost, 0.5)
    group.longest_s = min(group.longest_s, 0.5)
    group.cut_until_s = min(group.cut_until_s, 5.0)
    group.run(limit_s=120.0)
    is_majority = 2 * len(group.living) > group.size
    if is_majority or set(group.proof_s) == set(group.dies_s):
        assert set(group.living) <= set(group.outcomes), group
    for rank in group.living:
        if rank in group.outcomes:
            assert group.ranks[rank].has_told
            assert group.ranks[rank].get_timer() is None  # it is silent again


class _HeedsLowerBallots(Agreement):
    """Wrong: what was promised is forgotten."""

    def _answer(self, message, now_s):
        self._promised = agreement.NO_BALLOT
        return super()._answer(message, now_s)


class _ChoosesAnew(Agreement):
    """Wrong: what was accepted before is not heard of."""

    def _see_promises(self, own, now_s):
        for sender, promise in own.promises.items():
            forgotten = msgspec.structs.replace(promise, accepted=agreement.NO_BALLOT)
            own.promises[sender] = forgotten
        super()._see_promises(own, now_s)


class _BelievesSilence(Agreement):
    """Wrong: a rank that has failed, by what the verdict says, counts as gone."""

    def __init__(self, *args, suspects, **options):
        super().__init__(*args, suspects=suspects, **options)
        self._gone |= set(suspects)


class _HalfIsEnough(Agreement):
    """Wrong: half of the ranks are a quorum."""

    def _is_quorum(self, ranks):
        return 2 * len(ranks) >= len(self.acceptors) or super()._is_quorum(ranks)


@pytest.mark.parametrize("kind", [_HeedsLowerBallots, _ChoosesAnew, _HalfIsEnough])
def test_wrong_agreements_are_noticed(kind):
    assert any(len(set(clashing(seed, kind).values())) > 1 for seed in range(5000))


def test_silence_is_no_proof():
    """Each of two takes the other for failed, and only the network has."""
    for kind in (Agreement, _BelievesSilence):
        group = Survivors(
            2,
            cut=frozenset({(0, 1), (1, 0)}),
            cut_until_s=100.0,
            suspects=frozenset({0, 1}),
            kind=kind,
        ).run(limit_s=20.0)
        assert differ(group) == (kind is _BelievesSilence)
        assert bool(group.outcomes) == (kind is _BelievesSilence)


def test_the_lowest_survivor_decides_for_all_who_have_reported_and_nobody_waits_for_the_dead():
    group = Survivors(4, dies_s={2: 0.0}, suspects=frozenset({2}), longest_s=0.001).run()
    first_ballot = Ballot(round=0, owner=0)
    assert set(group.outcomes.values()) == {f"[0, 1, 3] by {first_ballot}".encode()}
    assert max(group.decided_s.values()) < 0.01


def test_who_has_failed_without_a_verdict_is_waited_for_a_settle_time_only():
    group = Survivors(4, dies_s={2: 0.0}, longest_s=0.001).run()
    assert all(outcome.startswith(b"[0, 1, 3]") for outcome in group.outcomes.values())
    assert SETTLE_S <= max(group.decided_s.values()) < SETTLE_S + 0.01


def test_a_rank_that_comes_late_is_waited_for_as_long_as_its_report_is():
    """And decides nothing apart from the others; where nobody is late, nobody waits."""
    late = Survivors(4, begins_s={3: 0.4}, reports_s=3.0, longest_s=0.001).run()
    assert all(outcome.startswith(b"[0, 1, 2, 3]") for outcome in late.outcomes.values())
    assert 0.4 <= max(late.decided_s.values()) < 0.5
    impatient = Survivors(4, begins_s={3: 0.4}, longest_s=0.001).run()
    assert all(outcome.startswith(b"[0, 1, 2] ") for outcome in impatient.outcomes.values())
    punctual = Survivors(4, reports_s=3.0, longest_s=0.001).run()
    assert max(punctual.decided_s.values()) < 0.01


@pytest.mark.parametrize("reports_s", [1.0, 3.0])
def test_who_is_silent_and_is_suspected_later_is_waited_for_no_longer(reports_s):
    group = Survivors(4, dies_s={2: 0.0}, fails_s={2: 0.6}, reports_s=reports_s, longest_s=0.001)
    group.run()
    assert all(outcome.startswith(b"[0, 1, 3]") for outcome in group.outcomes.values())
    assert 0.6 <= max(group.decided_s.values()) < 0.61


def test_where_the_group_fails_by_others_than_those_who_are_late_these_have_a_settle_time():
    group = Survivors(5, dies_s={2: 0.0}, fails_s={3: 0.6}, reports_s=30.0, longest_s=0.001).run()
    assert all(outcome.startswith(b"[0, 1, 3, 4]") for outcome in group.outcomes.values())
    assert 0.6 + SETTLE_S <= max(group.decided_s.values()) < 0.6 + SETTLE_S + 0.01


def test_where_the_lowest_dies_as_the_last_report_comes_the_next_one_follows_a_settle_time_later():
    group = Survivors(4, dies_s={0: 0.1}, begins_s={3: 0.4}, reports_s=3.0, longest_s=0.001)
    group.fails_s = {0: 0.5}
    group.run()
    assert not differ(group)
    assert all(group.outcomes[rank].startswith(b"[0, 1, 2, 3]") for rank in (1, 2, 3))
    assert max(group.decided_s[rank] for rank in (1, 2, 3)) < 0.5 + 2 * SETTLE_S


def test_a_rank_that_was_taken_for_dead_and_is_not_goes_on_with_the_others():
    group = Survivors(4, suspects=frozenset({2}), begins_s={2: 0.0}, longest_s=0.001, seed=3).run()
    assert set(group.outcomes) == {0, 1, 2, 3}


@pytest.mark.parametrize("died_s", [0.0002, 0.0007, 0.0012, 0.0017, 0.003])
def test_where_the_lowest_survivor_dies_in_the_middle_the_next_one_decides(died_s):
    group = Survivors(
        4, dies_s={2: 0.0, 0: died_s}, suspects=frozenset({2}), proof_s={2: 0.1, 0: 0.1}
    )
    group.longest_s = 0.001
    group.run()
    assert not differ(group)
    assert {1, 3} <= set(group.outcomes)
    assert max(group.decided_s[rank] for rank in (1, 3)) < 4 * SETTLE_S


@pytest.mark.parametrize("died_s", [0.0002, 0.0007, 0.0012, 0.0017])
def test_a_ballot_whose_owner_is_proved_gone_is_waited_for_no_longer(died_s):
    """However long it would have been given."""
    group = Survivors(3, dies_s={0: died_s}, proof_s={0: 0.1}, settle_s=10.0)
    group.longest_s = 0.001
    group.run()
    assert not differ(group)
    assert {1, 2} <= set(group.outcomes)
    assert max(group.decided_s[rank] for rank in (1, 2)) < 0.2


def test_one_of_two_goes_on_if_the_other_is_proved_gone():
    group = Survivors(2, dies_s={1: 0.0}, suspects=frozenset({1}), proof_s={1: 0.1}).run()
    assert group.outcomes == {0: f"[0] by {Ballot(round=0, owner=0)}".encode()}
    alone = Survivors(2, dies_s={1: 0.0}, suspects=frozenset({1})).run(limit_s=20.0)
    assert alone.outcomes == {}


def test_the_outcome_is_told_to_a_rank_that_comes_late():
    group = Survivors(3, begins_s={2: 1.0}, longest_s=0.001).run()
    assert set(group.outcomes) == {0, 1, 2}
    assert group.outcomes[2].startswith(b"[0, 1] ")


def test_messages_after_the_outcome_are_answered_with_it():
    group = Survivors(3, longest_s=0.001).run()
    decided = group.ranks[0]
    decided.receive_message(Report(b""), 2, 5.0)
    assert decided.messages_to_send(5.0) == [(2, Outcome(group.outcomes[0]))]


def test_a_lost_report_leaves_nobody_out():
    """Who has promised has reported, too."""
    promising = Agreement(1, range(3), b"one", reports_s=1.0, settle_s=1.0, now_s=0.0)
    asking = Agreement(0, range(3), b"zero", reports_s=0.0, settle_s=0.0, now_s=0.0)
    asking.handle_timer(1.0)
    for peer, message in asking.messages_to_send(1.0):
        if peer == 1:
            promising.receive_message(message, 0, 1.0)
    promises = [each for _, each in promising.messages_to_send(1.0) if isinstance(each, Promise)]
    assert promises
    assert promises[0].content == b"one"
