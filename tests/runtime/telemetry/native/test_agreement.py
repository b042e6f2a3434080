"""Ranks tell each other what they enter: what differs is named, and nobody who did the same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from latecomer.runtime.telemetry.native.agreement import MOST_TOGETHER, PERIOD_S, Agreement, Claim

DIDS = ("all_reduce float32 4 0", "broadcast float32 root 0 4 0", "barrier")


class Ranks:
    """All ranks of a group, whose datagrams arrive, at once, unless they are lost."""

    def __init__(self, number):
        self.members = tuple(range(number))
        self.agreements = [Agreement(rank) for rank in self.members]
        self.events = {rank: [] for rank in self.members}
        self.sent = 0
        self.now_s = 0.0

    def enter(self, rank, number, did):
        self.agreements[rank].enter(Claim("g", number, did), self.members, self.now_s)

    def pass_time(self, lost=()):
        """A period; what ranks in ``lost`` send gets lost."""
        self.now_s += PERIOD_S
        for rank, agreement in enumerate(self.agreements):
            agreement.handle_timer(self.now_s)
            self._hear(rank)
            for to, message in agreement.messages_to_send(self.now_s):
                self.sent += 1
                if rank not in lost:
                    self.agreements[to].receive_message(message, rank, self.now_s)
                    self._hear(to)

    def _hear(self, rank):
        while (event := self.agreements[rank].next_event()) is not None:
            self.events[rank].append(event)


@given(
    ranks=st.integers(2, 6),
    operations=st.lists(st.sampled_from(DIDS), min_size=1, max_size=12),
    data=st.data(),
)
def test_the_first_difference_is_named_by_both_that_compare(ranks, operations, data):
    odd = data.draw(st.integers(0, ranks - 1), label="who deviates")
    at = data.draw(st.integers(0, len(operations) - 1), label="in which operation")
    every = Ranks(ranks)
    order = [(rank, number) for number in range(len(operations)) for rank in range(ranks)]
    if data.draw(st.booleans(), label="each rank runs ahead"):
        order = [(rank, number) for rank in range(ranks) for number in range(len(operations))]
    has_passed = False
    for rank, number in order:
        did = operations[number]
        every.enter(rank, number, "reduce" if (rank, number) == (odd, at) else did)
        if data.draw(st.booleans(), label="time passes"):
            has_passed = True
            every.pass_time()
    every.pass_time()

    for comparing in (0, 1):
        (event,) = every.events[comparing]
        assert event.number == at
        assert event.ranks_by_did["reduce"] == (odd,)
        others = {rank for rank in range(ranks) if rank != odd}
        named = set(event.ranks_by_did[operations[at]])
        assert named <= others
        assert named == others or has_passed  # then the rest may not have been there yet
    assert not any(every.events[rank] for rank in range(2, ranks))


@given(
    ranks=st.integers(2, 6),
    operations=st.lists(st.sampled_from(DIDS), max_size=12),
    data=st.data(),
)
def test_ranks_that_do_the_same_are_not_accused(ranks, operations, data):
    every = Ranks(ranks)
    for number, did in enumerate(operations):
        for rank in range(ranks):
            every.enter(rank, number, did)
            if data.draw(st.booleans(), label="time passes"):
                every.pass_time(lost=data.draw(st.sets(st.integers(0, ranks - 1)), label="lost"))
    every.pass_time()
    assert not any(every.events.values())


def test_who_deviates_is_told_a_period_later_where_one_does_not_come():
    every = Ranks(4)
    for rank, did in ((0, "a"), (1, "a"), (2, "b")):
        every.enter(rank, 0, did)
    every.pass_time()
    assert not every.events[0]
    every.pass_time()
    (event,) = every.events[0]
    assert event.ranks_by_did == {"a": (0, 1), "b": (2,)}
    every.pass_time()
    assert len(every.events[0]) == 1


def test_who_has_not_entered_is_known_and_a_lost_claim_is_repeated():
    every = Ranks(3)
    every.enter(0, 0, "a")
    every.enter(2, 0, "a")
    every.pass_time(lost=(2,))
    assert every.agreements[0].absent("g", 0) == (1, 2)
    assert every.agreements[2].absent("g", 0) is None  # it does not compare
    assert every.agreements[0].absent("another group", 0) is None
    every.pass_time()
    assert every.agreements[0].absent("g", 0) == (1,)
    every.enter(1, 0, "b")
    every.pass_time()
    (event,) = every.events[0]
    assert event.ranks_by_did == {"a": (0, 2), "b": (1,)}


def test_what_is_entered_within_a_period_goes_in_few_datagrams():
    every = Ranks(4)
    for number in range(MOST_TOGETHER + 1):
        for rank in range(4):
            every.enter(rank, number, "b" if (rank, number) == (3, 7) else "a")
    every.pass_time()
    assert every.sent == 2 * (1 + 1 + 2 + 2)  # rank 0 to 1, 1 to 0, the others to both
    every.pass_time()
    assert every.sent == 3 * (1 + 1 + 2 + 2)
    for comparing in (0, 1):
        (event,) = every.events[comparing]
        assert (event.number, event.ranks_by_did["b"]) == (7, (3,))
