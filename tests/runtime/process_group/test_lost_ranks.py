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
from tests.runtime.jobs import start
from tests.runtime.spawning import on_ranks, together
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


def _lost(rank, size, store, schedule, call, how, warm=True):
    """What the call raises where it is lost to the others; the victim comes to no end."""
    start(rank, size, store, schedule)
    if warm:
        dist.all_reduce(torch.ones(8))  # from now on the group has a control plane
    dist.barrier()
    dist.group.WORLD.set_timeout(timedelta(seconds=TIMEOUT_S))
    together(store, rank, size, "all ready")
    if rank == VICTIM:
        os.kill(os.getpid(), how)
        time.sleep(60)
    with pytest.raises(RuntimeError if not warm else RankFailure) as caught:
        CALLS[call]()
    return caught.value


KILL, STOP = signal.SIGKILL, signal.SIGSTOP
DEAD = [(None, call, KILL) for call in sorted(CALLS)]
PLANNED = [(schedules.straggler(SIZE), call, KILL) for call in ("barrier", "recv")]
SILENT = [(None, call, STOP) for call in ("broadcast", "recv")]


@pytest.mark.parametrize(("schedule", "call", "how"), DEAD + PLANNED + SILENT)
@on_ranks(SIZE, timeout_s=80, victims={VICTIM})
def test_a_dead_or_silent_rank_is_named_by_all(rank, size, store, schedule, call, how):
    assert _lost(rank, size, store, schedule, call, how).ranks == (VICTIM,)


@on_ranks(SIZE, timeout_s=80, victims={VICTIM})
def test_without_a_control_plane_there_is_an_error_that_names_nobody(rank, size, store):
    error = _lost(rank, size, store, None, "barrier", KILL, warm=False)
    assert not isinstance(error, RankFailure)
