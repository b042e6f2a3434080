"""Ranks that die, stop or disagree while operations are decided: named by all, or no harm done."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
import torch

from latecomer.runtime.host import host
from latecomer.runtime.policy.options import Options
from latecomer.verify.errors import ArgumentError, RankFailure, ScheduleRefused
from tests.runtime.jobs import dispatcher
from tests.runtime.simulated import on_hosts
from tests.runtime.spawning import spawn, together, values
from tests.simulation.execution import made_once

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


# Real processes; tests/runtime/policy/test_lost_while_deciding.py has more, on simulated hosts.
DEATHS = [(EAGER, 0, "during"), (EAGER, 1, "after")]  # the coordinator, and one that is not


@pytest.mark.parametrize(("options", "victim", "moment"), DEATHS)
def test_a_rank_that_dies_is_named_by_all(options, victim, moment):
    outcomes = spawn(_deaths, SIZE, options, victim, moment, timeout_s=40, victims=[victim])
    del outcomes[victim]
    assert values(outcomes) == [(victim,)] * (SIZE - 1)


def _dispatcher(rank, size, store, options, name):
    return dispatcher(rank, size, host.prefixed(name, store), options, TIMEOUT_S)


def _disagree(rank, size, store):
    options = Options("eager") if rank == 1 else Options("auto")
    differing = r"rank\(s\) 0, 2, 3" if rank == 1 else r"rank\(s\) 1"
    with pytest.raises(ArgumentError, match=differing):
        _dispatcher(rank, size, store, options, "options")

    reducer = _dispatcher(rank, size, store, EAGER, "buffers")
    reducer.submit(torch.ones(100)).wait()
    together(store, rank, size, "all have summed, before anything differs")
    with pytest.raises(RankFailure) as failed:
        reducer.submit(torch.ones(100 + (rank == 3))).wait()
    assert failed.value.ranks == (3,)
    with pytest.raises(RankFailure):
        reducer.submit(torch.ones(100))
    reducer.close()

    reducer = _dispatcher(rank, size, store, Options("static", late=(2,)), "decision")
    reducer.submit(torch.ones(100)).wait()
    together(store, rank, size, "all have summed again")
    if rank == 3:  # a rank gone wrong takes another one to be late
        agent = reducer.control_plane._agent
        agent.inputs.options = Options("static", late=(1,))
        agent._own_decision.cache_clear()  # of the sizes that it has decided before
    with pytest.raises((RankFailure, ScheduleRefused)) as failed:
        reducer.submit(torch.ones(100)).wait()
    assert 3 in failed.value.ranks
    reducer.close()


def test_ranks_that_disagree_are_named_and_nothing_is_summed():
    with made_once():
        on_hosts(SIZE, lambda job: _disagree)
