"""A rank or a thread that goes no further, at any place: nobody waits for ever, and it is named.

The store's own time-out is 60 s and nobody waits for so long here: what ends a wait is ours.
"""

from __future__ import annotations

import contextlib
import os
import pkgutil
import signal
import socket
import time
from datetime import timedelta

import pytest
import torch
from torch._C._distributed_c10d import TCPStore

from latecomer import runtime
from latecomer.runtime import Executor, load
from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.runtime.optireduce.engine import OptiReduceEngine
from latecomer.runtime.pipeline import Adaptation
from latecomer.runtime.policy import profile as profiling
from latecomer.runtime.policy.agent import RankAgent
from latecomer.runtime.policy.cost_model import read
from latecomer.runtime.policy.dispatcher import AllReduceDispatcher
from latecomer.runtime.policy.options import Options
from latecomer.runtime.samebits.repetition import connect_repetition
from latecomer.verify.errors import RankFailure
from tests.runtime import jobs, schedules
from tests.runtime.pipeline.models import run_step
from tests.runtime.spawning import on_ranks, together

SIZE = 3
VICTIM = 1
FAR_S = 600.0
SOON_S = 8.0
"""Time-outs: of which no test waits for the end, as the error itself ends its waits; and does."""
WAIT = timedelta(seconds=60)
NATIVE = Options("native")
EAGER = Options("eager")


def _executor(rank, size, store, timeout_s=SOON_S):
    return Executor(load(schedules.ring(size)), store, rank, size, timeout_s=timeout_s)


def _dispatcher(rank, size, store):
    return jobs.dispatcher(rank, size, store, EAGER, SOON_S)


def _pipeline(rank, size, store):
    return jobs.pipeline(rank, size, store, SOON_S)


def _optireduce(rank, size, store):
    return OptiReduceEngine(store, rank, size, timeout_s=SOON_S)


def _same_bits(rank, size, store):
    executor = _executor(rank, size, store)
    group = StoreExchange(store, rank, size, SOON_S)
    try:
        return connect_repetition(group.under("repetition"), executor.watchdog)
    finally:
        executor.close()


STARTS = {
    "executor": _executor,
    "dispatcher": _dispatcher,
    "pipeline": _pipeline,
    "optireduce": _optireduce,
    "same bits": _same_bits,
}
# Real processes. tests/runtime/test_lost_starts.py has the other steps, on simulated hosts.
CASES = [
    ("executor", "latecomer.runtime.executor.executor.agree"),
    ("dispatcher", "latecomer.runtime.executor.native.NativeAllReduce"),
    ("optireduce", "latecomer.runtime.optireduce.engine.meet"),
    ("pipeline", "latecomer.runtime.pipeline.pipeline.Pipeline._require_same_schedule"),
    ("same bits", "latecomer.runtime.samebits.repetition.NativeRepetition"),
]


@pytest.mark.parametrize(("start", "step"), CASES)
@on_ranks(SIZE, timeout_s=50, victims=[VICTIM])
def test_a_rank_that_dies_at_a_start_is_named(rank, size, store, start, step):
    """The victim goes no further than to this function, which the start calls."""

    def stop(*args, **kwargs):
        os._exit(1)

    owner, name = step.rsplit(".", 1)
    assert callable(pkgutil.resolve_name(step))
    if rank == VICTIM:
        setattr(pkgutil.resolve_name(owner), name, stop)

    with pytest.raises(RankFailure) as caught:
        STARTS[start](rank, size, store)
    assert caught.value.ranks == (VICTIM,)


@pytest.fixture
def port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


@pytest.mark.slow_first
@pytest.mark.parametrize("missing", [0, 2, None])
@on_ranks(SIZE, timeout_s=80)
def test_profiling_names_the_missing_or_gives_all_what_it_writes(
    rank, size, store, missing, port, tmp_path
):
    os.environ["RANK"] = str(rank)
    os.environ["WORLD_SIZE"] = str(size)
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = str(port)
    file = tmp_path / "profile.json"
    if rank == missing:
        return
    profiling.CLASSES = range(12, 14)  # this process's own
    if missing is None:
        profile = profiling.run(AllReduceDispatcher, file, timeout_s=SOON_S)
        together(store, rank, size, "written")
        assert profile == read(file)
        assert profile.on_time.keys() >= {12, 13}
    else:
        with pytest.raises(RankFailure) as caught:
            profiling.run(AllReduceDispatcher, file, timeout_s=SOON_S)
        assert caught.value.ranks == (missing,)
        assert not file.exists()


