"""A rank that goes no further at a start, on simulated hosts: nobody waits for ever, it is named.

At a start a rank that waits for the missing one may itself be named by others that wait for it; one
at least names the missing one, and where all wait for that alone all do
(docs/explanation/executor.md). tests/runtime/test_lost_errors.py has real processes.
"""

from __future__ import annotations

import pkgutil
from unittest import mock

import pytest
import torch

from latecomer.runtime import Executor, load
from latecomer.runtime.host import host
from latecomer.runtime.optireduce.engine import OptiReduceEngine
from latecomer.runtime.optireduce.options import Options as Lossy
from latecomer.runtime.policy.dispatcher import AllReduceDispatcher
from latecomer.runtime.policy.options import Options
from latecomer.verify.errors import LatecomerError, RankFailure
from tests.runtime import jobs, schedules
from tests.runtime.pipeline import test_on_hosts as pipelines
from tests.runtime.simulated import NEVER_S, blamed_by, die, on_hosts
from tests.simulation.execution import made_once

SIZE = 3
VICTIM = 1
SOON_S = 8.0
FAR_S = 600.0
RING = load(schedules.ring(SIZE))
EAGER = Options("eager")
NATIVE = Options("native")
STATIC = Options("static", late=(2,))


def executor(rank, size, store, timeout_s=SOON_S):
    return Executor(RING, store, rank, size, timeout_s=timeout_s)


def dispatcher(rank, size, store):
    return jobs.dispatcher(rank, size, store, EAGER, SOON_S)


def measuring(rank, size, store):
    return AllReduceDispatcher(store, rank, size, options=EAGER, timeout_s=SOON_S)


def optireduce(rank, size, store):
    return OptiReduceEngine(store, rank, size, options=Lossy(compiled="off"), timeout_s=SOON_S)


def pipeline(rank, size, store):
    return pipelines.pipeline(rank, store, SOON_S)


STEPS = [
    (executor, "latecomer.runtime.executor.executor.agree"),
    (executor, "latecomer.runtime.executor.executor.ControlChannel"),
    (executor, "latecomer.runtime.executor.executor.connect"),
    (dispatcher, "latecomer.runtime.policy.dispatcher.candidates"),
    (dispatcher, "latecomer.runtime.policy.dispatcher.require_equal"),
    (dispatcher, "latecomer.runtime.policy.dispatcher.shared_profile"),
    (optireduce, "latecomer.runtime.optireduce.engine.meet"),
    (optireduce, "latecomer.runtime.optireduce.engine.Reliable"),
    (pipeline, "latecomer.runtime.pipeline.pipeline.ControlChannel"),
    (pipeline, "latecomer.runtime.pipeline.pipeline.Watchdog"),
    (pipeline, "latecomer.runtime.pipeline.pipeline.Transport"),
]
CASES = [(start, step, fault) for start, step in STEPS for fault in ("dies", "is silent")]
# there Gloo connects or works, which a rank that lives and does not come holds up unnamed
CASES.append((measuring, "latecomer.runtime.policy.profile.measure", "dies"))


def starting(start, step, fault):
    """A job whose victim goes no further than to a function that the start calls."""
    real = pkgutil.resolve_name(step)

    def made(job):
        def body(rank, size, store):
            with pytest.raises(RankFailure) as caught:
                start(rank, size, store)
            return caught.value.ranks

        def going_no_further(*args, **kwargs):
            rank = job.world.rank
            if rank == VICTIM and fault == "dies":
                die(job, rank)
            elif rank == VICTIM:
                host.sleep(NEVER_S)
            return real(*args, **kwargs)

        patches.append(mock.patch(step, going_no_further))
        patches[-1].start()
        return body

    patches = []
    return made, patches


@pytest.mark.parametrize(("start", "step", "fault"), CASES)
def test_a_rank_that_goes_no_further_at_a_start_is_named(start, step, fault):
    made, patches = starting(start, step, fault)
    try:
        with made_once():
            results = on_hosts(SIZE, made, victims=[VICTIM])
    finally:
        for patch in reversed(patches):
            patch.stop()
    for outcomes in results:
        assert {outcomes[rank].result for rank in (0, 2)} == {(VICTIM,)}


@pytest.mark.parametrize("options", [None, NATIVE, STATIC], ids=["executor", "native", "static"])
def test_closing_ends_what_is_still_waited_for(options):
    """Rank 1 waits for the others, who do not come, and closes. (Two would notice each other.)"""

    def made(job):
        def body(rank, size, store):
            if options is None:
                running = executor(rank, size, store, FAR_S)
            else:
                running = jobs.dispatcher(rank, size, store, options, FAR_S)
            running.submit(torch.ones(90)).wait()
            if rank != 1:
                host.sleep(100.0)
                running.close()
                return

            operation = running.submit(torch.ones(90))
            running.close()
            with pytest.raises(LatecomerError, match="closed"):
                operation.wait()
            with pytest.raises(LatecomerError, match="closed"):
                running.submit(torch.ones(1))
            assert job.elapsed_s() < 90.0  # the others have not come

        return body

    with made_once():
        on_hosts(SIZE, made)


@pytest.mark.parametrize("options", [NATIVE, STATIC], ids=["native", "static"])
def test_a_control_plane_that_breaks_is_named(options):
    """When it is told that an operation is done."""

    def breaks(*args, **kwargs):
        raise KeyError("injected")

    def made(job):
        def body(rank, size, store):
            reducer = jobs.dispatcher(rank, size, store, options, FAR_S)
            reducer.submit(torch.ones(90)).wait()
            if rank == VICTIM:
                reducer.control_plane.done = breaks

            return blamed_by(reducer, elements=90, operations=1000)

        return body

    with made_once():
        results = on_hosts(SIZE, made)
    for outcomes in results:
        assert {outcome.result for outcome in outcomes.values()} == {(VICTIM,)}
