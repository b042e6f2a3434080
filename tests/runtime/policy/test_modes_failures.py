"""Ranks that die, stop or disagree while operations are decided: named by all, or no harm done."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time

import pytest
import torch
from torch._C._distributed_c10d import PrefixStore

from runtime.policy.cost_model import Line, Profile
from runtime.policy.dispatcher import AllReduceDispatcher
from runtime.policy.options import Options
from tests.runtime.spawning import spawn, together, values
from verify.errors import ArgumentError, RankFailure, ScheduleRefused

SIZE = 4
TIMEOUT_S = 15.0
PROFILE = Profile(SIZE, Line(1e-2, 1e-9), Line(1e-5, 1e-10))
EAGER = Options("eager", threshold_s=0.1)


def _reducer(rank, size, store, options=EAGER, timeout_s=TIMEOUT_S):
    return AllReduceDispatcher(
        store, rank, size, options=options, profile=PROFILE, timeout_s=timeout_s
    )


def _die():
    os.kill(os.getpid(), signal.SIGKILL)


def _deaths(rank, size, store, mode, victim, place):
    """The ranks that a survivor names."""
    reducer = _reducer(rank, size, store, EAGER if mode == "eager" else Options(mode))
    try:
        for number in range(6):
            if number == 3 and rank == victim:
                if place == "before":
                    _die()
                elif place == "during":  # it has come, and waits for the others and a decision
                    threading.Timer(0.05, _die).start()
                else:  # it runs the schedule that was decided
                    reducer.rounds.watched = range(10**9)
                    reducer.rounds.step_begins = lambda *_: store.set("begun", "") or _die()
            if number == 3 and place == "during" and rank != victim:
                time.sleep(0.4)
            if number == 3 and place == "after" and rank == 2:
                store.wait(["begun"])  # without it: it is late
            reducer.submit(torch.ones(50_000)).wait()
    except RankFailure as failure:
        return failure.ranks
    return None


@pytest.mark.parametrize(
    ("mode", "victim", "place"),
    [
        ("eager", 2, "before"),
        ("eager", 0, "before"),  # the coordinator
        ("eager", 0, "during"),
        ("eager", 1, "after"),
        ("native", 2, "before"),
        ("predict", 0, "during"),
    ],
)
def test_a_rank_that_dies_is_named_by_all(mode, victim, place):
    outcomes = spawn(_deaths, SIZE, mode, victim, place, timeout_s=40)
    assert not outcomes[victim].finished
    for rank in {*range(SIZE)} - {victim}:
        assert not outcomes[rank].error, outcomes[rank].error
        assert outcomes[rank].value == (victim,)


def _stop_for_a_while(stop_s):
    subprocess.Popen(["sh", "-c", f"sleep {stop_s}; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)


def _stops(rank, size, store, stop_s):
    """Ranks 2 and 0 (the coordinator) stop, one after the other, and come back."""
    reducer = _reducer(rank, size, store, timeout_s=30.0)
    sums = []
    for number in range(30):
        if (rank, number) in ((2, 5), (0, 15)):
            _stop_for_a_while(stop_s)
        tensor = torch.full((20_000,), float(rank + number))
        sums.append(reducer.submit(tensor).wait()[7].item())
    late = {record.late for record in reducer.records}
    reducer.close()
    return sums, late


@pytest.mark.parametrize("stop_s", [1.5, pytest.param(5.0, marks=pytest.mark.long)])
def test_ranks_that_stop_and_come_back_do_no_harm(stop_s):
    outcomes = values(spawn(_stops, SIZE, stop_s, timeout_s=60))
    for sums, late in outcomes:
        assert sums == [6.0 + SIZE * number for number in range(30)]
        assert (2,) in late  # the others went ahead without it


def _disagree(rank, size, store):
    """Texts of what is raised when ranks differ: in options, in buffers, in the decision itself."""
    found = []
    options = Options("eager") if rank == 1 else Options("auto")
    with pytest.raises(ArgumentError) as refused:
        _reducer(rank, size, PrefixStore("options", store), options)
    found.append(str(refused.value))

    reducer = _reducer(rank, size, PrefixStore("buffers", store))
    reducer.submit(torch.ones(100)).wait()
    operation = reducer.submit(torch.ones(100 + (rank == 3)))
    with pytest.raises(RankFailure) as failed:
        operation.wait()
    found.append(failed.value.ranks)
    with pytest.raises(RankFailure):
        reducer.submit(torch.ones(100))

    together(store, rank, size, "buffers differed")
    reducer = _reducer(rank, size, PrefixStore("decision", store), Options("static", late=(2,)))
    reducer.submit(torch.ones(100)).wait()
    if rank == 3:  # a rank gone wrong takes another one to be late
        reducer.control_plane._agent.inputs.options = Options("static", late=(1,))
    tensor = torch.ones(100)
    with pytest.raises((RankFailure, ScheduleRefused)) as failed:
        reducer.submit(tensor).wait()
    found.append(failed.value.ranks)
    return found


def test_ranks_that_disagree_are_named_and_nothing_is_summed():
    for rank, (options, buffers, decision) in enumerate(values(spawn(_disagree, SIZE))):
        assert "rank(s) 1" in options if rank != 1 else "rank(s) 0, 2, 3" in options
        assert buffers == (3,)
        assert 3 in decision
