"""Threads that break: nobody waits for ever for what they would have done, and they are named."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from runtime.pipeline import Adaptation, Pipeline
from runtime.pipeline import load as load_pipeline
from runtime.pipeline.staging import HostStaging
from runtime.policy.agent import RankAgent
from runtime.policy.cost_model import Line, Profile
from runtime.policy.dispatcher import AllReduceDispatcher
from runtime.policy.options import Options
from tests.runtime.pipeline.models import batch, loss_fn, model
from tests.runtime.pipeline.test_gradients import MICROBATCHES, schedule, start
from tests.runtime.spawning import spawn, together, values
from tests.verify.pipeline.documents import one_f_one_b
from verify.errors import LatecomerError, RankFailure

SIZE, VICTIM = 3, 1
FAR_S = 600.0
"""A time-out that no test waits for: what ends the waits here is the error itself."""
SOON_S = 8.0
WAIT = timedelta(seconds=60)
PROFILE = Profile(SIZE, Line(1e-2, 1e-9), Line(1e-5, 1e-10))
NATIVE, STATIC = Options("native"), Options("static", late=(2,))


def _break(*args, **kwargs):
    raise KeyError("injected")


def _reducer(rank, size, store, options, timeout_s=FAR_S):
    return AllReduceDispatcher(
        store, rank, size, options=options, profile=PROFILE, timeout_s=timeout_s
    )


def _go_on(reducer):
    """Whom the error names that ends this; no wait is for long."""
    try:
        for _ in range(10_000):
            reducer.submit(torch.ones(90)).wait(WAIT)
    except RankFailure as failure:
        return failure.ranks
    return None


def _notes(rank, size, store, options):
    """The control plane breaks when it is told that an operation is done."""
    reducer = _reducer(rank, size, store, options)
    reducer.submit(torch.ones(90)).wait(WAIT)
    together(store, rank, size, "first is done")
    if rank == VICTIM:
        reducer.control_plane.done = _break
    return _go_on(reducer)


@pytest.mark.parametrize("options", [NATIVE, STATIC], ids=["native", "static"])
def test_a_rank_that_breaks_after_the_sum_is_named(options):
    assert values(spawn(_notes, SIZE, options, timeout_s=80)) == [(VICTIM,)] * SIZE


def _ticks(rank, size, store):
    """The thread breaks that says again what got lost."""
    reducer = _reducer(rank, size, store, Options("eager", threshold_s=0.1))
    if rank == VICTIM:
        RankAgent.handle_timer = _break
    return _go_on(reducer)


def test_a_control_plane_that_breaks_is_named():
    assert values(spawn(_ticks, SIZE, timeout_s=80)) == [(VICTIM,)] * SIZE


def _closes(rank, size, store, options):
    """All but rank 0 wait for rank 0, which does not come, and close."""
    reducer = _reducer(rank, size, store, options)
    reducer.submit(torch.ones(90)).wait(WAIT)
    if rank == 0:
        together(store, rank, size, "closed")
        reducer.close()
        return None
    operation = reducer.submit(torch.ones(90))
    reducer.close()
    together(store, rank, size, "closed")
    with pytest.raises(LatecomerError):
        operation.wait(WAIT)
    return None


@pytest.mark.parametrize("options", [NATIVE, STATIC], ids=["native", "static"])
def test_closing_ends_what_is_still_waited_for(options):
    values(spawn(_closes, SIZE, options, timeout_s=100))


def _pipeline(rank, size, store, method):
    """A thread that moves messages breaks on one rank."""
    start(rank, size, PrefixStore("gloo", store))
    plan = load_pipeline(schedule(one_f_one_b(size, MICROBATCHES)))
    if rank == VICTIM:
        setattr(HostStaging, method, _break)
        HostStaging.direct = False
    pipeline = Pipeline(
        model(size)[rank], plan, loss_fn, store=dist.PrefixStore("p", store), timeout_s=FAR_S
    )
    x, y = batch(0, MICROBATCHES)
    with pytest.raises(RankFailure) as failed:
        pipeline.step(*([x] if rank == 0 else []), target=y if rank == size - 1 else None)
    return failed.value.ranks, "injected" in str(failed.value)


@pytest.mark.parametrize("method", ["host", "empty", "land"])
def test_a_link_that_breaks_is_named(method):
    assert values(spawn(_pipeline, SIZE, method, timeout_s=80)) == [((VICTIM,), True)] * SIZE


HOST = """
from datetime import timedelta
from torch._C._distributed_c10d import TCPStore
import time
store = TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=60))
print(store.port, flush=True)
time.sleep(120)
"""


def _without_store(rank, size, store, how, adaptation):
    """After the first step the store goes; the second step and the end come all the same."""
    start(rank, size, PrefixStore("gloo", store))
    host = None
    if rank == 0:
        host = subprocess.Popen([sys.executable, "-c", HOST], stdout=subprocess.PIPE, text=True)
        store.set("port", host.stdout.readline().strip())
    place = TCPStore("127.0.0.1", int(store.get("port")), None, False, timedelta(seconds=60))
    plan = load_pipeline(schedule(one_f_one_b(size, MICROBATCHES)))
    pipeline = Pipeline(
        model(size)[rank],
        plan,
        loss_fn,
        store=place,
        timeout_s=SOON_S,
        adaptation=Adaptation() if adaptation else None,
    )
    inputs = [batch(0, MICROBATCHES)[0]] if rank == 0 else []
    target = batch(0, MICROBATCHES)[1] if rank == size - 1 else None
    try:
        pipeline.step(*inputs, target=target)
        together(store, rank, size, "stepped")
        if host is not None:
            os.kill(host.pid, how)
        together(store, rank, size, "gone")
        if adaptation:
            with pytest.raises(RankFailure):
                pipeline.step(*inputs, target=target)
        else:
            pipeline.step(*inputs, target=target)  # it needs no store
        pipeline.close()
        together(store, rank, size, "closed")
    finally:
        if host is not None:
            host.kill()


@pytest.mark.parametrize("adaptation", [False, True], ids=["plain", "adaptive"])
@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
def test_a_pipeline_whose_store_is_gone_ends(how, adaptation):
    values(spawn(_without_store, SIZE, how, adaptation, timeout_s=100))
