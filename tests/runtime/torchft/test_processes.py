"""Replicas that are processes: one is killed, stopped, late, or dies as it joins."""

from __future__ import annotations

import os
import signal
import threading
from datetime import timedelta

import pytest
from torch.distributed import TCPStore

from latecomer.runtime.torchft.process_group import ProcessGroup
from latecomer.verify.errors import RankFailure
from tests.runtime.spawning import on_ranks
from tests.runtime.torchft.quorums import (
    PROFILE,
    announce,
    configure,
    failure_of,
    names,
    ones,
    total,
)

REPLICAS = names(4)
SIZE = len(REPLICAS)
LATE = 3
TIMEOUT_S = 600.0  # so late may a replica be: a test that waited for that would not end in time
SILENCE_S = 0.5
JOIN_S = 60.0


def _group(**options):
    defaults = {"timeout": TIMEOUT_S, "silence": SILENCE_S, "join_timeout": JOIN_S}
    return ProcessGroup(profile=PROFILE, **(defaults | options))


def _joined(store, rank, quorum="first", *, owner=0, replicas=REPLICAS, **options):
    """This rank's process group, in a quorum whose store the replica ``owner`` serves."""
    served = None
    if rank == owner:
        served = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        store.set(f"where {quorum}", f"127.0.0.1:{served.port}")
    where = store.get(f"where {quorum}").decode()
    group = options.pop("group", None)
    if group is None:
        group = _group(**options)
    configure(group, where, quorum, replicas.index(REPLICAS[rank]), replicas)
    return group, served


def _survive(store, rank, victim, group, pending):
    """All-reduces that wait for who is gone fail, and name it; the others go on without it."""
    for work in pending:
        assert work.wait() is False
        failure = failure_of(work)
        assert isinstance(failure, RankFailure)
        assert failure.ranks == (victim,)
        assert f"rank {victim} is replica {REPLICAS[victim]}" in str(failure)
    assert group.errored().ranks == (victim,)

    left = [name for number, name in enumerate(REPLICAS) if number != victim]
    owner = 0 if victim else 1
    group, served = _joined(store, rank, "second", owner=owner, replicas=left, group=group)
    tensor = ones()
    assert total(group, tensor).wait()
    assert tensor[0] == len(left)
    _leave(store, rank, group, set(range(SIZE)) - {victim})
    del served


def _leave(store, rank, group, others):
    """The process ends when the others are done, too: none may be missed before."""
    store.set(f"done {rank}", "")
    store.wait([f"done {other}" for other in others], timedelta(seconds=60))
    group.shutdown()


def _late(store, rank):
    """One that comes when the others have waited for longer than anybody may be silent."""
    if rank == LATE:
        threading.Event().wait(3 * SILENCE_S)


@pytest.mark.parametrize("mode", ["auto", "static"])
@pytest.mark.parametrize("victim", [0, 1])
@on_ranks(SIZE)
def test_one_is_killed_while_another_is_late(rank, size, store, victim, mode):
    late = {REPLICAS[LATE]} if mode == "static" else ()
    group, served = _joined(store, rank, mode=mode, late=late)
    assert total(group, ones()).wait()
    if rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    _late(store, rank)
    _survive(store, rank, victim, group, [total(group, ones()) for _ in range(2)])
    del served


@pytest.mark.parametrize("victim", [1])
@on_ranks(SIZE)
def test_one_is_stopped(rank, size, store, victim):
    group, served = _joined(store, rank)
    assert total(group, ones()).wait()
    if rank == victim:
        os.kill(os.getpid(), signal.SIGSTOP)
    _survive(store, rank, victim, group, [total(group, ones())])
    del served


@on_ranks(SIZE)
def test_one_is_late_for_longer_than_it_may_be_silent(rank, size, store):
    group, served = _joined(store, rank)
    for late in range(2):
        if rank == late:
            threading.Event().wait(4 * SILENCE_S)
        tensor = ones()
        assert total(group, tensor).wait()
        assert tensor[0] == SIZE
    _leave(store, rank, group, range(SIZE))
    del served


@pytest.mark.parametrize("victim", [2])
@on_ranks(SIZE)
def test_one_dies_as_it_joins(rank, size, store, victim):
    """The others learn so within the time to join, and are none the worse for it.

    That is short, so it begins when all processes have loaded what they need.
    """
    joining = _group(join_timeout=2.0)
    store.set(f"loaded {rank}", "")
    store.wait([f"loaded {other}" for other in range(size)], timedelta(seconds=60))
    if rank == victim:
        announce(joining, store.get("where first").decode(), "first", rank)
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(RankFailure) as failed:
        _joined(store, rank, group=joining)
    assert failed.value.ranks == (victim,)
    left = [name for number, name in enumerate(REPLICAS) if number != victim]
    group, served = _joined(store, rank, "second", replicas=left)
    tensor = ones()
    assert total(group, tensor).wait()
    assert tensor[0] == len(left)
    _leave(store, rank, group, set(range(SIZE)) - {victim})
    del served


@pytest.mark.parametrize("victim", [2])
@on_ranks(SIZE)
def test_a_collective_of_gloos_ends_with_the_name_of_who_is_gone(rank, size, store, victim):
    group, served = _joined(store, rank)
    assert total(group, ones()).wait()
    if rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(RankFailure) as failed:
        group.barrier().wait()
    assert failed.value.ranks == (victim,)
    _survive(store, rank, victim, group, [total(group, ones())])
    del served
