"""Dead, stopped and stuck ranks, at named places: everybody else raises and names them."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import runtime
from runtime import Executor, Observer, load
from tests.runtime import schedules
from tests.runtime.jobs import start
from tests.runtime.spawning import on_ranks
from verify.errors import RankFailure

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


ONE_LATE, TWO_LATE = schedules.straggler(4), schedules.arrivals(4, {2: 1, 3: 3})
KILL, STOP = signal.SIGKILL, signal.SIGSTOP
CASES = [
    (ONE_LATE, 0, KILL, (0, "reduce_scatter", 0)),
    (ONE_LATE, 2, KILL, (2, "reduce_scatter", 1)),
    (ONE_LATE, 1, KILL, (2, "completion", 1)),
    (ONE_LATE, 3, KILL, (2, "completion", 0)),
    (ONE_LATE, 2, STOP, (1, "completion", 2)),
    (ONE_LATE, 2, "stick", (1, "completion", 2)),
    (ONE_LATE, 1, "raise", (1, "completion", 1)),
    (ONE_LATE, 3, "raise", (1, "completion", 1)),
    (TWO_LATE, 2, KILL, ()),  # before it arrives
    (TWO_LATE, 3, KILL, ()),
    (TWO_LATE, 2, KILL, (1, "before 3", 1)),  # after it has, before the other late rank
    (TWO_LATE, 3, KILL, (1, "completion", 2)),
]


@pytest.mark.parametrize(
    ("schedule", "culprit", "what", "place", "victim"),
    [(*case, None if "raise" in case else case[1]) for case in CASES],
)
@on_ranks(4, timeout_s=40)
def test_a_lost_rank_is_named_by_all_others_and_a_new_group_works(
    rank, size, store, schedule, culprit, what, place, victim
):
    """Without a ``place`` it dies before it arrives at operation 1."""
    fault = Fault(what, *place) if rank == culprit and place else None
    executor = Executor(load(schedule), store, rank, size, timeout_s=TIMEOUT_S, observer=fault)
    late_s = {2: 0.2, 3: 0.6}.get(rank, 0.0) if len(schedule.late) == 2 else 0.0

    def run():
        for number in range(5):
            time.sleep(late_s)
            if rank == culprit and number == 1 and not place:
                os.kill(os.getpid(), what)
            executor.submit(torch.ones(50_000)).wait()

    with pytest.raises(RankFailure) as failed:
        run()
    assert failed.value.ranks == (culprit,)
    with pytest.raises(RankFailure):
        executor.submit(torch.ones(3))
    executor.close()
    if rank != culprit:  # the survivors start again among themselves, under a new prefix
        others = [r for r in range(size) if r != culprit]
        again = dist.PrefixStore("again", store), others.index(rank), size - 1
        executor = Executor(load(schedules.straggler(size - 1)), *again, timeout_s=30)
        assert executor.submit(torch.full((9,), float(rank))).wait()[0].item() == sum(others)
        executor.close()


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


@pytest.mark.parametrize("backend", ["gloo", "latecomer"])
@on_ranks(4, timeout_s=40, victims={1})
def test_backward_raises_and_names_the_rank(rank, size, store, backend):
    """By the hook and by the backend."""
    start(rank, size, store, ONE_LATE, timeout_s=TIMEOUT_S, backend=backend)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(30, 30))
    if backend == "gloo":
        runtime.ddp.attach(model, ONE_LATE, timeout_s=TIMEOUT_S)
    for _ in range(2):
        model(torch.ones(4, 30)).sum().backward()
    if rank == 1:
        os.kill(os.getpid(), KILL)
    with pytest.raises((RuntimeError, RankFailure), match="rank 1: dead or stopped"):
        model(torch.ones(4, 30)).sum().backward()
