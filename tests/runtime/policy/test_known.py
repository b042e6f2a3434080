"""What outlives a group: one profile, and how late each replica was, by its name."""

from __future__ import annotations

import statistics

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latecomer.runtime.policy.known import (
    KEPT_OPERATIONS,
    KEPT_REPLICAS,
    KNOWN,
    Known,
    adopted,
    arrivals_of,
    having_seen,
    shared_names,
)
from tests.runtime.torchft.quorums import PROFILE

NAMES = ["a", "b", "c", "d", "e"]
seconds = st.floats(min_value=0.0, max_value=100.0, allow_nan=False)
behind = st.dictionaries(
    st.sampled_from(NAMES), st.lists(seconds, max_size=KEPT_OPERATIONS).map(tuple)
)
members = st.lists(
    st.builds(
        Known,
        replica=st.sampled_from(NAMES),
        profile=st.sampled_from([None, PROFILE, PROFILE.for_some(3)]),
        operations=st.integers(0, 1000),
        behind_s=behind,
    ),
    min_size=1,
    max_size=5,
)


@given(members=members)
def test_it_is_told_as_it_is_known(members):
    for known in members:
        assert KNOWN.decode(msgspec.json.encode(known)) == known


@given(members=members)
def test_all_go_on_from_the_same(members):
    adopted_by = [adopted(members, rank) for rank in range(len(members))]
    assert [known.replica for known in adopted_by] == [member.replica for member in members]
    for known in adopted_by:
        assert msgspec.structs.replace(known, replica="") == msgspec.structs.replace(
            adopted_by[0], replica=""
        )
        assert known.operations == max(member.operations for member in members)
        assert (known.profile is None) == all(member.profile is None for member in members)


def test_of_several_profiles_the_lowest_rank_counts():
    other = PROFILE.for_some(3)
    told = [Known("a"), Known("b", other), Known("c", PROFILE, operations=7)]
    assert adopted(told, 2).profile == other


@given(known=st.builds(Known, replica=st.just("a"), behind_s=behind), count=st.integers(2, 5))
def test_rows_are_of_the_replicas_in_order_of_rank(known, count):
    replicas = NAMES[:count]
    rows = arrivals_of(known, replicas)
    told = [known.behind_s.get(name, ()) for name in replicas]
    lengths = sorted(map(len, told))
    assert len(rows) == lengths[-2]  # of one replica alone nothing follows
    for age, row in enumerate(reversed(rows), start=1):
        in_it = [times[-age] for times in told if len(times) >= age]
        for times, value in zip(told, row, strict=True):
            expected = times[-age] if len(times) >= age else statistics.median(in_it)
            assert value == expected


@given(rows=st.lists(st.lists(seconds, min_size=3, max_size=3), max_size=40))
def test_what_was_seen_last_is_kept_by_name(rows):
    replicas = ["c", "a", "b"]
    seen = np.array(rows).reshape(-1, 3)
    before = Known("a", operations=5, behind_s={"a": (1.0,), "away": (9.0, 8.0)})
    after = having_seen(before, replicas, seen, unclear=set())
    assert after.operations == 5 + len(rows)
    assert after.behind_s["away"] == (9.0, 8.0)
    assert after.behind_s["a"] == (1.0, *seen[:, 1])[-KEPT_OPERATIONS:]
    assert after.behind_s["c"] == tuple(seen[:, 0])[-KEPT_OPERATIONS:]


def test_who_comes_back_is_known_to_be_late():
    known = having_seen(Known("a"), ["a", "b", "slow"], np.array([[0.0, 0.1, 5.0]] * 8), set())
    known = having_seen(known, ["a", "b"], np.array([[0.0, 0.2]] * 30), set())
    rows = arrivals_of(known, ["slow", "b", "a"])
    assert all(row[0] == 5.0 for row in rows[-8:])
    assert all(row[1] == 0.2 for row in rows)


def test_names_that_several_have_say_nothing():
    told = [Known("0"), Known("0"), Known("b")]
    assert shared_names(told) == {"0"}
    known = having_seen(told[0], ["0", "0", "b"], np.array([[0.0, 1.0, 2.0]]), {"0"})
    assert set(known.behind_s) == {"b"}


@pytest.mark.parametrize("more", [0, 1, 10])
def test_it_does_not_grow_for_ever(more):
    names = [f"replica {number}" for number in range(KEPT_REPLICAS + more)]
    known = Known("a")
    for name in names:
        known = having_seen(known, [name], np.array([[0.0]]), set())
    assert list(known.behind_s) == names[more:]
