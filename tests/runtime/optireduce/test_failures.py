"""What fails over TCP, in the warm-up or later, is the engine's failure too, with its type."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from runtime import ddp
from runtime.optireduce.engine import Engine
from runtime.optireduce.options import Options
from runtime.optireduce.sync import Replicas
from tests.runtime.spawning import spawn, together, values
from verify.errors import RankFailure

SIZE, VICTIM = 3, 1
TIMEOUT_S = 8.0
WAIT = timedelta(seconds=60)
WARM = Options(warmup_steps=20, reliable_steps=19, dead_s=90.0)
OVER_UBT = Options(warmup_steps=0, bound_s=5.0, dead_s=90.0)
"""What UBT suspects takes longer than the test: it is not what notices."""


def _started(store, rank, size, options, timeout_s=TIMEOUT_S):
    """An engine that has reduced once."""
    engine = Engine(store, rank, size, options=options, timeout_s=timeout_s)
    engine.submit(torch.ones(1000)).wait(WAIT)
    return engine


def _die(rank):
    if rank == VICTIM:
        os.kill(os.getpid(), signal.SIGKILL)


def _named(engine, error):
    """Whom the engine's failure names, if that is what was raised and will be."""
    assert engine.failure is error
    with pytest.raises(RankFailure) as again:
        engine.submit(torch.ones(9))
    assert again.value is error
    return error.ranks


def _warm_up(rank, size, store):
    engine = _started(store, rank, size, WARM)
    assert engine.failure is None
    _die(rank)
    operation = engine.submit(torch.ones(1000))
    with pytest.raises(RankFailure) as failed:
        operation.wait(WAIT)
    ranks = _named(engine, failed.value)
    engine.close()
    return ranks


def _resync(rank, size, store):
    engine = _started(store, rank, size, OVER_UBT)
    replicas = Replicas([nn.Parameter(torch.ones(100))], engine.reliable)
    together(store, rank, size, "before")
    _die(rank)
    with pytest.raises(RankFailure) as failed:
        replicas.resync()
    ranks = _named(engine, failed.value)
    engine.close()
    return ranks


def _open_over_ubt(rank, size, store):
    """An operation over UBT that waits for a rank ends when that rank is found dead over TCP."""
    engine = _started(store, rank, size, replace(OVER_UBT, absence_s=300.0))
    together(store, rank, size, "before")
    _die(rank)
    open_ = engine.submit(torch.ones(1000))
    with pytest.raises(RankFailure) as failed:
        engine.reliable.gather([1.0])
    with pytest.raises(RankFailure) as ended:
        open_.wait(WAIT)
    assert ended.value is failed.value
    ranks = _named(engine, failed.value)
    engine.close()
    return ranks


def _hook(rank, size, store):
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=WAIT)
    model = DistributedDataParallel(nn.Linear(30, 30))
    attachment = ddp.attach(model, algorithm="optireduce", options=WARM, timeout_s=TIMEOUT_S)
    for _ in range(2):
        model(torch.ones(4, 30)).sum().backward()
    _die(rank)
    loss = model(torch.ones(4, 30)).sum()
    with pytest.raises(RuntimeError, match="rank 1: dead or stopped"):
        loss.backward()
    return _named(attachment.engine, attachment.engine.failure)


@pytest.mark.parametrize("body", [_warm_up, _resync, _open_over_ubt, _hook])
def test_a_rank_that_dies_is_named_by_the_engine_s_failure(body):
    outcomes = spawn(body, SIZE, timeout_s=80)
    assert not outcomes[VICTIM].finished
    for rank in {*range(SIZE)} - {VICTIM}:
        assert outcomes[rank].finished, f"rank {rank} died or hung"
        assert not outcomes[rank].error, outcomes[rank].error
        assert outcomes[rank].value == (VICTIM,)


def test_closing_is_no_failure():
    outcomes = spawn(_closes, 2, timeout_s=60)
    assert [(o.value, o.error) for o in outcomes] == [(None, "")] * 2


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_dies_or_stops_over_ubt_is_named_by_all_others(how):
    outcomes = spawn(_dies, SIZE, how, timeout_s=100)
    assert not outcomes[VICTIM].finished
    assert values([outcomes[0], outcomes[2]]) == [(VICTIM,), (VICTIM,)]


def _dies(rank, size, store, how):
    engine = _started(store, rank, size, replace(OVER_UBT, dead_s=3.0), timeout_s=30)
    store.set(f"pid/{rank}", str(os.getpid()))
    if rank == VICTIM:
        os.kill(os.getpid(), how)
    with pytest.raises(RankFailure) as failed:
        [engine.submit(torch.ones(1000)).wait(WAIT) for _ in range(50)]
    store.set(f"raised/{rank}", "")
    store.wait(["raised/0", "raised/2"], WAIT)
    if rank == 0 and how == signal.SIGSTOP:
        os.kill(int(store.get(f"pid/{VICTIM}")), signal.SIGKILL)
    engine.close()
    return failed.value.ranks


def _closes(rank, size, store):
    engine = _started(store, rank, size, WARM)
    together(store, rank, size, "done")
    engine.close()
    return engine.failure
