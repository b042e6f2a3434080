"""Two pipelines, each by a schedule of its own; the straggler's schedule averages gradients."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

import runtime
from runtime.pipeline import Faults, Pipeline, both_ways
from tests.runtime import schedules
from tests.runtime.pipeline.models import batch, loss_fn, model, reference
from tests.runtime.pipeline.test_gradients import MICROBATCHES, schedule, start
from tests.runtime.spawning import spawn, values
from tests.verify.pipeline.documents import one_f_one_b, zero_bubble

STAGES, PIPELINES = 2, 2


def _both(rank: int, size: int, store: dist.Store) -> list[bool]:
    start(rank, size, store)
    pipeline, stage = divmod(rank, STAGES)
    groups = [dist.new_group([p * STAGES + s for s in range(STAGES)]) for p in range(PIPELINES)]
    executor = runtime.Executor(
        runtime.load(schedules.straggler(PIPELINES)),
        PrefixStore(f"replicas/{stage}", store),
        pipeline,
        PIPELINES,
        timeout_s=60,
    )
    blocks = model(STAGES)
    programs = (one_f_one_b, zero_bubble)[pipeline](STAGES, MICROBATCHES)
    running = Pipeline(
        blocks[stage],
        schedule(programs),
        loss_fn,
        group=groups[pipeline],
        timeout_s=60,
        replicas=executor,
        faults=Faults(both_ways(0, 1, latency_s=0.02) if pipeline else ()),
    )
    right = []
    for step in range(2):
        # each pipeline has its own data; the mean is taken as the executor does, divided first
        ours, theirs = (
            reference(blocks, PIPELINES * step + p, MICROBATCHES)[0][stage]
            for p in (pipeline, 1 - pipeline)
        )
        x, y = batch(PIPELINES * step + pipeline, MICROBATCHES)
        first, last = stage == 0, stage == STAGES - 1
        running.step(*([x] if first else []), target=y if last else None)
        mean = [a / 2 + b / 2 for a, b in zip(ours, theirs, strict=True)]
        found = [parameter.grad for parameter in blocks[stage].parameters()]
        right.append(all(map(torch.equal, found, mean)) and not all(map(torch.equal, found, ours)))
    running.close()
    executor.close()
    return right


def test_gradients_are_averaged_over_pipelines() -> None:
    for right in values(spawn(_both, STAGES * PIPELINES)):
        assert right == [True, True]
