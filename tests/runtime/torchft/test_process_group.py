"""Replicas all-reduce in quorums that change; who fails is named, and nothing else comes of it."""

from __future__ import annotations

import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed import ReduceOp
from torch.distributed.distributed_c10d import AllgatherOptions, BroadcastOptions

from latecomer.runtime.torchft.group import Group
from latecomer.runtime.torchft.process_group import PATH
from latecomer.verify.errors import ArgumentError, LatecomerError, RankFailure
from tests.runtime.torchft.quorums import (
    PROFILE,
    at_rest,
    configure,
    failure_of,
    names,
    ones,
    replicas,
    resources,
    total,
)

REPLICAS = names(3)
QUORUMS = st.lists(
    st.lists(st.sampled_from(REPLICAS), min_size=1, unique=True), min_size=1, max_size=5
)
PATIENCE_S = 600.0
"""So late may a replica be: none of these tests ends in time if that is waited for."""
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8]


@pytest.mark.parametrize("options", [{"mode": "auto"}, {"late": {"replica_1"}}, {"mode": "native"}])
@settings(max_examples=8)
@given(
    quorums=QUORUMS,
    elements=st.integers(0, 3000),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**32),
)
def test_every_quorum_has_its_own_sums(options, quorums, elements, dtype, seed):
    dice = torch.Generator().manual_seed(seed)
    given = {name: torch.randint(0, 9, (elements,), generator=dice) for name in REPLICAS}
    with replicas(3, **options) as started:
        for members in quorums:
            started.quorum(members)
            expected = sum(given[name] for name in members).to(dtype)

            def reduce(group, rank, members=members, expected=expected):
                tensor = given[members[rank]].to(dtype)
                work = total(group, tensor)
                assert work.wait() is True
                [result] = work.get_future().value()
                assert torch.equal(result, expected)
                assert torch.equal(tensor, expected)
                assert group.size() == len(members)
                assert group.replicas == tuple(members)

            started.together(members, reduce)
        assert started.groups[quorums[0][0]].paths[PATH] > 0


def test_a_straggler_is_waited_for_and_the_others_begin_without_it():
    with replicas(3, late={"replica_2"}, silence=0.3) as started:
        comes = threading.Event()
        for members in (REPLICAS, ["replica_2", "replica_0", "replica_1"]):  # its rank changes
            started.quorum(members)
            comes.clear()

            def reduce(group, rank, members=members):
                if members[rank] == "replica_2":
                    assert not comes.wait(1.5)  # for much longer than anybody may be silent
                tensor = ones(2**20)
                work = total(group, tensor)
                assert work.wait()
                assert tensor[0] == 3
                records = group._group.engine.records
                return records[-1].late, records[-1].way

            outcomes = started.together(members, reduce)
            assert {late for late, _ in outcomes.values()} == {(members.index("replica_2"),)}
            assert all(way.startswith("one late") for _, way in outcomes.values())


@pytest.mark.parametrize("mode", ["auto", "native"])
def test_an_error_reported_by_one_ends_the_all_reduces_of_all(mode):
    with replicas(3, mode=mode, timeout=PATIENCE_S) as started:
        started.quorum(REPLICAS)
        pending = threading.Barrier(3)

        def reduce(group, rank):
            if rank == 1:
                pending.wait()
                group.error_reported(ValueError("a bad batch"))
                while group.errored() is None:
                    threading.Event().wait(0.01)
                return [failure_of(total(group, ones()))]
            works = [total(group, ones()) for _ in range(3)]
            pending.wait()
            assert [work.wait() for work in works] == [False] * 3  # and does not raise
            assert not any(work.is_success() for work in works)
            return [failure_of(work) for work in works]

        failures = started.together(REPLICAS, reduce)
        for name in REPLICAS:
            assert all(isinstance(error, RankFailure) for error in failures[name])
            for error in [*failures[name], started.groups[name].errored()]:
                assert error.ranks == (1,)
                assert "a bad batch" in str(error)
                assert "rank 1 is replica replica_1" in str(error)

        started.quorum(REPLICAS)  # and all is well again
        assert all(
            started.together(REPLICAS, lambda group, _: total(group, ones()).wait()).values()
        )
        assert started.groups["replica_0"].errored() is None


def test_abort_names_who_has_asked_for_it():
    with replicas(3, timeout=PATIENCE_S) as started:
        started.quorum(REPLICAS)
        pending = threading.Barrier(3)

        def reduce(group, rank):
            if rank == 0:
                pending.wait()
                group.abort()
                with pytest.raises(LatecomerError, match="not configured"):
                    total(group, ones())
                return None
            work = total(group, ones())
            pending.wait()
            assert work.wait() is False
            return failure_of(work)

        failures = started.together(REPLICAS, reduce)
        for name in REPLICAS[1:]:
            assert failures[name].ranks == (0,)


def test_without_a_quorum_there_is_nothing_to_reduce_over():
    with replicas(1) as started:
        group = started.groups["replica_0"]
        with pytest.raises(LatecomerError, match="not configured"):
            total(group, ones())
        assert group.errored() is None
        assert group.replicas == ()
        group.error_reported(ValueError())  # of the time before: nobody has to know


