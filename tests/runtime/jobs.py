"""What a rank of a test runs: a group of the backend, a dispatcher, a pipeline; a store to lose."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

import runtime
from runtime.pipeline import Pipeline, load
from runtime.policy.cost_model import Line, Profile
from runtime.policy.dispatcher import AllReduceDispatcher
from runtime.policy.options import Options
from tests.runtime.pipeline import test_gradients
from tests.runtime.pipeline.models import loss_fn, model
from tests.verify.pipeline.documents import one_f_one_b

MICROBATCHES = test_gradients.MICROBATCHES
STORE = """
from datetime import timedelta
from torch._C._distributed_c10d import TCPStore
import time
store = TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=60))
print(store.port, flush=True)
time.sleep(120)
"""


def start(
    rank: int,
    size: int,
    store: Any,
    schedule: Any = None,
    timeout_s: float = 120.0,
    backend: str = runtime.BACKEND,
) -> Any:
    """Make the group of all ranks, by a schedule or (default) in mode auto, and return it."""
    if schedule is None:
        runtime.configure(mode="auto")
    else:
        runtime.configure(schedule)
    limit = timedelta(seconds=timeout_s)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)
    return dist.group.WORLD


def dispatcher(
    rank: int, size: int, store: Any, options: Options, timeout_s: float
) -> AllReduceDispatcher:
    """One that needs not measure first."""
    profile = Profile(size, Line(1e-2, 1e-9), Line(1e-5, 1e-10))
    return AllReduceDispatcher(
        store, rank, size, options=options, profile=profile, timeout_s=timeout_s
    )


def pipeline(
    rank: int,
    size: int,
    store: Any,
    timeout_s: float,
    place: Any = None,
    blocks: Any = None,
    **options: Any,
) -> Pipeline:
    """A block per rank, 1F1B; ``place`` is the pipeline's store, if not below ``store``."""
    test_gradients.start(rank, size, PrefixStore("gloo", store))
    plan = load(test_gradients.schedule(one_f_one_b(size, MICROBATCHES)))
    place = place or PrefixStore("pipeline", store)
    block = (blocks or model(size))[rank]
    return Pipeline(block, plan, loss_fn, store=place, timeout_s=timeout_s, **options)


@contextlib.contextmanager
def store_process() -> Iterator[tuple[subprocess.Popen, int]]:
    """A process that has a store, which can be stopped or killed, and the store's port."""
    command = [sys.executable, "-c", STORE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process, int(process.stdout.readline())  # type: ignore[union-attr]
        finally:
            process.kill()
