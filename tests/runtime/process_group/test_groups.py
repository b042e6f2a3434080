"""Process groups of the backend: barriers, time limits, parts of a group, many groups."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _set_pg_timeout

from runtime.backend import LatecomerGroup
from tests.runtime import schedules
from tests.runtime.jobs import start
from tests.runtime.spawning import on_ranks, together
from verify.errors import ArgumentError, LatecomerError


def _alone(call, rank, size, store):
    """The error of a call to which some ranks do not come; all are here before and after it."""
    together(store, rank, size, "before")
    error = ""
    try:
        call()
    except (RuntimeError, LatecomerError) as raised:
        error = str(raised)
    together(store, rank, size, "after")
    return error


@on_ranks(3)
def test_barriers_are_those_of_gloo(rank, size, store):
    group = start(rank, size, store)
    dist.barrier()
    dist.barrier(device_ids=[0])
    dist.barrier(async_op=True).wait()
    dist.monitored_barrier()
    dist.monitored_barrier(timeout=timedelta(seconds=20), wait_all_ranks=True)

    def late():
        return rank == 1 or dist.monitored_barrier(group, timedelta(seconds=1), wait_all_ranks=True)

    error = _alone(late, rank, size, store)
    assert rank or "Ranks 1 failed" in error
    assert dist.get_backend_config() == "cpu:latecomer,cuda:latecomer"
    assert dist.get_backend() == "latecomer"
    dist.destroy_process_group()


@on_ranks(2)
def test_other_backends_have_their_own_monitored_barrier(rank, size, store):
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    dist.monitored_barrier()
    limit = timedelta(seconds=1)
    error = _alone(lambda: rank or dist.monitored_barrier(timeout=limit), rank, size, store)
    assert rank or "Rank 1 failed" in error
    dist.destroy_process_group()


@pytest.mark.parametrize("schedule", [None, schedules.straggler(3)], ids=["auto", "schedule"])
@on_ranks(3)
def test_time_limits_can_be_changed_while_a_group_runs(rank, size, store, schedule):
    group = start(rank, size, store, schedule, timeout_s=300)
    dist.all_reduce(torch.ones(4))
    assert group.engine.timeout_s == 300
    for seconds, change in (
        (40, group.set_timeout),
        (8, lambda limit: _set_pg_timeout(limit, group)),  # as torchtitan does
    ):
        change(timedelta(seconds=seconds))
        dist.all_reduce(torch.ones(4))
        assert group.engine.timeout_s == seconds
    error = _alone(lambda: rank or dist.all_reduce(torch.ones(4)), rank, size, store)
    assert rank or "rank" in error  # after some seconds, not minutes: the test's limit is 90
    dist.destroy_process_group()


@on_ranks(4)
def test_a_group_can_be_split(rank, size, store):
    group = start(rank, size, store)
    group._set_group_name("world")
    mine = [0, 1] if rank < 2 else [3, 2]
    half = group.split_group(mine, timeout=timedelta(seconds=120), group_name="half")
    assert isinstance(half, LatecomerGroup)
    assert sorted(mine)[half.rank()] == rank
    x, gathered = torch.tensor([float(rank)]), [torch.zeros(1) for _ in range(2)]
    half.allgather([gathered], [x]).wait()
    assert [g.item() for g in gathered] == sorted(mine)
    half.allreduce(x).wait()
    assert x.item() == sum(mine)
    assert dict(half.paths) == {"mode auto": 1}
    pair = group.split_group([1, 3], group_name="pair")
    assert (pair is not None) == (rank in (1, 3))
    if pair is not None:
        y = torch.tensor([float(rank)])
        pair.allreduce(y).wait()
        assert y.item() == 4.0
        pair.shutdown()
    half.shutdown()
    dist.destroy_process_group()


@on_ranks(4)
def test_any_number_of_groups(rank, size, store):
    start(rank, size, store)
    groups = [dist.new_group(sorted({i % size, (i + 1 + i // size) % size})) for i in range(30)]
    everyone = [dist.new_group(list(range(size))) for _ in range(5)]
    for group in (*groups, *everyone):
        if group == dist.GroupMember.NON_GROUP_MEMBER:
            continue
        ranks = dist.get_process_group_ranks(group)
        x = torch.tensor([float(rank)])
        dist.all_reduce(x, dist.ReduceOp.MAX, group=group)
        assert x.item() == max(ranks)
        if group in everyone[:2] or group is groups[0]:
            y = torch.tensor([float(rank)])
            dist.all_reduce(y, group=group)
            assert y.item() == sum(ranks)
    alone = [dist.new_group([r]) for r in range(size)][rank]
    x = torch.tensor([float(rank)])
    dist.all_reduce(x, group=alone)
    assert x.item() == rank
    assert dict(alone.paths) == {"a group of one": 1}
    dist.destroy_process_group()


@on_ranks(2)
def test_ranks_may_come_to_two_groups_in_different_orders(rank, size, store):
    start(rank, size, store)
    groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
    sums = [torch.tensor([rank + 10.0 * number]) for number in range(2)]
    order = [0, 1] if rank == 0 else [1, 0]
    for work in [dist.all_reduce(sums[i], group=groups[i], async_op=True) for i in order]:
        work.wait()
    assert [x.item() for x in sums] == [1.0, 21.0]
    dist.destroy_process_group()


@on_ranks(2)
def test_a_mode_has_no_late_ranks_to_set(rank, size, store):
    group = start(rank, size, store)
    with pytest.raises(ArgumentError, match="late"):
        _ = group.late
    with pytest.raises(ArgumentError, match="late"):
        group.late = 1
    assert group.reducer is group.engine
    dist.destroy_process_group()


@on_ranks(2)
def test_a_group_can_be_destroyed_before_its_first_all_reduce_began(rank, size, store):
    """Rank 1 leaves without its first all-reduce; what rank 0 has submitted fails."""
    start(rank, size, store, timeout_s=60)
    if rank == 1:
        together(store, rank, size, "left")
        return
    work = dist.all_reduce(torch.ones(3), async_op=True)
    together(store, rank, size, "left")
    dist.destroy_process_group()
    with pytest.raises(LatecomerError, match="destroyed"):
        work.wait()
