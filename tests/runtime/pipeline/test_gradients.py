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

from latecomer import runtime
from latecomer.runtime.pipeline import (
    Adaptation,
    Faults,
    LinkFault,
    Pipeline,
    Sensitivity,
    both_ways,
    load,
)
from latecomer.verify.pipeline import decode, parse_action, timeline
from tests.runtime import schedules
from tests.runtime.pipeline.models import device_of, loss_fn, model, reference, run_step
from tests.runtime.spawning import on_ranks
from tests.verify.pipeline import documents
from tests.verify.pipeline.documents import one_f_one_b, zero_bubble

RANKS = 3
MICROBATCHES = 5
SLOW = both_ways(0, 1, latency_s=0.03)
CROOKED = (LinkFault(1, 2, latency_s=0.02, occupancy_s=0.005), LinkFault(2, 1, occupancy_s=0.01))
SLOW_FROM = 4
FAULTS = Faults(both_ways(0, 1, latency_s=0.08, first_step=SLOW_FROM))
COARSE = Sensitivity(least_s=0.03)


def schedule(programs, microbatches=MICROBATCHES):
    """A schedule of these programs, as it is read from a file."""
    stages = 1 + max(parse_action(action).stage for program in programs for action in program)
    return decode(json.dumps(documents.document(programs, microbatches, stages)).encode())


def eager():
    """All forwards first, then I in another order than F at the first stages, W at the end."""
    in_order = list(range(MICROBATCHES))
    even_ones_first = [*range(0, MICROBATCHES, 2), *range(1, MICROBATCHES, 2)]
    programs = []
    for stage in range(RANKS):
        order_of_i = in_order if stage == RANKS - 1 else even_ones_first
        program = [f"{stage}F{microbatch}" for microbatch in in_order]
        program += [f"{stage}I{microbatch}" for microbatch in order_of_i]
        program += [f"{stage}W{microbatch}" for microbatch in in_order]
        programs.append(program)
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
    expected_gradients, expected_losses = reference(blocks, step, MICROBATCHES)

    losses = run_step(pipeline, step, device_of(blocks))

    own_stages = pipeline.verified.stages_of(pipeline.rank)
    for stage in own_stages:
        gradients = [parameter.grad for parameter in blocks[stage].parameters()]
        if not all(
            torch.equal(gradient, expected)
            for gradient, expected in zip(gradients, expected_gradients[stage], strict=True)
        ):
            return False
    if len(blocks) - 1 in own_stages:
        return [loss.item() for loss in losses] == expected_losses
    return True


def test_the_comparison_can_fail():
    blocks = model(RANKS)
    gradients_of_0, losses_of_0 = reference(blocks, 0, MICROBATCHES)
    gradients_of_1, losses_of_1 = reference(blocks, 1, MICROBATCHES)
    assert losses_of_0 != losses_of_1
    pairs = zip(itertools.chain(*gradients_of_0), itertools.chain(*gradients_of_1), strict=True)
    assert not any(torch.equal(first, second) for first, second in pairs)


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
        own_blocks = {stage: blocks[stage] for stage in load(plan).stages_of(rank)}
        pipeline = Pipeline(own_blocks, plan, loss_fn, faults=faults, timeout_s=60)
        assert matches(pipeline, blocks, 0), name
        assert matches(pipeline, blocks, 1), name

        explicit = documents.with_messages(programs, plan.stages, MICROBATCHES)
        pipeline.switch(schedule(explicit))
        assert matches(pipeline, blocks, 2), name
        pipeline.close()
        assert pipeline.failure is None, name


@on_ranks(4)
def test_gradients_are_averaged_over_pipelines(rank, size, store):
    """Two pipelines of two stages, each by a schedule of its own, one over a slow link."""
    start(rank, size, store)
    pipeline, stage = divmod(rank, 2)
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    executor = runtime.Executor(
        runtime.load(schedules.straggler(2)),
        dist.PrefixStore(f"replicas/{stage}", store),
        pipeline,
        2,
        timeout_s=60,
    )
    programs = one_f_one_b if pipeline == 0 else zero_bubble
    blocks = model(2)
    running = Pipeline(
        blocks[stage],
        schedule(programs(2, MICROBATCHES)),
        loss_fn,
        group=groups[pipeline],
        timeout_s=60,
        replicas=executor,
        faults=Faults(() if pipeline == 0 else SLOW),
    )

    def gradients_of(pipeline, step):
        """Of this rank's stage, by the reference; each pipeline has its own data."""
        gradients, _ = reference(blocks, 2 * step + pipeline, MICROBATCHES)
        return gradients[stage]

    for step in range(2):
        own = gradients_of(pipeline, step)
        of_other_pipeline = gradients_of(1 - pipeline, step)

        run_step(running, 2 * step + pipeline)

        averaged = [parameter.grad for parameter in blocks[stage].parameters()]
        # as the executor takes the mean, divided first
        mean = [a / 2 + b / 2 for a, b in zip(own, of_other_pipeline, strict=True)]
        assert all(map(torch.equal, averaged, mean))
        assert not all(map(torch.equal, averaged, own))
    running.close()
    executor.close()


def better_of_two(measured, current):
    """A planner that knows two orders."""

    def makespan(plan):
        return max(bar.end for bar in timeline(plan))

    plans = []
    for programs in (zero_bubble(RANKS, MICROBATCHES), eager()):
        plans.append(msgspec.structs.replace(schedule(programs), instance=measured))
    return min(plans, key=makespan)


def another_size(measured, current):
    """A planner that makes schedules which can't take the place of the one that runs."""
    return schedule(one_f_one_b(RANKS, 2 * MICROBATCHES), 2 * MICROBATCHES)


def _adapted(rank, size, store, planner, steps):
    """(the digest of each step's schedule, which all ranks run; the events) with such a planner."""
    start(rank, size, store)
    blocks = model(RANKS)
    plan = schedule(zero_bubble(RANKS, MICROBATCHES))
    pipeline = Pipeline(
        blocks[rank],
        plan,
        loss_fn,
        timeout_s=60,
        faults=FAULTS,
        adaptation=Adaptation(planner=planner, sensitivity=COARSE),
    )
    digests = []
    for step in range(steps):
        assert matches(pipeline, blocks, step)
        digests.append(pipeline.record.digest)
    pipeline.close()

    digests_of_ranks = [None] * size
    dist.all_gather_object(digests_of_ranks, digests)
    assert digests_of_ranks == [digests] * size
    return digests, pipeline.events


@on_ranks(RANKS)
def test_a_slow_link_in_mid_run(rank, size, store):
    digests, events = _adapted(rank, size, store, better_of_two, 14)
    assert len(set(digests)) == 2
    (switched,) = [event.step for event in events if event.kind == "switched"]
    assert digests.index(digests[-1]) == switched > SLOW_FROM
    if rank == 0:
        link = _first(events, "link")
        planned = _first(events, "planned")
        proposed = _first(events, "proposed")
        assert "0-1 became slow" in link.text
        assert SLOW_FROM < link.step <= planned.step < proposed.step < switched


def _first(events, kind):
    return next(event for event in events if event.kind == kind)


@on_ranks(RANKS)
def test_a_schedule_that_does_not_fit_is_not_even_proposed_and_the_run_goes_on(rank, size, store):
    digests, events = _adapted(rank, size, store, another_size, 11)
    assert len(set(digests)) == 1
    reasons = [event.text for event in events if event.kind == "kept"]
    if rank == 0:
        assert any("neither can change between steps" in reason for reason in reasons), events
