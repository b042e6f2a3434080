"""Reduce-scatters and all-gathers of the backend, against Gloo's, and which way they go."""

from __future__ import annotations

import os
import signal

import pytest
import torch
import torch.distributed as dist

from latecomer import runtime
from latecomer.runtime.backend import LEAST_OF_TWO
from latecomer.runtime.policy.on_time import ENOUGH
from latecomer.verify.errors import RankFailure, TensorError
from tests.runtime.jobs import start
from tests.runtime.spawning import on_ranks, spawn, together

DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.uint8]


def _numbers(rank, count, dtype):
    return (torch.arange(count) % 5 + rank).to(dtype)


@pytest.mark.parametrize("size_of_job", [3, 4])
def test_they_give_what_gloo_gives_whichever_way_they_go(size_of_job):
    for outcome in spawn(_as_gloo, size_of_job):
        assert outcome.finished, outcome
        assert not outcome.error, outcome.error


def _as_gloo(rank, size, store):
    group = start(rank, size, store)
    gloo = dist.new_group(backend="gloo")
    for number in range(2 * ENOUGH * len(DTYPES)):  # every way is tried
        dtype = DTYPES[number % len(DTYPES)]
        part = (0, 1, 7, 1000)[number // len(DTYPES) % 4]
        given = _numbers(rank + number % 8, size * part, dtype)
        before = given.clone()

        ours = torch.zeros(part, dtype=dtype)
        expected = torch.zeros(part, dtype=dtype)
        dist.reduce_scatter_tensor(ours, given)
        dist.reduce_scatter_tensor(expected, before, group=gloo)
        assert torch.equal(ours, expected), (number, dtype, part)
        assert torch.equal(given, before)

        whole = torch.zeros(size, part, dtype=dtype)
        if number % 2:
            own = whole[rank]
            own.copy_(ours)
        else:
            own = ours
        work = dist.all_gather_into_tensor(whole, own, async_op=True)
        work.wait()
        assert work.is_completed()
        everybody = torch.zeros(size * part, dtype=dtype)
        dist.all_gather_into_tensor(everybody, expected, group=gloo)
        assert torch.equal(whole.flatten(), everybody), (number, dtype, part)

    assert set(group.paths) == {"reduce_scatter: mode auto", "all_gather: mode auto"}
    dist.destroy_process_group()


@on_ranks(2)
def test_between_two_ranks_only_large_ones_are_ours(rank, size, store):
    group = start(rank, size, store)
    for part in (10, LEAST_OF_TWO // 8):
        whole = torch.zeros(size * part)
        dist.all_gather_into_tensor(whole, torch.full((part,), rank + 1.0))
        assert whole.tolist() == [1.0] * part + [2.0] * part
        own = torch.zeros(part)
        dist.reduce_scatter_tensor(own, whole)
        assert own.tolist() == [2.0 * (rank + 1)] * part
    assert dict(group.paths) == {
        "all_gather: small, of two ranks": 1,
        "reduce_scatter: small, of two ranks": 1,
        "all_gather: mode auto": 1,
        "reduce_scatter: mode auto": 1,
    }
    dist.destroy_process_group()


@on_ranks(3)
def test_averages_and_what_can_not_be_carried(rank, size, store):
    group = start(rank, size, store)
    for _ in range(3 * ENOUGH):  # by the library, too
        mean = torch.zeros(4)
        given = torch.arange(12.0) * 3 * (rank + 1)  # a third of it is exact
        dist.reduce_scatter_tensor(mean, given, op=dist.ReduceOp.AVG)
        assert mean.tolist() == (torch.arange(12.0) * 6)[4 * rank : 4 * rank + 4].tolist()
        assert given.tolist() == (torch.arange(12.0) * 3 * (rank + 1)).tolist()

    greatest = torch.zeros(2)
    dist.reduce_scatter_tensor(greatest, torch.full((6,), float(rank)), op=dist.ReduceOp.MAX)
    assert greatest.tolist() == [2.0, 2.0]
    flags = torch.zeros(3, dtype=torch.bool)
    dist.all_gather_into_tensor(flags, torch.tensor([rank == 1]))
    assert flags.tolist() == [False, True, False]
    with pytest.raises((RuntimeError, ValueError)):
        dist.all_gather_into_tensor(torch.zeros(7), torch.zeros(2))

    both = [torch.zeros(3), torch.zeros(6)]
    ones = [torch.ones(1), torch.ones(2)]
    group.allgather_into_tensor_coalesced(both, ones).wait()
    assert [tensor.unique().tolist() for tensor in both] == [[1.0], [1.0]]

    assert group.paths["all_gather: several tensors at once"] == 1
    assert group.paths["reduce_scatter: operation MAX"] == 1
    assert group.paths["all_gather: dtype torch.bool"] == 1
    engine = group.engine
    with pytest.raises(TensorError, match="are not 3 parts of"):
        engine.all_gather(torch.zeros(7), torch.zeros(2))
    with pytest.raises(TensorError, match="are not 3 parts of"):
        engine.reduce_scatter(torch.zeros(2, dtype=torch.int32), torch.zeros(6))
    together(store, rank, size, "over")
    dist.destroy_process_group()


@on_ranks(3)
def test_the_watch_says_how_they_ran(rank, size, store):
    group = start(rank, size, store)
    dist.all_reduce(torch.zeros(10))
    with runtime.watch(group.reducer) as watched:
        for _ in range(40):
            dist.all_gather_into_tensor(torch.zeros(30), torch.zeros(10))
    summary = watched.summary()
    ways = {way.split()[0] for way in summary.ways}
    assert ways == {"all_gather"}
    assert any(not way.endswith(" native") for way in summary.ways), summary.ways
    assert all("no rank can be left out" in r or "to compare" in r for r in summary.reasons)
    dist.destroy_process_group()


@pytest.mark.parametrize("options", [{"mode": "native"}, {"mode": "auto", "bits": "same"}])
@on_ranks(2)
def test_elsewhere_they_are_the_librarys(rank, size, store, options):
    runtime.configure(**options)
    dist.init_process_group(runtime.BACKEND, store=store, rank=rank, world_size=size)
    group = dist.group.WORLD
    whole = torch.zeros(2)
    dist.all_gather_into_tensor(whole, torch.tensor([float(rank)]))
    assert whole.tolist() == [0.0, 1.0]
    assert not group.paths
    dist.destroy_process_group()


def test_a_dead_rank_is_named():
    outcomes = spawn(_loses_rank_2, 3, victims=(2,))
    for outcome in outcomes[:2]:
        assert outcome.value == "[2]", outcome


def _loses_rank_2(rank, size, store):
    start(rank, size, store, timeout_s=20)
    whole = torch.zeros(3000)
    for number in range(200):
        if (rank, number) == (2, 100):
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            dist.all_gather_into_tensor(whole, torch.full((1000,), float(number)))
        except RankFailure as failure:
            return str(list(failure.ranks))
        assert whole.unique().tolist() == [float(number)]
    return "nothing"
