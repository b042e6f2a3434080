"""When a rank asks the others, whether it waits on, and who is to blame; no clock, no network."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latecomer.runtime.health.checks import Limits, SilenceCheck, WaitCheck
from latecomer.runtime.health.diagnosis import RankStatus, WaitFor, diagnose, patience_s


def _waits(peer, idle_s=0.0, entered=4, operation=3):
    return RankStatus(entered, WaitFor(operation, "completion", 1, peer), idle_s)


IN = RankStatus(4)
BEHIND = RankStatus(3)
CLOSED = RankStatus(4, closed=True)
CLOSED_BEFORE = RankStatus(3, closed=True)
CLOSED_WHILE_WAITING = RankStatus(4, WaitFor(3, "completion", 1, peer=0), closed=True)
BROKEN = RankStatus(4, broken="OSError('x')")
DIFFERS = RankStatus(4, differs_from=3, doing="a sum of 3 x float32")
LONG_CHAIN = [_waits(2, entered=9), RankStatus(5), BEHIND, _waits(0)]
FURTHER = [
    _waits(2, entered=9, operation=7),
    _waits(3, entered=8, operation=5),
    _waits(0, entered=9, operation=7),
    _waits(1, entered=8, operation=5),
]
"""Ranks 0 and 2 exchange something in a later operation than that in which the others stand."""


@pytest.mark.parametrize(
    ("statuses", "ranks", "reason"),
    [
        ([_waits(2), None, None, RankStatus(1)], (1, 2), "dead or stopped, no sign of life for 2"),
        ([_waits(2), DIFFERS, BROKEN, _waits(1)], (1, 3), "rank 1 has a sum of 3 x float32"),
        ([_waits(2), BROKEN, BEHIND], (1,), "broke, OSError('x')"),  # before the late
        ([_waits(1), _waits(2), _waits(1)], (1, 2), "wait for each other"),  # a cycle at the end
        ([_waits(2), _waits(2), BEHIND], (2,), "has not entered operation 3"),
        # but not who is behind others and not needed yet: rank 1 is in operation 3
        (LONG_CHAIN, (2,), "has not entered"),
        (FURTHER, (1, 3), "wait for each other"),
        # a cycle where a rank is missing: that is why, whatever the others seem to wait for
        ([IN, *FURTHER[1:]], (0,), "has not entered operation 5"),
        ([_waits(1), _waits(0), BEHIND], (2,), "has not entered operation 3"),
        ([_waits(1), _waits(2), IN], (2,), "others wait for it"),  # the end of the chain
        ([IN, IN], (), "all ranks are alive"),  # nobody without evidence
        ([_waits(1), None, CLOSED], (1,), "no sign of life"),  # but not who has finished
        ([_waits(1), _waits(2), CLOSED], (2,), "closed while others wait for it"),
        ([_waits(1), _waits(2), CLOSED_WHILE_WAITING], (2,), "closed while others wait for it"),
        ([_waits(2), BEHIND, CLOSED_BEFORE], (2,), "closed before operation 3"),
        ([IN, CLOSED], (), "all ranks are alive"),  # nobody waits for it
    ],
)
def test_who_is_blamed_first(statuses, ranks, reason):
    answers = {rank: status for rank, status in enumerate(statuses) if status is not None}

    failure = diagnose(len(statuses), answers, 0, "noticed", 2.0)

    assert failure.ranks == ranks
    assert reason in str(failure)
    assert "noticed" in str(failure)
    assert f"rank 0 has entered {statuses[0].entered} operation(s)" in str(failure)
    if statuses in (LONG_CHAIN, FURTHER):  # whoever asks
        assert diagnose(len(statuses), answers, 3, "noticed", 2.0).ranks == ranks


@pytest.mark.parametrize(
    ("never_heard", "question"),
    [
        ([], None),
        (
            [1, 2, 3],
            "; UDP from rank(s) 1, 2 has not arrived once: is a firewall between? (noticed)",
        ),
        ([2], "; UDP from rank(s) 2 has not arrived once: is a firewall between? (noticed)"),
    ],
)
def test_silent_ranks_may_be_behind_a_firewall(never_heard, question):
    answers = {0: _waits(2), 3: IN}

    failure = diagnose(4, answers, 0, "noticed", 2.0, never_heard=never_heard)

    first_line, *_ = str(failure).splitlines()
    assert failure.ranks == (1, 2)
    if question is None:
        assert first_line == "ranks 1, 2: dead or stopped, no sign of life for 2 s (noticed)"
    else:
        assert first_line.endswith(question)


@pytest.mark.parametrize(
    ("statuses", "more_s"),  # of ranks 1 and 2; rank 0 waits for rank 1
    [
        ([_waits(2, 9), RankStatus(4, idle_s=2)], 3),
        ([_waits(2, 9), RankStatus(4, idle_s=6)], -1),
        ([_waits(2, 9), RankStatus(3, idle_s=0)], 0),  # it has not entered
        ([_waits(2, 9), RankStatus(4, idle_s=0, closed=True)], 0),  # it never will
        ([_waits(2, 9), CLOSED_WHILE_WAITING], 0),  # nor does it wait any more
        ([_waits(2, 9), _waits(0, 6)], -1),  # a cycle
        ([_waits(2, 9), _waits(0, 1)], 4),  # of what was
    ],
)
def test_a_wait_goes_on_while_the_end_of_its_chain_is_in_the_operation_and_moves(statuses, more_s):
    assert patience_s(dict(enumerate([_waits(1, 9), *statuses])), 0, 5) == more_s
    assert patience_s(dict(enumerate([IN, *statuses])), 0, 5) == 5  # it no longer waits


@given(st.integers(2, 6), st.data())
def test_diagnosis_always_ends_and_names_ranks_of_the_group(size, data):
    ranks = st.integers(0, size - 1)
    entered_and_peer = st.tuples(st.integers(1, 3), st.none() | ranks)
    answers = data.draw(st.dictionaries(ranks, entered_and_peer))
    answers.setdefault(0, (1, None))
    statuses = {}
    for rank, (entered, peer) in answers.items():
        statuses[rank] = RankStatus(entered) if peer is None else _waits(peer, entered=entered)

    failure = diagnose(size, statuses, 0, "noticed", 1.0)

    assert set(failure.ranks) <= set(range(size))
    missing = set(range(size)) - set(statuses)
    assert set(failure.ranks) == missing or not missing


LIMITS = Limits(12.0)
ASKED_S = LIMITS.wait_s + 1
"""Longer than a wait may last without a question."""


class _Source:
    """Waits since time 0 for rank 1, unless that is over."""

    def __init__(self, operation):
        self.wait = WaitFor(operation, "completion", 1, peer=1)

    def waiting(self):
        return None if self.wait is None else (self.wait, 0.0)


def _check(*operations):
    return WaitCheck(0, 2, LIMITS, [_Source(operation) for operation in operations])


def test_the_time_is_shared_out_so_that_all_have_failed_within_it():
    for timeout_s in (0.5, 6.0, 300.0):
        limits = Limits(timeout_s)
        assert limits.wait_s + 1.25 * limits.grace_s < timeout_s


def test_nobody_is_asked_before_the_oldest_wait_has_lasted():
    check = _check(9, 3)
    later, source = check.sources
    assert check.oldest() == source.waiting()
    assert not check.is_due(LIMITS.wait_s - 0.1)
    assert check.is_due(ASKED_S)
    source.wait = later.wait = None
    assert not check.is_due(ASKED_S)


def _answers(**status):
    """Rank 0's, which waits for rank 1, and rank 1's."""
    return {0: RankStatus(4, WaitFor(3, "completion", 1, 1), 9.0), 1: RankStatus(**status)}


@pytest.mark.parametrize(
    ("answers", "is_over", "granted_s"),
    [
        (_answers(entered=4, idle_s=2.0), False, LIMITS.wait_s - 2),  # rank 1 goes on
        ({0: RankStatus(4)}, False, None),  # it is silent
        (_answers(entered=3, idle_s=0.0), False, None),  # it has not entered
        (_answers(entered=4, idle_s=99.0), False, None),  # it does not go on
        ({0: RankStatus(4)}, True, 0.0),  # it is silent, but the wait is over meanwhile
    ],
)
def test_a_rank_that_goes_on_is_granted_more_time_and_others_are_given_up(
    answers, is_over, granted_s
):
    check = _check(3)
    judged_s = ASKED_S + 1
    assert check.is_due(ASKED_S)
    if is_over:
        check.sources[0].wait = None

    trouble = check.judge(answers, judged_s)

    if granted_s is None:
        assert trouble.noticed.startswith("rank 0 waits for rank 1 in operation 3")
        assert trouble.grace_s == pytest.approx(1.25 * LIMITS.grace_s - 1)
        assert trouble.verdict is None
    else:
        assert trouble is None
        assert not check.is_due(judged_s + granted_s - 0.1)
        assert check.is_due(judged_s + granted_s) is not is_over


@pytest.mark.parametrize(
    ("answers", "ranks"),
    [
        ({0: RankStatus(0), 1: RankStatus(0), 2: RankStatus(0)}, None),
        ({0: RankStatus(0), 1: RankStatus(0)}, None),  # rank 2 is silent, but not suspected
        ({0: RankStatus(0), 1: RankStatus(0, broken="x"), 2: RankStatus(0)}, (1,)),
        ({0: RankStatus(0), 2: RankStatus(0)}, (1,)),
        ({0: RankStatus(0), 1: RankStatus(0, closed=True), 2: RankStatus(0)}, (1,)),
        ({0: RankStatus(0), 1: RankStatus(0), 2: RankStatus(0, closed=True)}, None),
    ],
)
def test_a_suspect_must_answer_and_be_whole(answers, ranks):
    asked_for = []

    def rank_1_is_silent(wait_s):
        asked_for.append(wait_s)
        return [1]

    check = SilenceCheck(0, 3, LIMITS, rank_1_is_silent, "why", 7.0)
    assert check.is_due(1.0)
    assert asked_for == [LIMITS.wait_s]

    trouble = check.judge(answers, 2.0)

    if ranks is None:
        assert trouble is None
    else:
        assert trouble.verdict.ranks == ranks
        reasons = "no sign of life for 7 s|broke, x|closed while others wait"
        assert re.search(reasons, str(trouble.verdict))

    check = SilenceCheck(0, 3, LIMITS, rank_1_is_silent, "why", never_heard=lambda: [1, 2])
    check.is_due(1.0)
    trouble = check.judge({0: RankStatus(0), 2: RankStatus(0)}, 2.0)
    assert "UDP from rank(s) 1 has not arrived once" in str(trouble.verdict)

    nobody = SilenceCheck(0, 3, LIMITS, lambda wait_s: [], "why")
    assert not nobody.is_due(1.0)
    assert nobody.grace_s == LIMITS.grace_s
