"""Who is to blame, and whether to wait on, given where the ranks say they stand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.health.diagnosis import RankStatus, WaitFor, diagnose, patience_s


def _waits(peer, idle_s=0.0, entered=4, operation=3):
    return RankStatus(entered, WaitFor(operation, "completion", 1, peer), idle_s)


IN, BEHIND = RankStatus(4), RankStatus(3)
BROKEN = RankStatus(4, broken="OSError('x')")
DIFFERS = RankStatus(4, differs_from=3, doing="a sum of 3 x float32")


@pytest.mark.parametrize(
    ("statuses", "ranks", "reason"),
    [
        # the silent first
        ([_waits(2), None, None, RankStatus(1)], (1, 2), "dead or stopped, no sign of life for 2"),
        # ranks that differ, both
        ([_waits(2), DIFFERS, BROKEN, _waits(1)], (1, 3), "rank 1 has a sum of 3 x float32"),
        # whoever broke before the late
        ([_waits(2), BROKEN, BEHIND], (1,), "broke, OSError('x')"),
        # a cycle of waits, if the chain ends in one
        ([_waits(1), _waits(2), _waits(1)], (1, 2), "wait for each other"),
        # whoever has not entered
        ([_waits(2), _waits(2), BEHIND], (2,), "has not entered operation 3"),
        # but not who is behind others and not needed yet: rank 1 is in operation 3
        ([_waits(2, entered=9), RankStatus(5), BEHIND, _waits(0)], (2,), "has not entered"),
        # the end of the chain of waits
        ([_waits(1), _waits(2), IN], (2,), "others wait for it"),
        # nobody without evidence
        ([IN, IN], (), "all ranks are alive"),
    ],
)
def test_who_is_blamed_first(statuses, ranks, reason):
    said = {rank: status for rank, status in enumerate(statuses) if status is not None}
    failure = diagnose(len(statuses), said, 0, "noticed", 2.0)
    assert failure.ranks == ranks
    assert reason in str(failure)
    assert "noticed" in str(failure)
    assert f"rank 0 has entered {statuses[0].entered} operation(s)" in str(failure)


def test_the_same_ranks_are_blamed_wherever_the_chain_begins():
    said = dict(enumerate([_waits(2, entered=9), RankStatus(5), BEHIND, _waits(0)]))
    assert diagnose(4, said, 3, "noticed", 2.0).ranks == (2,)


@pytest.mark.parametrize(
    ("others", "more_s"),
    [
        ([_waits(2, 9), RankStatus(4, idle_s=2)], 3),
        ([_waits(2, 9), RankStatus(4, idle_s=6)], -1),
        ([_waits(2, 9), RankStatus(3, idle_s=0)], 0),  # it has not entered
        ([_waits(2, 9), _waits(0, 6)], -1),  # a cycle
        ([_waits(2, 9), _waits(0, 1)], 4),  # of what was
    ],
)
def test_a_wait_goes_on_while_the_end_of_its_chain_is_in_the_operation_and_moves(others, more_s):
    assert patience_s(dict(enumerate([_waits(1, 9), *others])), 0, 5) == more_s
    assert patience_s(dict(enumerate([IN, *others])), 0, 5) == 5  # it no longer waits


@given(
    st.integers(2, 6).flatmap(
        lambda size: st.tuples(
            st.just(size),
            st.dictionaries(
                st.integers(0, size - 1),
                st.tuples(st.integers(1, 3), st.none() | st.integers(0, size - 1)),
            ),
        )
    )
)
def test_diagnosis_always_ends_and_names_ranks_of_the_group(case):
    size, said = case
    statuses = {
        rank: RankStatus(entered) if peer is None else _waits(peer, entered=entered)
        for rank, (entered, peer) in {0: (1, None), **said}.items()
    }
    failure = diagnose(size, statuses, 0, "noticed", 1.0)
    assert set(failure.ranks) <= set(range(size))
    missing = set(range(size)) - set(statuses)
    assert set(failure.ranks) == missing or not missing
