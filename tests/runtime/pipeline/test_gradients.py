"""Gradients of the pipeline are bit for bit those of a plain loop: any schedule, any delay."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
import torch.distributed as dist

import runtime
from runtime.pipeline import Faults, LinkFault, Pipeline, both_ways, load
from tests.runtime import schedules
from tests.runtime.pipeline.models import device_of, loss_fn, model, reference, run_step
from tests.runtime.spawning import spawn, values
from tests.verify.pipeline.documents import (
    document,
    gpipe,
    one_f_one_b,
    vee,
    with_messages,
    zero_bubble,
)
from verify.pipeline import PipelineSchedule, decode, parse_action

RANKS, MICROBATCHES = 3, 5
SLOW = both_ways(0, 1, latency_s=0.03)
CROOKED = (LinkFault(1, 2, latency_s=0.02, occupancy_s=0.005), LinkFault(2, 1, occupancy_s=0.01))


def schedule(programs: list[list[str]], microbatches: int = MICROBATCHES) -> PipelineSchedule:
    stages = 1 + max(parse_action(action).stage for program in programs for action in program)
    return decode(json.dumps(document(programs, microbatches, stages)).encode())


def eager() -> list[list[str]]:
    """All forwards first, then I in another order than F at the first stages, W at the end."""
    n = MICROBATCHES
    programs = []
    for s in range(RANKS):
        order = list(range(n)) if s == RANKS - 1 else [*range(0, n, 2), *range(1, n, 2)]
        programs.append(
            [f"{s}F{m}" for m in range(n)]
            + [f"{s}I{m}" for m in order]
            + [f"{s}W{m}" for m in range(n)]
        )
    return programs


SCENARIOS: dict[str, tuple[list[list[str]], Faults]] = {
    "gpipe": (gpipe(RANKS, MICROBATCHES), Faults()),
    "1f1b, slow link": (one_f_one_b(RANKS, MICROBATCHES), Faults(SLOW)),
    "1f1b, blocking sends": (one_f_one_b(RANKS, MICROBATCHES), Faults(SLOW, blocking=True)),
    "zero bubble, crooked link": (zero_bubble(RANKS, MICROBATCHES), Faults(CROOKED)),
    "eager, out of order": (eager(), Faults(CROOKED)),
    "two stages per rank": (vee(RANKS, MICROBATCHES), Faults(SLOW)),
}


def matches(pipeline: Pipeline, blocks: list[Any], step: int) -> bool:
    """Run a step; whether gradients and losses of this rank are those of the reference."""
    expected, losses = reference(blocks, step, MICROBATCHES)
    found = run_step(pipeline, step, device_of(blocks))
    mine = pipeline.verified.stages_of(pipeline.rank)
    same = all(
        torch.equal(parameter.grad, gradient)
        for stage in mine
        for parameter, gradient in zip(blocks[stage].parameters(), expected[stage], strict=True)
    )
    return same and (len(blocks) - 1 not in mine or [loss.item() for loss in found] == losses)


def test_the_comparison_can_fail() -> None:
    blocks = model(RANKS)
    one, other = (reference(blocks, step, MICROBATCHES) for step in (0, 1))
    assert one[1] != other[1]
    assert not any(
        torch.equal(a, b)
        for ours, theirs in zip(one[0], other[0], strict=True)
        for a, b in zip(ours, theirs, strict=True)
    )


def start(rank: int, size: int, store: dist.Store) -> None:
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)


def _every_schedule(rank: int, size: int, store: dist.Store, device: str) -> dict[str, list[bool]]:
    start(rank, size, store)
    results = {}
    for name, (programs, faults) in SCENARIOS.items():
        plan = schedule(programs)
        blocks = [block.to(device) for block in model(plan.stages)]
        mine = {s: blocks[s] for s in load(plan).stages_of(rank)}
        pipeline = Pipeline(mine, plan, loss_fn, faults=faults, timeout_s=60)
        results[name] = [matches(pipeline, blocks, step) for step in range(2)]
        pipeline.switch(schedule(with_messages(programs, plan.stages, MICROBATCHES)))
        results[name].append(matches(pipeline, blocks, 2))
        pipeline.close()
    return results


ON_CUDA = pytest.param(
    "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
)


@pytest.mark.parametrize("device", ["cpu", ON_CUDA])
def test_every_schedule_under_delays(device: str) -> None:
    for found in values(spawn(_every_schedule, RANKS, device)):
        assert found == {name: [True, True, True] for name in SCENARIOS}


def _replicas(rank: int, size: int, store: dist.Store) -> list[bool]:
    """Two pipelines of two stages, each by a schedule of its own, one over a slow link."""
    start(rank, size, store)
    pipeline, stage = divmod(rank, 2)
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    straggler = runtime.load(schedules.straggler(2))
    place = dist.PrefixStore(f"replicas/{stage}", store)
    executor = runtime.Executor(straggler, place, pipeline, 2, timeout_s=60)
    blocks = model(2)
    running = Pipeline(
        blocks[stage],
        schedule((one_f_one_b, zero_bubble)[pipeline](2, MICROBATCHES)),
        loss_fn,
        group=groups[pipeline],
        timeout_s=60,
        replicas=executor,
        faults=Faults(SLOW if pipeline else ()),
    )
    right = []
    for step in range(2):
        # each pipeline has its own data; the mean is taken as the executor does, divided first
        ours, theirs = (
            reference(blocks, 2 * step + p, MICROBATCHES)[0][stage]
            for p in (pipeline, 1 - pipeline)
        )
        run_step(running, 2 * step + pipeline)
        mean = [a / 2 + b / 2 for a, b in zip(ours, theirs, strict=True)]
        found = [parameter.grad for parameter in blocks[stage].parameters()]
        right.append(all(map(torch.equal, found, mean)) and not all(map(torch.equal, found, ours)))
    running.close()
    executor.close()
    return right


def test_gradients_are_averaged_over_pipelines() -> None:
    assert values(spawn(_replicas, 4)) == [[True, True]] * 4
