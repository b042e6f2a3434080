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
from runtime.executor.tcp.frames import HEADER
from synth.arrivals.generate import search
from tests.runtime import schedules
from tests.runtime.spawning import spawn, together
from verify.errors import LatecomerError, RankFailure

TIMEOUT_S = 15.0
"""Until a silent rank is named; that all are done before ``spawn``'s deadline is the check."""


class Fault(Observer):
    """Does something drastic at (operation, phase, round)."""

    def __init__(self, what, *place):
        self.what, self.place = what, place

    def step_begins(self, operation, phase, round):
        if (operation, phase, round) == self.place:
            if self.what == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            elif self.what == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            elif self.what == "stick":
                time.sleep(600)  # killed before
            elif self.what == "raise":
                raise RuntimeError("injected")


def _run(rank, size, store, victim, what, place):
    fault = Fault(what, *place) if rank == victim else None
    executor = Executor(
        load(schedules.straggler(size)), store, rank, size, timeout_s=TIMEOUT_S, observer=fault
    )
    try:
        for _ in range(5):
            executor.submit(torch.ones(50_000)).wait()
    except RankFailure as failure:
        with pytest.raises(RankFailure):
            executor.submit(torch.ones(3))
        executor.close()
        if rank == victim:
            return failure.ranks, None
        return failure.ranks, _new_group(rank, size, store, victim)
    return None


def _new_group(rank, size, store, victim):
    """The survivors start again among themselves, under a new prefix."""
    survivors = [r for r in range(size) if r != victim]
    executor = Executor(
        load(schedules.straggler(size - 1)),
        dist.PrefixStore("again", store),
        survivors.index(rank),
        size - 1,
        timeout_s=30,
    )
    total = executor.submit(torch.full((9,), float(rank))).wait()[0].item()
    executor.close()
    return total == sum(survivors)


PLACES = [
    (0, (2, "reduce_scatter", 0)),
    (1, (2, "completion", 1)),
    (2, (2, "reduce_scatter", 1)),
    (3, (2, "completion", 0)),
    (3, (2, "completion", 2)),
    (0, (0, "reduce_scatter", 0)),
]


@pytest.mark.parametrize(("victim", "place"), PLACES)
def test_a_killed_rank_is_named_by_all_survivors_and_a_new_group_works(victim, place):
    outcomes = spawn(_run, 4, victim, "kill", place, timeout_s=40)
    assert not outcomes[victim].finished
    for rank, outcome in enumerate(outcomes):
        if rank != victim:
            assert not outcome.error, outcome.error
            ranks, again = outcome.value
            assert ranks == (victim,)
            assert again is True


@pytest.mark.parametrize("what", ["stop", "stick"])
def test_a_silent_rank_is_named_within_the_time_set(what):
    outcomes = spawn(_run, 4, 2, what, (1, "completion", 2), timeout_s=40, victims=[2])
    for rank in (0, 1, 3):
        assert not outcomes[rank].error, outcomes[rank].error
        ranks, again = outcomes[rank].value
        assert ranks == (2,)
        assert again is True


@pytest.mark.parametrize("victim", [1, 3])
def test_a_rank_that_breaks_takes_nobody_with_it_silently(victim):
    outcomes = spawn(_run, 4, victim, "raise", (1, "completion", 1), timeout_s=40)
    for outcome in outcomes:
        assert not outcome.error, outcome.error
        ranks, _ = outcome.value
        assert ranks == (victim,)


def _talks_nonsense(rank, size, store, said):
    executor = Executor(load(schedules.ring(size)), store, rank, size, timeout_s=TIMEOUT_S)
    executor.submit(torch.ones(50)).wait()
    together(store, rank, size, "first is done")
    if rank == 1:
        executor._engine._connections[0]._socket.send(said)
    with pytest.raises(RankFailure):
        print([executor.submit(torch.ones(50)).wait() for _ in range(2)])
    executor.close()


@pytest.mark.parametrize("said", [b"\xff" * 64, HEADER.pack(9, 0, 1, 0, 0)])
def test_a_rank_that_talks_nonsense_is_an_error_on_all(said):
    for outcome in spawn(_talks_nonsense, 2, said, timeout_s=40):
        assert not outcome.error, outcome.error


