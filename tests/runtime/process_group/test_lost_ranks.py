"""A rank that dies or stops in a forwarded collective: an error at all others, which names it."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from tests.runtime import schedules
from tests.runtime.process_group.jobs import start
from tests.runtime.spawning import spawn, together
from verify.errors import RankFailure

TIMEOUT_S = 6.0
SIZE, VICTIM = 3, 1


def _x(*shape):
    return torch.ones(*shape)


CALLS = {
    "all_gather": lambda: dist.all_gather([_x(4) for _ in range(SIZE)], _x(4)),
    "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(_x(4 * SIZE), _x(4)),
    "all_reduce": lambda: dist.all_reduce(_x(4), dist.ReduceOp.MAX),
    "all_reduce of integers": lambda: dist.all_reduce(_x(4).long(), dist.ReduceOp.AVG),
    "all_to_all_single": lambda: dist.all_to_all_single(_x(4 * SIZE), _x(4 * SIZE)),
    "barrier": dist.barrier,
    "broadcast": lambda: dist.broadcast(_x(4), VICTIM),
    "broadcast_object_list": lambda: dist.broadcast_object_list([None], VICTIM),
    "recv": lambda: dist.recv(_x(4), VICTIM),
    "reduce_scatter": lambda: dist.reduce_scatter(_x(4), [_x(4) for _ in range(SIZE)]),
    "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(_x(4), _x(4 * SIZE)),
    "scatter": lambda: dist.scatter(_x(4), None, VICTIM),
}


def _lost(rank, size, store, schedule, call, how, warm):
    start(rank, size, store, schedule)
    if warm:
        dist.all_reduce(torch.ones(8))  # from now on the group has a control plane
    dist.barrier()
    dist.group.WORLD.set_timeout(timedelta(seconds=TIMEOUT_S))
    together(store, rank, size, "all ready")
    if rank == VICTIM:
        os.kill(os.getpid(), how)
        time.sleep(60)
    try:
        CALLS[call]()
        return "no error"
    except RankFailure as failure:
        return failure.ranks
    except RuntimeError as error:
        return type(error).__name__


def _survivors(*args):
    outcomes = spawn(_lost, SIZE, *args, timeout_s=80, victims={VICTIM})
    found = [outcome for rank, outcome in enumerate(outcomes) if rank != VICTIM]
    for outcome in found:
        assert outcome.finished, "a rank died or hung"
        assert not outcome.error, outcome.error
    return [outcome.value for outcome in found]


@pytest.mark.parametrize("call", sorted(CALLS))
def test_a_dead_rank_is_named_by_all(call):
    assert _survivors(None, call, signal.SIGKILL, True) == [(VICTIM,), (VICTIM,)]


@pytest.mark.parametrize("call", ["barrier", "recv"])
def test_with_a_schedule_too(call):
    found = _survivors(schedules.straggler(SIZE), call, signal.SIGKILL, True)
    assert found == [(VICTIM,), (VICTIM,)]


@pytest.mark.parametrize("call", ["broadcast", "recv"])
def test_a_silent_rank_is_named_within_the_time_out(call):
    assert _survivors(None, call, signal.SIGSTOP, True) == [(VICTIM,), (VICTIM,)]


def test_without_a_control_plane_there_is_an_error_that_names_nobody():
    found = _survivors(None, "barrier", signal.SIGKILL, False)
    assert set(found) <= {"RuntimeError", "DistBackendError"}
