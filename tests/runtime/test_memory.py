"""A tensor is its caller's alone once its operation is done: no cycle keeps it until one is sought.

A job that sums new tensors, as FSDP does, would hold gigabytes of old ones otherwise.
"""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
import torch.distributed as dist

from latecomer.runtime import Executor, load
from latecomer.runtime.optireduce.engine import OptiReduceEngine
from latecomer.runtime.optireduce.options import Options as Ubt
from latecomer.runtime.policy.options import Options
from latecomer.runtime.work import CollectiveWork
from tests.runtime import jobs, schedules
from tests.runtime.spawning import on_ranks

OPERATIONS = 9
HELD = 3  # of the last ones, by variables of threads that wait for the next
TIMEOUT_S = 20.0


def _executor(rank, size, store):
    return Executor(load(schedules.ring(size)), store, rank, size, timeout_s=TIMEOUT_S)


def _optireduce(rank, size, store):
    options = Ubt(warmup_steps=2, reliable_steps=1)
    return OptiReduceEngine(store, rank, size, options=options, timeout_s=TIMEOUT_S)


def _in_mode(mode):
    def start(rank, size, store):
        options = Options(mode, late=(1,) if mode == "static" else ())
        return jobs.dispatcher(rank, size, store, options, TIMEOUT_S)

    return start


ENGINES = {
    "executor": _executor,
    "optireduce": _optireduce,
    **{mode: _in_mode(mode) for mode in ("auto", "eager", "predict", "native", "static")},
}


def _forgotten(run):
    """Whether the tensors of operations are, which ``run`` makes, runs and has done.

    Not of the very first one, with which things are made that are made once.
    """
    gc.disable()
    run()
    tensors = [weakref.ref(run()) for _ in range(OPERATIONS)]
    return [tensor() is None for tensor in tensors[:-HELD]]


@pytest.mark.parametrize("engine", ENGINES)
@on_ranks(2, timeout_s=60)
def test_engines_forget_what_they_have_summed(rank, size, store, engine):
    running = ENGINES[engine](rank, size, store)

    def run():
        return running.submit(torch.ones(1000)).wait()

    assert all(_forgotten(run))
    running.close()


@on_ranks(2, timeout_s=60)
def test_a_group_forgets_what_it_has_scattered_gathered_and_told(rank, size, store):
    jobs.start(rank, size, store)

    def run():
        whole = torch.ones(1000)
        part = torch.empty(1000 // size)
        dist.all_reduce(whole, async_op=True).get_future().wait()
        dist.reduce_scatter_tensor(part, whole)
        dist.all_gather_into_tensor(whole, part)
        return whole

    assert all(_forgotten(run))
    dist.destroy_process_group()


@on_ranks(2, timeout_s=60)
def test_a_cycle_would_be_noticed(rank, size, store):
    executor = _executor(rank, size, store)

    def run():
        work = executor.submit(torch.ones(1000))
        work.told = work.wait  # a method of its own
        return work.wait()

    assert isinstance(executor.submit(torch.ones(10)), CollectiveWork)
    assert not any(_forgotten(run))
    executor.close()