def test_alone_a_sum_is_what_one_has():
    with replicas(1) as started:
        started.quorum(["replica_0"])
        group = started.groups["replica_0"]
        work = total(group, ones(), ReduceOp.AVG)
        assert work.wait()
        assert torch.equal(work.result()[0], ones())
        assert total(group, ones(), ReduceOp.MAX).wait()


@pytest.mark.parametrize("count", [1, 3])
def test_what_is_no_sum_goes_by_gloo(count):
    members = names(count)
    with replicas(count) as started:
        started.quorum(members)

        def reduce(group, rank):
            most = torch.tensor([float(rank)])
            total(group, most, ReduceOp.MAX).wait()
            assert most.item() == count - 1
            complex_ones = ones(4, torch.complex64)
            total(group, complex_ones).wait()
            assert torch.equal(complex_ones, count * ones(4, torch.complex64))

            everybodys = [[torch.empty(1) for _ in range(count)]]
            group.allgather(everybodys, [torch.tensor([float(rank)])], AllgatherOptions()).wait()
            assert [each.item() for each in everybodys[0]] == list(range(count))
            first = torch.tensor([float(rank)])
            group.broadcast([first], BroadcastOptions()).wait()
            assert first.item() == 0
            group.barrier().wait()
            return dict(group.paths)

        for paths in started.together(members, reduce).values():
            assert paths == {"operation MAX": 1, "dtype torch.complex64": 1}


def _join_by_hand(group, started, rank):
    configure(group, started.where, "lonely", rank, REPLICAS)


def test_replicas_with_other_settings_are_refused():
    with replicas(3, mode="auto") as started, replicas(1, mode="predict") as other:
        started.groups["replica_2"] = other.groups["replica_0"]

        def join(group, rank):
            with pytest.raises(ArgumentError, match="must be the same on all ranks"):
                _join_by_hand(group, started, rank)

        started.together(REPLICAS, join)


def test_what_is_known_outlives_quorums_and_comes_to_newcomers():
    with replicas(3, mode="predict") as started:
        for group in started.groups.values():
            group._known = type(group._known)("")  # without the profile that tests are given
        started.groups["replica_0"]._known = type(group._known)("", PROFILE)
        members = REPLICAS[:2]
        started.quorum(members)

        def reduce(group, rank):
            for _ in range(12):
                if group.replicas[rank] == "replica_1":
                    threading.Event().wait(0.02)
                assert total(group, ones()).wait()

        started.together(members, reduce)
        started.quorum(REPLICAS[::-1])  # rank 0 is new
        for name in REPLICAS:
            known = started.groups[name]._group.known
            assert known.profile == PROFILE.for_some(3)  # neither measured nor forgotten
            assert len(known.behind_s["replica_1"]) >= 8
            late = sum(known.behind_s["replica_1"]) - sum(known.behind_s["replica_0"])
            assert late > 0.01 * len(known.behind_s["replica_1"])


def _changing(started, count):
    """As many quorums, of one to three replicas; every seventh ends with an error."""
    for number in range(count):
        members = REPLICAS[: 1 + number % 3]
        started.quorum(members)

        sums = started.together(members, lambda group, rank: total(group, ones()).wait())
        assert all(sums.values())
        if number % 7 == 6:
            started.groups[members[0]].error_reported(ValueError("now and then"))


def _require_no_more(started, few, many, limit_s=30.0):
    before_all = resources()
    _changing(started, few)
    started.quorum(REPLICAS)
    after_few = at_rest(limit_s)
    _changing(started, many)
    started.quorum(REPLICAS)
    after_many = at_rest(limit_s)
    told = (
        f"{before_all} (descriptors, threads, tasks) at first, {after_few} after {few} quorums, "
        f"{after_many} after {many} more"
    )
    print(told)
    assert all(now <= before for now, before in zip(after_many, after_few, strict=True)), told


@pytest.mark.parametrize("mode", ["auto", "native"])
def test_nothing_is_left_of_quorums_that_are_over(mode, monkeypatch):
    monkeypatch.setenv("RES_OPTIONS", "timeout:1 attempts:1")
    with replicas(3, mode=mode) as started:
        _require_no_more(started, 10, 15)


def test_what_is_left_of_quorums_is_noticed(monkeypatch):
    """Groups that stay open are found by the same count."""
    may_close = threading.Event()
    close = Group._close

    def close_late(group):
        may_close.wait(PATIENCE_S)
        close(group)

    monkeypatch.setattr(Group, "_close", close_late)
    with replicas(3) as started:
        try:
            with pytest.raises(AssertionError, match="descriptors"):
                _require_no_more(started, 3, 3, limit_s=0.5)
        finally:
            may_close.set()


@pytest.mark.long
def test_nothing_is_left_of_a_thousand_quorums(monkeypatch):
    monkeypatch.setenv("RES_OPTIONS", "timeout:1 attempts:1")
    with replicas(3, mode="auto") as started:
        _require_no_more(started, 10, 1000)
