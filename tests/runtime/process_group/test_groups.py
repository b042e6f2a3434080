"""Process groups of the backend: barriers, time limits, parts of a group, many groups."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _set_pg_timeout

from runtime.backend import LatecomerGroup
from tests.runtime import schedules
from tests.runtime.process_group.jobs import start
from tests.runtime.spawning import spawn, together, values
from verify.errors import ArgumentError, LatecomerError


def _barriers(rank, size, store):
    group = start(rank, size, store)
    dist.barrier()
    dist.barrier(device_ids=[0])
    dist.barrier(async_op=True).wait()
    dist.monitored_barrier()
    dist.monitored_barrier(timeout=timedelta(seconds=20), wait_all_ranks=True)
    together(store, rank, size, "before")
    error = ""
    if rank != 1:
        try:
            dist.monitored_barrier(group, timedelta(seconds=1.0), wait_all_ranks=True)
        except RuntimeError as raised:
            error = str(raised)
    together(store, rank, size, "after")
    config = dist.get_backend_config(), dist.get_backend()
    dist.destroy_process_group()
    return error, config


def test_barriers_are_those_of_gloo():
    outcomes = values(spawn(_barriers, 3))
    assert "Ranks 1 failed" in outcomes[0][0]
    assert all(config == ("cpu:latecomer,cuda:latecomer", "latecomer") for _, config in outcomes)


def _plain_gloo(rank, size, store):
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    dist.monitored_barrier()
    together(store, rank, size, "before")
    error = ""
    if rank == 0:
        try:
            dist.monitored_barrier(timeout=timedelta(seconds=1))
        except RuntimeError as raised:
            error = str(raised)
    together(store, rank, size, "after")
    dist.destroy_process_group()
    return error


def test_other_backends_have_their_own_monitored_barrier():
    assert "Rank 1 failed" in values(spawn(_plain_gloo, 2))[0]


def _limits(rank, size, store, schedule):
    group = start(rank, size, store, schedule, timeout_s=300)
    dist.all_reduce(torch.ones(4))
    engine = group.engine
    found = [engine.timeout_s]
    for change in (
        lambda: group.set_timeout(timedelta(seconds=40)),
        lambda: _set_pg_timeout(timedelta(seconds=20), group),  # as torchtitan does
    ):
        change()
        dist.all_reduce(torch.ones(4))
        found.append(engine.timeout_s)
    together(store, rank, size, "before")
    error = ""
    if rank == 0:
        try:
            dist.all_reduce(torch.ones(4))  # nobody else comes
        except LatecomerError as raised:
            error = str(raised)
    together(store, rank, size, "after")
    dist.destroy_process_group()
    return found, error


@pytest.mark.parametrize("auto", [True, False])
def test_time_limits_can_be_changed_while_a_group_runs(auto):
    schedule = None if auto else schedules.straggler(3)
    outcomes = values(spawn(_limits, 3, schedule))
    assert all(found == [300, 40, 20] for found, _ in outcomes)
    assert "rank" in outcomes[0][1]  # after some seconds, not minutes: the test's limit is 90


def _parts(rank, size, store):
    group = start(rank, size, store)
    group._set_group_name("world")
    halves = [[0, 1], [3, 2]]
    mine = next(half for half in halves if rank in half)
    half = group.split_group(mine, timeout=timedelta(seconds=120), group_name="half")
    assert isinstance(half, LatecomerGroup)
    x = torch.tensor([float(rank)])
    half.allreduce(x).wait()
    gathered = [torch.zeros(1) for _ in range(2)]
    half.allgather([gathered], [torch.tensor([float(rank)])]).wait()
    pair = group.split_group([1, 3], group_name="pair")
    y = torch.tensor([float(rank)])
    if pair is not None:
        pair.allreduce(y).wait()
        pair.shutdown()
    found = x.item(), [g.item() for g in gathered], dict(half.paths), half.rank(), y.item()
    half.shutdown()
    dist.destroy_process_group()
    return found


def test_a_group_can_be_split():
    for rank, (x, gathered, paths, place, y) in enumerate(values(spawn(_parts, 4))):
        half = [0, 1] if rank < 2 else [2, 3]
        assert (x, gathered) == (sum(half), half)
        assert half[place] == rank
        assert paths == {"mode auto": 1}
        assert y == (4.0 if rank in (1, 3) else rank)


def _many(rank, size, store):
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
    found = dict(alone.paths)
    dist.destroy_process_group()
    return found


def test_any_number_of_groups():
    for paths in values(spawn(_many, 4)):
        assert paths == {"a group of one": 1}


def _two_orders(rank, size, store):
    start(rank, size, store)
    groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
    order = groups if rank == 0 else groups[::-1]
    sums = {}
    works = []
    for group in order:
        sums[groups.index(group)] = x = torch.tensor([rank + 10.0 * groups.index(group)])
        works.append(dist.all_reduce(x, group=group, async_op=True))
    for work in works:
        work.wait()
    dist.destroy_process_group()
    return sums[0].item(), sums[1].item()


def test_ranks_may_come_to_two_groups_in_different_orders():
    assert values(spawn(_two_orders, 2)) == [(1.0, 21.0)] * 2


def _misused(rank, size, store):
    group = start(rank, size, store)
    with pytest.raises(ArgumentError, match="late"):
        _ = group.late
    with pytest.raises(ArgumentError, match="late"):
        group.late = 1
    assert group.reducer is group.engine
    dist.destroy_process_group()


def test_a_mode_has_no_late_ranks_to_set():
    values(spawn(_misused, 2))


def _never_started(rank, size, store):
    """Rank 1 leaves without its first all-reduce; what rank 0 has submitted fails."""
    start(rank, size, store, timeout_s=60)
    if rank == 1:
        together(store, rank, size, "left")
        return ""
    work = dist.all_reduce(torch.ones(3), async_op=True)
    together(store, rank, size, "left")
    dist.destroy_process_group()
    with pytest.raises(LatecomerError) as raised:
        work.wait()
    return str(raised.value)


def test_a_group_can_be_destroyed_before_its_first_all_reduce_began():
    assert "destroyed" in values(spawn(_never_started, 2))[0]
