"""Process groups of the backend: barriers, time limits, parts, many groups, lost ranks."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _set_pg_timeout

from latecomer import runtime
from latecomer.runtime.backend import LatecomerGroup
from latecomer.runtime.policy.cost_model import AlphaBeta, Profile
from latecomer.verify.errors import ArgumentError, LatecomerError, RankFailure
from tests.runtime import schedules
from tests.runtime.jobs import start
from tests.runtime.spawning import on_ranks, together


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


@pytest.mark.parametrize("backend", ["latecomer", "gloo"])
@on_ranks(3)
def test_barriers_are_those_of_gloo(rank, size, store, backend):
    group = start(rank, size, store, backend=backend)
    dist.barrier()
    dist.barrier(device_ids=[0])
    dist.barrier(async_op=True).wait()
    dist.monitored_barrier()
    dist.monitored_barrier(timeout=timedelta(seconds=20), wait_all_ranks=True)

    def barrier_without_rank_1():
        if rank != 1:
            dist.monitored_barrier(group, timedelta(seconds=1), wait_all_ranks=True)

    error = _alone(barrier_without_rank_1, rank, size, store)
    if rank == 0:
        assert "Ranks 1 failed" in error
    assert dist.get_backend() == backend
    if backend == "latecomer":
        assert dist.get_backend_config() == "cpu:latecomer,cuda:latecomer"


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

    def all_reduce_of_rank_0_alone():
        if rank == 0:
            dist.all_reduce(torch.ones(4))

    error = _alone(all_reduce_of_rank_0_alone, rank, size, store)
    if rank == 0:
        assert "rank" in error  # after some seconds, not minutes: the test's limit is 90


@on_ranks(4)
def test_a_group_can_be_split(rank, size, store):
    group = start(rank, size, store)
    group._set_group_name("world")
    own_half = [0, 1] if rank < 2 else [3, 2]
    half = group.split_group(own_half, timeout=timedelta(seconds=120), group_name="half")
    assert isinstance(half, LatecomerGroup)
    assert sorted(own_half)[half.rank()] == rank
    x = torch.tensor([float(rank)])
    gathered = [torch.zeros(1) for _ in range(2)]
    half.allgather([gathered], [x]).wait()
    assert [tensor.item() for tensor in gathered] == sorted(own_half)
    half.allreduce(x).wait()
    assert x.item() == sum(own_half)
    assert dict(half.paths) == {"mode auto": 1}

    pair = group.split_group([1, 3], group_name="pair")
    assert (pair is not None) == (rank in (1, 3))
    if pair is not None:
        y = torch.tensor([float(rank)])
        pair.allreduce(y).wait()
        assert y.item() == 4.0
        pair.shutdown()
    half.shutdown()


@on_ranks(4)
def test_any_number_of_groups(rank, size, store):
    start(rank, size, store)
    groups = []
    for number in range(30):
        members = {number % size, (number + 1 + number // size) % size}
        groups.append(dist.new_group(sorted(members)))
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

    groups_of_one = [dist.new_group([member]) for member in range(size)]
    alone = groups_of_one[rank]
    x = torch.tensor([float(rank)])
    dist.all_reduce(x, group=alone)
    assert x.item() == rank
    assert dict(alone.paths) == {"a group of one": 1}


@on_ranks(2)
def test_a_group_is_there_when_all_ranks_are_connected(rank, size, store):
    start(rank, size, store)
    connect = dist.ProcessGroupGloo

    def connect_slowly(*args):
        gloo = connect(*args)
        time.sleep(0.5 * rank)
        store.set(f"connected {rank}", "")
        return gloo

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "ProcessGroupGloo", connect_slowly)
        dist.new_group([0, 1])
    assert store.check(["connected 1"])


@on_ranks(2)
def test_ranks_may_come_to_two_groups_in_different_orders(rank, size, store):
    start(rank, size, store)
    groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
    sums = [torch.tensor([rank + 10.0 * number]) for number in range(2)]
    order = [0, 1] if rank == 0 else [1, 0]
    works = [dist.all_reduce(sums[i], group=groups[i], async_op=True) for i in order]
    for work in works:
        work.wait()
    assert [x.item() for x in sums] == [1.0, 21.0]


@on_ranks(2)
def test_a_mode_has_no_late_ranks_to_set(rank, size, store):
    group = start(rank, size, store)
    with pytest.raises(ArgumentError, match="late"):
        _ = group.late
    with pytest.raises(ArgumentError, match="late"):
        group.late = 1
    assert group.reducer is group.engine


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


def _threads_of_gloo():
    """Those of this process, by the names that torch and Gloo give them."""
    names = []
    for task in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # it has ended
            names.append(task.read_text())
    return [name for name in names if "gloo" in name]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are seen on Linux alone")
@on_ranks(2)
def test_the_threads_of_gloo_end_with_a_group_that_is_destroyed(rank, size, store):
    """At the end of the program they would get in the way of the interpreter."""
    gc.disable()
    start(rank, size, store)
    dist.all_reduce(torch.ones(3))
    dist.barrier()
    assert _threads_of_gloo()
    together(store, rank, size, "summed")
    dist.destroy_process_group()
    assert not _threads_of_gloo()


TIMEOUT_S = 6.0  # set once the group is there, so that it is not about a slow start
SIZE = 3
VICTIM = 1
_ones = torch.ones
CALLS = {
    "all_gather": lambda: dist.all_gather([_ones(4) for _ in range(SIZE)], _ones(4)),
    "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(_ones(4 * SIZE), _ones(4)),
    "all_reduce": lambda: dist.all_reduce(_ones(4), dist.ReduceOp.MAX),
    "all_reduce of integers": lambda: dist.all_reduce(_ones(4).long(), dist.ReduceOp.AVG),
    "all_to_all_single": lambda: dist.all_to_all_single(_ones(4 * SIZE), _ones(4 * SIZE)),
    "barrier": dist.barrier,
    "broadcast": lambda: dist.broadcast(_ones(4), VICTIM),
    "broadcast_object_list": lambda: dist.broadcast_object_list([None], VICTIM),
    "recv": lambda: dist.recv(_ones(4), VICTIM),
    "reduce_scatter": lambda: dist.reduce_scatter(_ones(4), [_ones(4) for _ in range(SIZE)]),
    "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(_ones(4), _ones(4 * SIZE)),
    "scatter": lambda: dist.scatter(_ones(4), None, VICTIM),
}
AT_LENGTH = {"all_gather_into_tensor", "broadcast_object_list", "reduce_scatter", "scatter"}
"""For the backend below Gloo they are as others here."""


def _error_of_a_lost_call(rank, size, store, call, number):
    """What the call raises on the survivors; the victim sends itself this signal before it."""
    dist.barrier()
    dist.group.WORLD.set_timeout(timedelta(seconds=TIMEOUT_S))
    together(store, rank, size, "all ready")
    if rank == VICTIM:
        os.kill(os.getpid(), number)
        time.sleep(60)
    with pytest.raises((RuntimeError, RankFailure)) as caught:
        CALLS[call]()
    return caught.value


KILL = signal.SIGKILL
STOP = signal.SIGSTOP
DEAD = [(None, call, KILL) for call in sorted(CALLS.keys() - AT_LENGTH)]
LONG = [pytest.param(None, call, KILL, marks=pytest.mark.long) for call in sorted(AT_LENGTH)]
PLANNED = [(schedules.straggler(SIZE), call, KILL) for call in ("barrier", "recv")]
SILENT = [(None, call, STOP) for call in ("broadcast", "recv")]


@pytest.mark.parametrize(("schedule", "call", "number"), DEAD + PLANNED + SILENT + LONG)
@on_ranks(SIZE, timeout_s=80, victims={VICTIM})
def test_a_dead_or_silent_rank_is_named_by_all(rank, size, store, schedule, call, number):
    start(rank, size, store, schedule)
    dist.all_reduce(torch.ones(8))  # from now on the group has a control plane
    error = _error_of_a_lost_call(rank, size, store, call, number)
    assert error.ranks == (VICTIM,)


@on_ranks(SIZE, timeout_s=80, victims={VICTIM})
def test_without_a_control_plane_there_is_an_error_that_names_nobody(rank, size, store):
    start(rank, size, store)
    error = _error_of_a_lost_call(rank, size, store, "barrier", KILL)
    assert not isinstance(error, RankFailure)


@on_ranks(4)
def test_the_jobs_profile_counts_for_a_group_of_some_of_its_ranks(rank, size, store):
    """It is not measured anew: static decides by it, and must decide alike in every run."""
    profile = Profile(size, AlphaBeta(1e-2, 1e-9), AlphaBeta(1e-5, 1e-10), hosts=(size,))
    runtime.configure(mode="static", late=1, profile=profile)
    dist.init_process_group(runtime.BACKEND, store=store, rank=rank, world_size=size)
    some = dist.new_group([0, 1, 2])

    x = torch.tensor([float(rank)])
    dist.all_reduce(x)
    assert x.item() == 6.0
    if rank < 3:
        dist.all_reduce(x, group=some)
        assert x.item() == 18.0
        assert some.paths == {"mode static": 1}
        assert some.reducer.profile == profile.for_some(3)
    assert dist.group.WORLD.reducer.profile == profile
