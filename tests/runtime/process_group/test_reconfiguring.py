"""Groups go on with other ranks, by c10d's own interface, where torch has it."""

from __future__ import annotations

import os
import signal
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import HashStore, TCPStore

import latecomer
from latecomer.runtime.policy.cost_model import AlphaBeta, Profile
from latecomer.runtime.process_group.reconfiguring import HANDLE, Meeting
from latecomer.runtime.torch_versions import RECONFIGURES
from latecomer.verify.errors import ArgumentError, RankFailure
from tests.runtime.spawning import on_ranks, together

SIZE = 4
TIMEOUT = timedelta(seconds=60)
COST = AlphaBeta(alpha_s=1e-4, beta_s=1e-8)
PROFILE = Profile(ranks=SIZE, native=COST, schedule=COST)
VICTIM = 1

only_where_there = pytest.mark.skipif(
    not RECONFIGURES, reason="torch reconfigures groups from 2.14 on"
)


def _started(store, rank):
    """The default group, which waits to be told with whom."""
    latecomer.configure(mode="auto", profile=PROFILE)
    served = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    dist.init_process_group(
        "latecomer", store=served, rank=0, world_size=1, timeout=TIMEOUT, enable_reconfigure=True
    )
    group = dist.group.WORLD
    assert group.supports_reconfigure
    assert dist._supports_reconfigure()
    store.set(f"handle {rank}", dist._get_reconfigure_handle())
    return group


def _go_on(store, group, uuid, members):
    handles = [store.get(f"handle {member}").decode() for member in members]
    assert dist._reconfigure(uuid=uuid, handles=handles, group=group, timeout=TIMEOUT).wait()


def _require_sums(group, rank, members):
    """An all-reduce, ours, and a collective of Gloo's."""
    assert (dist.get_rank(), dist.get_world_size()) == (members.index(rank), len(members))
    assert (group.rank(), group.size()) == (members.index(rank), len(members))
    tensor = torch.tensor([2**rank])
    dist.all_reduce(tensor)
    assert tensor.item() == sum(2**member for member in members)
    gathered = [torch.empty(1, dtype=torch.int64) for _ in members]
    dist.all_gather(gathered, torch.tensor([rank]))
    assert [each.item() for each in gathered] == members


@only_where_there
@on_ranks(SIZE)
def test_the_ranks_are_those_of_the_handles_in_their_order(rank, size, store):
    group = _started(store, rank)
    for uuid, members in enumerate([[0, 1, 2, 3], [2, 0], [3, 1, 0, 2], [1]], start=1):
        if rank in members:
            _go_on(store, group, uuid, members)
            _require_sums(group, rank, members)
            assert group._get_backend(torch.device("cpu")).get_error().name == "SUCCESS"
        together(store, rank, size, f"{uuid} is over")
    assert group.paths["mode auto"] == 2 + (rank in (0, 2))


@only_where_there
@pytest.mark.parametrize("victim", [VICTIM])
@on_ranks(SIZE)
def test_the_others_go_on_without_one_that_dies(rank, size, store, victim):
    group = _started(store, rank)
    _go_on(store, group, 1, [0, 1, 2, 3])
    _require_sums(group, rank, [0, 1, 2, 3])
    if rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(RankFailure) as failed:
        dist.all_reduce(torch.ones(1000))
    assert failed.value.ranks == (victim,)
    assert group._get_backend(torch.device("cpu")).get_error().name == "COMM_ERROR"

    left = [0, 2, 3]
    _go_on(store, group, 2, left)
    _require_sums(group, rank, left)
    store.set(f"done {rank}", "")
    store.wait([f"done {member}" for member in left])


@only_where_there
@on_ranks(2)
def test_a_group_that_was_aborted_may_go_on(rank, size, store):
    group = _started(store, rank)
    _go_on(store, group, 1, [0, 1])
    _require_sums(group, rank, [0, 1])
    together(store, rank, size, "summed")
    group.abort()
    _go_on(store, group, 2, [1, 0])
    _require_sums(group, rank, [1, 0])
    together(store, rank, size, "over")


@given(others=st.integers(0, 5), data=st.data())
def test_a_place_is_that_of_the_own_handle(others, data):
    """The store of the first is asked for; so the first is this process, or a copy of its store."""
    meeting = Meeting(HashStore(), TIMEOUT)
    store = HANDLE.decode(meeting.handle).store
    handles = [f'{{"process": "{other}", "store": "{store}"}}' for other in range(others)]
    position = data.draw(st.integers(0, others))
    handles.insert(position, meeting.handle)
    group = meeting.group(1, handles, TIMEOUT)
    assert (group.rank, group.world_size) == (position, others + 1)
    assert meeting.group(1, set(handles), TIMEOUT).rank == sorted(handles).index(meeting.handle)
    with pytest.raises(ArgumentError, match="own handle once"):
        meeting.group(1, [*handles, meeting.handle], TIMEOUT)


@pytest.mark.parametrize(
    "handles", [[], ["nonsense"], ['{"process": "x", "store": "127.0.0.1:1"}']]
)
def test_handles_that_are_none_are_refused(handles):
    with pytest.raises(ArgumentError) as refused:
        Meeting(HashStore(), TIMEOUT).group(1, handles, TIMEOUT)
    assert refused.value.name == "handles"


def test_each_process_has_a_handle_of_its_own():
    one = Meeting(HashStore(), TIMEOUT)
    other = Meeting(HashStore(), TIMEOUT)
    assert HANDLE.decode(one.handle).process != HANDLE.decode(other.handle).process
