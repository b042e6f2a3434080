"""Files of ranks that reduce in earnest: by a schedule, over UBT, killed, or left open."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from latecomer import runtime
from latecomer.runtime.optireduce.options import Options as OptiReduceOptions
from latecomer.runtime.policy.options import Options
from latecomer.runtime.telemetry.follower import Follower
from latecomer.runtime.telemetry.session import watch_by_environment
from latecomer.verify.errors import ArgumentError
from tests.runtime.jobs import dispatcher, start
from tests.runtime.spawning import on_ranks, python, together
from tests.runtime.telemetry.ranks import MadeUpRank, lines_of

PATIENCE_S = 120.0  # against hangs
VICTIM = 1


def _followed(directory):
    follower = Follower(directory)
    follower.read()
    return follower


@on_ranks(3, timeout_s=60)
def test_ranks_write_what_they_tell_each_other_at_the_end(rank, size, store, tmp_path):
    """With the rounds that were asked for; the dispatcher is closed within the block."""
    reducer = dispatcher(rank, size, store, Options("static", late=(2,)), 60.0)
    with runtime.watch(reducer, directory=tmp_path, rounds=range(2)) as watched:
        for _ in range(5):
            reducer.submit(torch.ones(1000)).wait()
        together(store, rank, size, "done")
        reducer.close()
    together(store, rank, size, "over")

    follower = _followed(tmp_path)
    assert follower.totals.operations == 5
    assert follower.unreadable == 0
    for written, told in zip(follower.last_ranks(100), watched.ranks, strict=True):
        assert written.records == told.records
        assert len(written.rounds) == len(told.rounds) > 0
        assert {ended.operation for ended in written.rounds} == {0, 1}
        assert (written.messages, written.origin) == (told.messages, told.origin)
    assert {record.late for record in follower.last_ranks(100)[0].records} == {(2,)}


@on_ranks(2, timeout_s=110)
def test_stages_and_losses_over_ubt_are_written_too(rank, size, store, tmp_path):
    place = {"store": dist.PrefixStore("gloo", store), "rank": rank, "world_size": size}
    dist.init_process_group("gloo", **place)
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    options = OptiReduceOptions(warmup_steps=4, bound_floor_s=4.0, dead_s=20.0)
    attachment = runtime.ddp.attach(model, algorithm="optireduce", options=options)
    steps = []
    with runtime.watch(directory=tmp_path, on_step=steps.append) as watched:
        for _ in range(8):
            model(torch.ones(2, 64)).sum().backward()
    together(store, rank, size, "over")
    attachment.close()

    for written, told in zip(_followed(tmp_path).last_ranks(100), watched.ranks, strict=True):
        assert written.records == told.records
        assert written.stages == told.stages
        assert [step.step for step in written.steps] == [step.step for step in told.steps]
    assert [step["operations"] for step in steps] == ([1] * 8 if rank == 0 else [])


@on_ranks(2, timeout_s=60, victims=(VICTIM,))
def test_a_rank_that_is_killed_leaves_what_it_did(rank, size, store, tmp_path):
    reducer = dispatcher(rank, size, store, Options("native"), 60.0)
    watched = runtime.watch(reducer, directory=tmp_path)
    watched.__enter__()
    for _ in range(10):
        reducer.submit(torch.ones(1000)).wait()
    if rank == VICTIM:
        _until_written(tmp_path, VICTIM)
        os.kill(os.getpid(), signal.SIGKILL)
    for each in range(size):
        _until_written(tmp_path, each)
    follower = _followed(tmp_path)
    assert len(follower.last_ranks(100)[VICTIM].records) == 10
    assert not follower.stories[VICTIM].state.over
    reducer.close(at_once=True)


def _until_written(directory, rank):
    give_up_s = time.monotonic() + PATIENCE_S
    while sum("operation" in line for line in lines_of(directory, rank)) < 10:
        assert time.monotonic() < give_up_s
        time.sleep(0.05)


LEFT_OPEN = """
import sys
from latecomer import runtime
from tests.runtime.telemetry.ranks import MadeUpRank

rank = MadeUpRank()
watched = runtime.watch(directory=sys.argv[1])
watched.__enter__()
for _ in range(3):
    rank.reduce()
{end}
"""


@pytest.mark.parametrize(("end", "code"), [("", 0), ("sys.exit(3)", 3), ("1 / 0", 1)])
def test_a_program_that_ends_within_the_block_has_told_all(tmp_path, end, code):
    result = python("-c", LEFT_OPEN.format(end=end), str(tmp_path))
    assert result.returncode == code, result.stderr
    (rank,) = _followed(tmp_path).last_ranks(100)
    assert len(rank.records) == 3


def _train(model, steps):
    for _ in range(steps):
        model(torch.ones(2, 64)).sum().backward()


def _operations(directory, rank):
    return sum("operation" in line for line in lines_of(directory, rank))


@on_ranks(2, timeout_s=60)
def test_the_environment_has_a_job_watched_from_attach_to_close(
    rank, size, store, tmp_path, monkeypatch
):
    monkeypatch.setenv("LATECOMER_WATCH", str(tmp_path / "watched"))
    place = {"store": dist.PrefixStore("gloo", store), "rank": rank, "world_size": size}
    dist.init_process_group("gloo", **place)
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    attachment = runtime.ddp.attach(model, mode="native")
    _train(model, steps=4)
    attachment.close()
    together(store, rank, size, "over")

    follower = _followed(tmp_path / "watched")
    assert [len(told.records) for told in follower.last_ranks(100)] == [4, 4]
    assert follower.stories[rank].state.over


@on_ranks(2, timeout_s=60)
def test_a_watch_of_the_script_takes_the_place_of_the_environments(
    rank, size, store, tmp_path, monkeypatch
):
    monkeypatch.setenv("LATECOMER_WATCH", str(tmp_path))
    reducer = dispatcher(rank, size, store, Options("native"), 60.0)
    watch_by_environment(reducer.source)
    reducer.submit(torch.ones(10)).wait()
    with runtime.watch(reducer, directory=tmp_path / "own") as watched:
        for _ in range(3):
            reducer.submit(torch.ones(10)).wait()
    reducer.close()
    together(store, rank, size, "over")

    assert _operations(tmp_path, rank) == 1
    assert _operations(tmp_path / "own", rank) == 3
    assert [len(told.records) for told in watched.ranks] == [3, 3]


@on_ranks(3, timeout_s=60)
def test_of_a_backends_groups_the_one_of_all_ranks_is_watched(
    rank, size, store, tmp_path, monkeypatch
):
    """Files are named by rank: those of a group of two would be mixed up with others'."""
    monkeypatch.setenv("LATECOMER_WATCH", str(tmp_path))
    start(rank, size, store)
    pair = dist.new_group([1, 2])
    if rank > 0:
        dist.all_reduce(torch.ones(4), group=pair)
    assert not list(tmp_path.iterdir())

    for _ in range(2):
        dist.all_reduce(torch.ones(4))
    together(store, rank, size, "reduced")
    dist.destroy_process_group()
    together(store, rank, size, "over")
    assert [_operations(tmp_path, rank) for rank in range(size)] == [2, 2, 2]


def test_without_the_environment_nothing_is_watched(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made_up = MadeUpRank()
    watch_by_environment(made_up.source)
    assert made_up.source.end_of_watch_by_environment is None

    monkeypatch.setenv("LATECOMER_PROMETHEUS", "nowhere:at:all")
    with pytest.raises(ArgumentError, match="LATECOMER_PROMETHEUS"):
        watch_by_environment(made_up.source)
    made_up.source.close()
    assert not list(tmp_path.iterdir())
