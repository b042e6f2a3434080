"""What a rank of a test runs: a group of the backend, a dispatcher, a pipeline; a store to lose."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from latecomer import runtime
from latecomer.runtime.pipeline import Pipeline, load
from latecomer.runtime.policy.cost_model import AlphaBeta, Profile
from latecomer.runtime.policy.dispatcher import AllReduceDispatcher
from tests.runtime.pipeline import test_gradients
from tests.runtime.pipeline.models import loss_fn, model
from tests.verify.pipeline.documents import one_f_one_b

STORE = """
from datetime import timedelta
from torch._C._distributed_c10d import TCPStore
import time
store = TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=60))
print(store.port, flush=True)
time.sleep(120)
"""


def start(rank, size, store, schedule=None, timeout_s=120.0, backend=runtime.BACKEND):
    """Make the group of all ranks, by a schedule or (default) in mode auto, and return it."""
    if schedule is None:
        runtime.configure(mode="auto", profile=_profile(size))
    else:
        runtime.configure(schedule)
    timeout = timedelta(seconds=timeout_s)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    return dist.group.WORLD


def dispatcher(rank, size, store, options, timeout_s):
    """A dispatcher with a given profile, which it need not measure first."""
    return AllReduceDispatcher(
        store, rank, size, timeout_s=timeout_s, options=options, profile=_profile(size)
    )


def _profile(size):
    """By it, schedules are worth it however small the buffer."""
    return Profile(size, native=AlphaBeta(1e-2, 1e-9), schedule=AlphaBeta(1e-5, 1e-10))


def pipeline(rank, size, store, timeout_s, pipeline_store=None, blocks=None, **options):
    """A block per rank, 1F1B; ``pipeline_store`` is the pipeline's, if not below ``store``."""
    test_gradients.start(rank, size, PrefixStore("gloo", store))
    plan = load(test_gradients.schedule(one_f_one_b(size, test_gradients.MICROBATCHES)))

    if blocks is None:
        blocks = model(size)
    if pipeline_store is None:
        pipeline_store = PrefixStore("pipeline", store)

    return Pipeline(
        blocks[rank], plan, loss_fn, store=pipeline_store, timeout_s=timeout_s, **options
    )


@contextlib.contextmanager
def store_process():
    """A process that has a store, which can be stopped or killed, and the store's port."""
    command = [sys.executable, "-c", STORE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process, int(process.stdout.readline())
        finally:
            process.kill()
