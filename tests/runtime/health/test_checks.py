"""When a rank asks the others, and when it gives up; no clock, no network."""

from __future__ import annotations

import pytest

from runtime.health.checks import Limits, SilenceCheck, WaitCheck
from runtime.health.diagnosis import RankStatus, WaitFor

LIMITS = Limits(12.0)
ASKED_S = LIMITS.wait_s + 1
"""Longer than a wait may last without a question."""


class Source:
    """A wait since time 0 for rank 1, unless it is over."""

    moved_s = 0.0

    def __init__(self, operation=3):
        self.wait = WaitFor(operation, "completion", 1, peer=1), 0.0

    def waiting(self):
        return self.wait


def _check(*sources):
    return WaitCheck(0, 2, LIMITS, list(sources))


def _answers(**other):
    return {0: RankStatus(4, WaitFor(3, "completion", 1, 1), 9.0), 1: RankStatus(**other)}


def test_the_time_is_shared_out_so_that_all_have_failed_within_it():
    for timeout_s in (0.5, 6.0, 300.0):
        limits = Limits(timeout_s)
        assert limits.wait_s + 1.25 * limits.grace_s < timeout_s


def test_nobody_is_asked_before_the_oldest_wait_has_lasted():
    source, later = Source(), Source(operation=9)
    check = _check(later, source)
    assert check.oldest() == source.wait
    assert not check.is_due(LIMITS.wait_s - 0.1)
    assert check.is_due(ASKED_S)
    source.wait = later.wait = None
    assert not check.is_due(ASKED_S)


def test_a_rank_that_goes_on_is_granted_more_time():
    check = _check(Source())
    assert check.is_due(ASKED_S)
    assert check.judge(_answers(entered=4, idle_s=2.0), ASKED_S) is None
    granted_s = ASKED_S + LIMITS.wait_s - 2
    assert not check.is_due(granted_s - 0.1)
    assert check.is_due(granted_s)


@pytest.mark.parametrize(
    "answers",
    [
        {0: RankStatus(4)},  # rank 1 is silent
        _answers(entered=3, idle_s=0.0),  # it has not entered
        _answers(entered=4, idle_s=99.0),  # it does not go on
    ],
)
def test_and_one_that_does_not_is_given_up(answers):
    check = _check(Source())
    assert check.is_due(ASKED_S)
    trouble = check.judge(answers, ASKED_S + 1)
    assert trouble.noticed.startswith("rank 0 waits for rank 1 in operation 3")
    assert trouble.grace_s == pytest.approx(1.25 * LIMITS.grace_s - 1)
    assert trouble.verdict is None


def test_but_not_if_the_wait_is_over_meanwhile():
    source = Source()
    check = _check(source)
    assert check.is_due(ASKED_S)
    source.wait = None
    assert check.judge({0: RankStatus(4)}, ASKED_S + 1) is None


@pytest.mark.parametrize(
    ("answers", "ranks"),
    [
        ({0: RankStatus(0), 1: RankStatus(0), 2: RankStatus(0)}, None),
        ({0: RankStatus(0), 1: RankStatus(0)}, None),  # rank 2 is silent, but not suspected
        ({0: RankStatus(0), 1: RankStatus(0, broken="x"), 2: RankStatus(0)}, (1,)),
        ({0: RankStatus(0), 2: RankStatus(0)}, (1,)),
    ],
)
def test_a_suspect_must_answer_and_be_whole(answers, ranks):
    asked_for = []
    check = SilenceCheck(0, 3, LIMITS, lambda wait_s: asked_for.append(wait_s) or [1], "why", 7.0)
    assert check.is_due(1.0)
    assert asked_for == [LIMITS.wait_s]
    trouble = check.judge(answers, 2.0)
    assert (trouble and trouble.verdict.ranks) == ranks
    if trouble:
        assert "no sign of life for 7 s" in str(trouble.verdict) or "broke, x" in str(
            trouble.verdict
        )
    nobody = SilenceCheck(0, 3, LIMITS, lambda wait_s: [], "why")
    assert not nobody.is_due(1.0)
    assert nobody.grace_s == LIMITS.grace_s
