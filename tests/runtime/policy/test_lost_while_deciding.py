"""Ranks that die or stop while operations are decided (simulated): named, or no harm is done."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch

from latecomer.runtime.host import host
from latecomer.runtime.policy.options import Options
from tests.runtime.jobs import dispatcher
from tests.runtime.simulated import NEVER_S, blamed_by, die, on_hosts, stop
from tests.simulation.execution import made_once

SIZE = 4
FAR = timedelta(seconds=300)
EAGER = Options("eager", threshold_s=0.1)
DEATHS = [
    (EAGER, 2, "before"),
    (EAGER, 0, "before"),  # the coordinator, here and below where it is 0
    (EAGER, 0, "during"),
    (EAGER, 2, "during"),
    (EAGER, 1, "after"),
    (EAGER, 0, "after"),
    (Options("auto"), 0, "during"),
    (Options("auto"), 3, "before"),
    (Options("native"), 2, "before"),
    (Options("native"), 2, "during"),
    (Options("static", late=(2,)), 1, "during"),
    (Options("predict"), 0, "during"),
]


def dying(options, victim, moment):
    """A job whose victim dies at its second operation.

    That is before, during or after the operation's decision.
    """

    def made(job):
        def body(rank, size, store):
            reducer = dispatcher(rank, size, store, options, 6.0)
            reducer.submit(torch.ones(5_000)).wait()

            def begin_and_die(*_):
                store.set("begun", "")
                die(job, rank)

            if rank == victim and moment == "before":
                die(job, rank)
            elif rank == victim and moment == "during":
                job.world.after(0.05, job.kill, rank)  # it has come, and waits for the others
            elif rank == victim:  # it runs the schedule that was decided
                reducer.rounds.watched = range(10**9)
                reducer.rounds.step_begins = begin_and_die
            elif moment == "during":
                host.sleep(0.4)
            elif moment == "after" and rank == 3:
                store.wait(["begun"], FAR)  # without it: it is late

            return blamed_by(reducer, elements=5_000, operations=3)

        return body

    return made


@pytest.mark.parametrize(("options", "victim", "moment"), DEATHS)
def test_a_rank_that_dies_is_named_by_all(options, victim, moment):
    with made_once():
        jobs = on_hosts(SIZE, dying(options, victim, moment), victims=[victim])
    for outcomes in jobs:
        named = {outcomes[rank].result for rank in range(SIZE) if rank != victim}
        assert named == {(victim,)}


@pytest.mark.parametrize("stop_s", [1.5, 5.0, 9.0])
def test_ranks_that_stop_and_come_back_do_no_harm(stop_s):
    """Ranks 2 and 0 (the coordinator) stop, one after the other."""

    def made(job):
        def body(rank, size, store):
            reducer = dispatcher(rank, size, store, EAGER, 30.0)
            for number in range(20):
                if (rank, number) in ((2, 5), (0, 12)):
                    stop(job, rank, stop_s)
                tensor = torch.full((2_000,), float(rank + number))
                assert reducer.submit(tensor).wait()[7].item() == 6.0 + SIZE * number
            reducer.close()
            return {record.late for record in reducer.records}

        return body

    with made_once():
        jobs = on_hosts(SIZE, made)
    for outcomes in jobs:
        assert (2,) in outcomes[0].result  # the others went ahead without it


def test_a_rank_that_stops_for_good_is_named_and_the_check_can_fail():
    def made(job):
        def body(rank, size, store):
            reducer = dispatcher(rank, size, store, EAGER, 6.0)
            reducer.submit(torch.ones(50)).wait()
            if rank == 1:
                stop(job, rank, NEVER_S)
            return blamed_by(reducer, elements=50, operations=1)

        return body

    with made_once():
        for outcomes in on_hosts(SIZE, made, victims=[1]):
            assert {outcomes[rank].result for rank in (0, 2, 3)} == {(1,)}
        with pytest.raises(AssertionError, match="seed 0"):
            on_hosts(SIZE, made)  # where no victim is expected
