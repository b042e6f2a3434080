"""Dead, stopped and stuck ranks, at named places: everybody else raises and names them."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import runtime
from runtime import Executor, Observer, load
from tests.runtime import schedules
from tests.runtime.spawning import on_ranks, spawn
from verify.errors import LatecomerError, RankFailure

TIMEOUT_S = 15.0
"""Until a silent rank is named; that all are done before ``spawn``'s deadline is the check."""


class Fault(Observer):
    """Does something drastic at (operation, phase, round)."""

    def __init__(self, what, *place):
        self.what, self.place = what, place

    def step_begins(self, operation, phase, round):
        if (operation, phase, round) == self.place:
            if self.what == "stick":
                time.sleep(600)  # killed before
            elif self.what == "raise":
                raise RuntimeError("injected")
            else:
                os.kill(os.getpid(), self.what)


def _run(rank, size, store, schedule, victim, what, place, late):
    """Whom the failure names, and whether a new group of the survivors works.

    Without a ``place`` the victim dies before it arrives at operation 1.
    """
    fault = Fault(what, *place) if rank == victim and place else None
    executor = Executor(load(schedule), store, rank, size, timeout_s=TIMEOUT_S, observer=fault)
    try:
        for number in range(5):
            time.sleep(late * {2: 0.2, 3: 0.6}.get(rank, 0.0))
            if rank == victim and number == 1 and not place:
                os.kill(os.getpid(), what)
            executor.submit(torch.ones(50_000)).wait()
    except RankFailure as failure:
        with pytest.raises(RankFailure):
            executor.submit(torch.ones(3))
        executor.close()
        return failure.ranks, rank == victim or _new_group(rank, size, store, victim)
    return None


def _new_group(rank, size, store, victim):
    """The survivors start again among themselves, under a new prefix."""
    survivors = [r for r in range(size) if r != victim]
    place = dist.PrefixStore("again", store), survivors.index(rank), size - 1
    executor = Executor(load(schedules.straggler(size - 1)), *place, timeout_s=30)
    total = executor.submit(torch.full((9,), float(rank))).wait()[0].item()
    executor.close()
    return total == sum(survivors)


ONE_LATE, TWO_LATE = schedules.straggler(4), schedules.arrivals(4, {2: 1, 3: 3})
KILL, STOP = signal.SIGKILL, signal.SIGSTOP


@pytest.mark.parametrize(
    ("schedule", "victim", "what", "place"),
    [
        (ONE_LATE, 0, KILL, (2, "reduce_scatter", 0)),
        (ONE_LATE, 1, KILL, (2, "completion", 1)),
        (ONE_LATE, 2, KILL, (2, "reduce_scatter", 1)),
        (ONE_LATE, 3, KILL, (2, "completion", 0)),
        (ONE_LATE, 3, KILL, (2, "completion", 2)),
        (ONE_LATE, 0, KILL, (0, "reduce_scatter", 0)),
        (ONE_LATE, 2, STOP, (1, "completion", 2)),
        (ONE_LATE, 2, "stick", (1, "completion", 2)),
        (ONE_LATE, 1, "raise", (1, "completion", 1)),
        (ONE_LATE, 3, "raise", (1, "completion", 1)),
        (TWO_LATE, 2, KILL, ()),  # before it arrives
        (TWO_LATE, 3, KILL, ()),
        (TWO_LATE, 2, KILL, (1, "before 3", 1)),  # after it has, before the other late rank
        (TWO_LATE, 2, KILL, (1, "completion", 1)),
        (TWO_LATE, 3, KILL, (1, "completion", 2)),
    ],
)
def test_a_lost_rank_is_named_by_all_others_and_a_new_group_works(schedule, victim, what, place):
    dies, late = what != "raise", schedule is TWO_LATE
    silent = {victim} if what in (STOP, "stick") else ()
    arguments = schedule, victim, what, place, late
    outcomes = spawn(_run, 4, *arguments, timeout_s=40, victims=silent)
    assert outcomes[victim].finished != dies
    for rank in {*range(4)} - ({victim} if dies else set()):
        assert not outcomes[rank].error, outcomes[rank].error
        assert outcomes[rank].value == ((victim,), True)


@on_ranks(4, timeout_s=40)
def test_a_late_rank_that_never_comes_is_named_and_learns_it_when_it_does(rank, size, store):
    executor = Executor(load(ONE_LATE), store, rank, size, timeout_s=TIMEOUT_S)
    if rank == 3:
        store.wait([f"{other} has given up" for other in range(3)])
    reason = "has not entered operation 0" if rank < 3 else ""
    with pytest.raises(RankFailure, match=reason) as caught:
        executor.submit(torch.ones(10)).wait()
    store.set(f"{rank} has given up", "")
    assert caught.value.ranks == (3,)


@on_ranks(2, timeout_s=40)
def test_closing_ends_what_is_still_waited_for(rank, size, store):
    executor = Executor(load(schedules.ring(size)), store, rank, size, timeout_s=60)
    if rank == 0:  # it does not enter
        store.wait(["closed"])
        executor.close()
        return
    operation = executor.submit(torch.ones(50))
    executor.close()
    with pytest.raises(LatecomerError, match="closed"):
        operation.wait(timedelta(seconds=1))
    with pytest.raises(LatecomerError, match="closed"):
        executor.submit(torch.ones(1))
    store.set("closed", "1")


def _training(rank, size, store, backend):
    runtime.configure(ONE_LATE)
    timeout = timedelta(seconds=TIMEOUT_S)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(30, 30))
    if backend == "gloo":
        runtime.ddp.attach(model, ONE_LATE, timeout_s=TIMEOUT_S)
    for step in range(4):
        if rank == 1 and step == 2:
            os.kill(os.getpid(), KILL)
        try:
            model(torch.ones(4, 30)).sum().backward()
        except Exception as error:
            return str(error)
    return "finished"


@pytest.mark.parametrize("backend", ["gloo", "latecomer"])
def test_backward_raises_and_names_the_rank(backend):
    outcomes = spawn(_training, 4, backend, timeout_s=40)
    for rank in (0, 2, 3):
        assert not outcomes[rank].error, outcomes[rank].error
        assert "rank 1: dead or stopped" in outcomes[rank].value
