"""Gradients of the pipeline are bit for bit those of a plain loop: any schedule, any delay.

Also where a link turns slow in mid-run and all ranks change the schedule at one step.
"""

from __future__ import annotations

import itertools
import json

import msgspec
import pytest
import torch
import torch.distributed as dist

import runtime
from runtime.pipeline import Adaptation, Faults, LinkFault, Pipeline, Sensitivity, both_ways, load
from tests.runtime import schedules
from tests.runtime.pipeline.models import device_of, loss_fn, model, reference, run_step
from tests.runtime.spawning import on_ranks
from tests.verify.pipeline import documents
from tests.verify.pipeline.documents import one_f_one_b, zero_bubble
from verify.pipeline import decode, parse_action, timeline

RANKS = 3
MICROBATCHES = 5
SLOW = both_ways(0, 1, latency_s=0.03)
CROOKED = (LinkFault(1, 2, latency_s=0.02, occupancy_s=0.005), LinkFault(2, 1, occupancy_s=0.01))
SLOW_FROM = 4
FAULTS = Faults(both_ways(0, 1, latency_s=0.08, first_step=SLOW_FROM))
COARSE = Sensitivity(least_s=0.03)


def schedule(programs, microbatches=MICROBATCHES):
    stages = 1 + max(parse_action(action).stage for program in programs for action in program)
    return decode(json.dumps(documents.document(programs, microbatches, stages)).encode())


def eager():
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


SCENARIOS = {
    "gpipe": (documents.gpipe(RANKS, MICROBATCHES), Faults()),
    "1f1b, slow link": (one_f_one_b(RANKS, MICROBATCHES), Faults(SLOW)),
    "1f1b, blocking sends": (one_f_one_b(RANKS, MICROBATCHES), Faults(SLOW, blocking=True)),
    "zero bubble, crooked link": (zero_bubble(RANKS, MICROBATCHES), Faults(CROOKED)),
    "eager, out of order": (eager(), Faults(CROOKED)),
    "two stages per rank": (documents.vee(RANKS, MICROBATCHES), Faults(SLOW)),
}


def matches(pipeline, blocks, step):
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


def test_the_comparison_can_fail():
    blocks = model(RANKS)
    one, other = (reference(blocks, step, MICROBATCHES) for step in (0, 1))
    assert one[1] != other[1]
    pairs = zip(itertools.chain(*one[0]), itertools.chain(*other[0]), strict=True)
    assert not any(torch.equal(a, b) for a, b in pairs)


def start(rank, size, store):
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)


ON_CUDA = pytest.param(
    "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
)


@pytest.mark.parametrize("device", ["cpu", ON_CUDA])
@on_ranks(RANKS)
def test_every_schedule_under_delays(rank, size, store, device):
    start(rank, size, store)
    for name, (programs, faults) in SCENARIOS.items():
        plan = schedule(programs)
        blocks = [block.to(device) for block in model(plan.stages)]
        mine = {s: blocks[s] for s in load(plan).stages_of(rank)}
        pipeline = Pipeline(mine, plan, loss_fn, faults=faults, timeout_s=60)
        right = [matches(pipeline, blocks, step) for step in range(2)]
        explicit = documents.with_messages(programs, plan.stages, MICROBATCHES)
        pipeline.switch(schedule(explicit))
        assert [*right, matches(pipeline, blocks, 2)] == [True] * 3, name
        pipeline.close()
        assert pipeline.failure is None, name


@on_ranks(4)
def test_gradients_are_averaged_over_pipelines(rank, size, store):
    """Two pipelines of two stages, each by a schedule of its own, one over a slow link."""
    start(rank, size, store)
    pipeline, stage = divmod(rank, 2)
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    place = dist.PrefixStore(f"replicas/{stage}", store), pipeline, 2
    executor = runtime.Executor(runtime.load(schedules.straggler(2)), *place, timeout_s=60)
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
    for step in range(2):
        # each pipeline has its own data; the mean is taken as the executor does, divided first
        ours, theirs = (
            reference(blocks, 2 * step + p, MICROBATCHES)[0][stage]
            for p in (pipeline, 1 - pipeline)
        )
        run_step(running, 2 * step + pipeline)
        found = [parameter.grad for parameter in blocks[stage].parameters()]
        mean = [a / 2 + b / 2 for a, b in zip(ours, theirs, strict=True)]
        assert all(map(torch.equal, found, mean))
        assert not all(map(torch.equal, found, ours))
    running.close()
    executor.close()


def better_of_two(measured, current):
    """A planner that knows two orders."""
    plans = [
        msgspec.structs.replace(schedule(programs), instance=measured)
        for programs in (zero_bubble(RANKS, MICROBATCHES), eager())
    ]
    return min(plans, key=lambda plan: max(bar.end for bar in timeline(plan)))


def another_size(measured, current):
    """A planner that makes schedules which can't take the place of the one that runs."""
    return schedule(one_f_one_b(RANKS, 2 * MICROBATCHES), 2 * MICROBATCHES)


def _adapted(rank, size, store, planner, steps):
    """(the digest of each step's schedule, which all ranks run; the events) with such a planner."""
    start(rank, size, store)
    blocks = model(RANKS)
    plan = schedule(zero_bubble(RANKS, MICROBATCHES))
    how = Adaptation(planner=planner, sensitivity=COARSE)
    pipeline = Pipeline(blocks[rank], plan, loss_fn, timeout_s=60, faults=FAULTS, adaptation=how)
    digests = []
    for step in range(steps):
        assert matches(pipeline, blocks, step)
        digests.append(pipeline.record.digest)
    pipeline.close()
    everywhere = [None] * size
    dist.all_gather_object(everywhere, digests)
    assert everywhere == [digests] * size
    return digests, pipeline.events


@on_ranks(RANKS)
def test_a_slow_link_in_mid_run(rank, size, store):
    digests, events = _adapted(rank, size, store, better_of_two, 14)
    assert len(set(digests)) == 2
    (switched,) = [event.step for event in events if event.kind == "switched"]
    assert digests.index(digests[-1]) == switched > SLOW_FROM
    if rank == 0:
        link, planned, proposed = (
            next(e for e in events if e.kind == kind) for kind in ("link", "planned", "proposed")
        )
        assert "0-1 became slow" in link.text
        assert SLOW_FROM < link.step <= planned.step < proposed.step < switched


@on_ranks(RANKS)
def test_a_schedule_that_does_not_fit_is_not_even_proposed_and_the_run_goes_on(rank, size, store):
    digests, events = _adapted(rank, size, store, another_size, 11)
    assert len(set(digests)) == 1
    kept = [event.text for event in events if event.kind == "kept"]
    assert rank or any("neither can change between steps" in text for text in kept), events
