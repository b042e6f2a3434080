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

from latecomer.runtime.policy.options import Options
from latecomer.verify.errors import ArgumentError, RankFailure, ScheduleRefused
from tests.runtime.jobs import dispatcher
from tests.runtime.spawning import on_ranks, spawn, together, values

SIZE = 4
TIMEOUT_S = 15.0  # with 6 s a busy machine did not always start the groups in time
EAGER = Options("eager", threshold_s=0.1)


def _die():
    os.kill(os.getpid(), signal.SIGKILL)


def _deaths(rank, size, store, options, victim, moment):
    """The ranks that a survivor names; the victim dies at its second operation.

    That is before, during or after the operation's decision.
    """

    def begin_and_die(*_):
        store.set("begun", "")
        _die()

    reducer = dispatcher(rank, size, store, options, TIMEOUT_S)
    reducer.submit(torch.ones(50_000)).wait()
    reducer.timeout_s = 6.0  # by which the others notice a coordinator that says no more

    if rank == victim:
        if moment == "before":
            _die()
        elif moment == "during":  # it has come, and waits for the others and a decision
            threading.Timer(0.05, _die).start()
        else:  # it runs the schedule that was decided
            reducer.rounds.watched = range(10**9)
            reducer.rounds.step_begins = begin_and_die
    elif moment == "during":
        time.sleep(0.4)
    elif moment == "after" and rank == 2:
        store.wait(["begun"])  # without it: it is late

    def go_on():
        for _ in range(3):
            reducer.submit(torch.ones(50_000)).wait()

    with pytest.raises(RankFailure) as failed:
        go_on()
    return failed.value.ranks


DEATHS = [
    (EAGER, 2, "before"),
    (EAGER, 0, "before"),  # the coordinator, here and below where it is 0
    (EAGER, 0, "during"),
    (EAGER, 1, "after"),
    (Options("native"), 2, "before"),
    (Options("predict"), 0, "during"),
]


@pytest.mark.parametrize(("options", "victim", "moment"), DEATHS)
def test_a_rank_that_dies_is_named_by_all(options, victim, moment):
    outcomes = spawn(_deaths, SIZE, options, victim, moment, timeout_s=40, victims=[victim])
    del outcomes[victim]
    assert values(outcomes) == [(victim,)] * (SIZE - 1)


@pytest.mark.parametrize("stop_s", [1.5, pytest.param(5.0, marks=pytest.mark.long)])
@on_ranks(SIZE, timeout_s=60)
def test_ranks_that_stop_and_come_back_do_no_harm(rank, size, store, stop_s):
    """Ranks 2 and 0 (the coordinator) stop, one after the other."""
    reducer = dispatcher(rank, size, store, EAGER, 30.0)
    for number in range(30):
        if (rank, number) in ((2, 5), (0, 15)):
            subprocess.Popen(["sh", "-c", f"sleep {stop_s}; kill -CONT {os.getpid()}"])
            os.kill(os.getpid(), signal.SIGSTOP)
        tensor = torch.full((20_000,), float(rank + number))
        assert reducer.submit(tensor).wait()[7].item() == 6.0 + SIZE * number
    # the others went ahead without it
    assert (2,) in {record.late for record in reducer.records}
    reducer.close()


@on_ranks(SIZE)
def test_ranks_that_disagree_are_named_and_nothing_is_summed(rank, size, store):
    options = Options("eager") if rank == 1 else Options("auto")
    differing = r"rank\(s\) 0, 2, 3" if rank == 1 else r"rank\(s\) 1"
    with pytest.raises(ArgumentError, match=differing):
        dispatcher(rank, size, PrefixStore("options", store), options, TIMEOUT_S)

    reducer = dispatcher(rank, size, PrefixStore("buffers", store), EAGER, TIMEOUT_S)
    reducer.submit(torch.ones(100)).wait()
    operation = reducer.submit(torch.ones(100 + (rank == 3)))
    with pytest.raises(RankFailure) as failed:
        operation.wait()
    assert failed.value.ranks == (3,)
    with pytest.raises(RankFailure):
        reducer.submit(torch.ones(100))

    together(store, rank, size, "buffers differed")
    static = Options("static", late=(2,))
    reducer = dispatcher(rank, size, PrefixStore("decision", store), static, TIMEOUT_S)
    reducer.submit(torch.ones(100)).wait()
    if rank == 3:  # a rank gone wrong takes another one to be late
        agent = reducer.control_plane._agent
        agent.inputs.options = Options("static", late=(1,))
        agent._own_decision.cache_clear()  # of the sizes that it has decided before
    with pytest.raises((RankFailure, ScheduleRefused)) as failed:
        reducer.submit(torch.ones(100)).wait()
    assert 3 in failed.value.ranks