def _closes_early(rank, size, store):
    """Rank 1 waits for rank 0, which has not entered, and closes."""
    executor = Executor(load(schedules.ring(size)), store, rank, size, timeout_s=60)
    if rank == 0:
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


def test_closing_ends_what_is_still_waited_for():
    outcomes = spawn(_closes_early, 2, timeout_s=40)
    assert [outcome.error for outcome in outcomes] == ["", ""]


def _never_comes(rank, size, store):
    executor = Executor(load(schedules.straggler(size)), store, rank, size, timeout_s=TIMEOUT_S)
    if rank == 3:
        store.wait([f"{other} has given up" for other in range(3)])
        with pytest.raises(RankFailure) as caught:
            executor.submit(torch.ones(10)).wait()
        return caught.value.ranks
    with pytest.raises(RankFailure, match="has not entered operation 0") as caught:
        executor.submit(torch.ones(10)).wait()
    store.set(f"{rank} has given up", "")
    return caught.value.ranks


def test_a_late_rank_that_never_comes_is_named_and_learns_it_when_it_does():
    outcomes = spawn(_never_comes, 4, timeout_s=40)
    assert [(o.value, o.error) for o in outcomes] == [((3,), "")] * 4


TWO_LATE = search(4, {2: 1, 3: 3}, m=1).schedule


def _two_late(rank, size, store, victim, place):
    """Rank 2 arrives 0.2 s, rank 3 0.6 s after the others; one dies at ``place`` in operation 1."""
    fault = Fault("kill", 1, *place) if rank == victim and place else None
    executor = Executor(load(TWO_LATE), store, rank, size, timeout_s=TIMEOUT_S, observer=fault)
    try:
        for number in range(3):
            time.sleep({2: 0.2, 3: 0.6}.get(rank, 0.0))
            if rank == victim and number == 1 and not place:
                os.kill(os.getpid(), signal.SIGKILL)
            executor.submit(torch.ones(50_000)).wait()
    except RankFailure as failure:
        return failure.ranks
    return None


@pytest.mark.parametrize(
    ("victim", "place"),
    [
        (2, ()),  # before it arrives
        (3, ()),
        (2, ("before 3", 1)),  # after it has arrived, before the other late rank has
        (2, ("completion", 1)),
        (3, ("completion", 2)),
    ],
)
def test_a_late_rank_that_dies_is_named_before_and_after_it_has_arrived(victim, place):
    outcomes = spawn(_two_late, 4, victim, place, timeout_s=40)
    assert not outcomes[victim].finished
    for rank in {0, 1, 2, 3} - {victim}:
        assert not outcomes[rank].error, outcomes[rank].error
        assert outcomes[rank].value == (victim,)


def _never_joins(rank, size, store):
    if rank == 1:
        return None
    store.set(f"{rank} is here", "")
    store.wait(["0 is here", "2 is here"])  # however late a process starts
    with pytest.raises(RankFailure, match="did not join") as caught:
        Executor(load(schedules.ring(size)), store, rank, size, timeout_s=2)
    return caught.value.ranks


def test_a_rank_that_never_joins_is_named():
    outcomes = spawn(_never_joins, 3)
    assert [(o.value, o.error) for o in outcomes] == [((1,), ""), (None, ""), ((1,), "")]


def _training(rank, size, store, way):
    dist.init_process_group(
        "gloo", store=dist.PrefixStore("first", store), rank=rank, world_size=size
    )
    if way == "backend":
        dist.destroy_process_group()
        runtime.configure(schedules.straggler(size))
        dist.init_process_group(
            "latecomer",
            store=dist.PrefixStore("second", store),
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=TIMEOUT_S),
        )
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(30, 30))
    if way == "hook":
        runtime.ddp.attach(model, schedules.straggler(size), timeout_s=TIMEOUT_S)
    for step in range(4):
        if rank == 1 and step == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            model(torch.ones(4, 30)).sum().backward()
        except Exception as error:
            return str(error)
    return "finished"


@pytest.mark.parametrize("way", ["hook", "backend"])
def test_backward_raises_and_names_the_rank(way):
    outcomes = spawn(_training, 4, way, timeout_s=40)
    for rank in (0, 2, 3):
        assert not outcomes[rank].error, outcomes[rank].error
        text = outcomes[rank].value
        assert "rank 1: dead or stopped" in text