@on_ranks(SIZE, timeout_s=60)
def test_a_watch_reports_without_a_rank_that_does_not_tell_and_names_it(rank, size, store):
    """The victim leaves the first block by an exception: the others report without it."""
    reducer = jobs.dispatcher(rank, size, store, NATIVE, 30)
    alignment = reducer.source.alignment

    def slow_alignment():  # a record takes its time: it is there nevertheless
        time.sleep(0.2)
        return alignment()

    reducer.source.alignment = slow_alignment

    for missing in ((VICTIM,), ()):
        watched = runtime.watch(wait_s=2.0 if missing else 30.0)
        with contextlib.suppress(ValueError), watched:
            reducer.submit(torch.ones(9)).wait()
            if rank in missing:
                raise ValueError("not so far")
        if rank in missing:
            continue

        summary = watched.summary()
        reporting = sorted(set(range(SIZE)) - set(missing))
        assert summary.missing == missing
        assert sorted(report.rank for report in watched.ranks) == reporting
        is_missing_said = "nothing was received from rank(s) 1" in str(summary)
        assert is_missing_said is (VICTIM in missing)
        assert {len(report.records) for report in watched.ranks} == {1}
    reducer.close()


def _break(*args, **kwargs):
    raise KeyError("injected")


TICKING = Options("eager", threshold_s=0.1)


@pytest.mark.parametrize(
    ("options", "part"),
    [(NATIVE, "done"), (TICKING, "handle_timer")],
    ids=["native", "the thread that says again what got lost"],
)
@on_ranks(SIZE, timeout_s=80)
def test_a_control_plane_that_breaks_is_named(rank, size, store, options, part):
    """When it is told that an operation is done, or at its timer."""
    reducer = jobs.dispatcher(rank, size, store, options, FAR_S)
    reducer.submit(torch.ones(90)).wait(WAIT)
    together(store, rank, size, "first is done")
    if rank == VICTIM:
        setattr(reducer.control_plane if part == "done" else RankAgent, part, _break)

    def go_on():
        for _ in range(10_000):  # no wait is for long
            reducer.submit(torch.ones(90)).wait(WAIT)

    with pytest.raises(RankFailure) as failed:
        go_on()
    assert failed.value.ranks == (VICTIM,)


@pytest.fixture
def store_to_lose():
    """A store in a process of its own: the process's number, and the port."""
    with jobs.store_process() as (process, port):
        yield process.pid, port


@pytest.mark.slow_first
@pytest.mark.parametrize(
    ("adaptation", "number"),
    [(None, signal.SIGSTOP), (Adaptation(), signal.SIGKILL)],
    ids=["plain", "adaptive"],
)
@on_ranks(SIZE, timeout_s=100)
def test_a_pipeline_whose_store_is_gone_ends(rank, size, store, number, adaptation, store_to_lose):
    """A real store; tests/runtime/pipeline/test_on_hosts.py has all cases, on simulated hosts."""
    process, port = store_to_lose
    pipeline_store = TCPStore("127.0.0.1", port, None, False, timedelta(seconds=60))
    running = jobs.pipeline(rank, size, store, SOON_S, pipeline_store, adaptation=adaptation)
    run_step(running, 0)
    together(store, rank, size, "stepped")
    if rank == 0:
        os.kill(process, number)
    together(store, rank, size, "gone")

    with pytest.raises(RankFailure) if adaptation else contextlib.nullcontext():
        for _ in range(3):  # what one rank had of the store by then may do for a step
            run_step(running, 0)  # it needs no store, if it does not adapt
    running.close()
    together(store, rank, size, "closed")
