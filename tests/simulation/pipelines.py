"""Pipelines on simulated hosts: what their plans are, and what must hold of their steps.

Each operation of a plan is a training step of all microbatches. Gradients and losses of each rank's
stages must be, bit for bit, those of the whole model run in one place, microbatch after microbatch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import nn

from latecomer.runtime.pipeline import (
    Adaptation,
    Faults,
    LinkFault,
    Pipeline,
    Sensitivity,
    load,
)
from latecomer.runtime.pipeline.load import VerifiedPipeline
from latecomer.runtime.simulation.meeting import Store
from latecomer.runtime.simulation.world import Dice
from latecomer.verify.pipeline import Instance, PipelineSchedule
from tests.runtime.pipeline.models import loss_fn, model, reference, run_step
from tests.runtime.pipeline.test_gradients import schedule
from tests.simulation.plan import Plan
from tests.verify.pipeline import documents

PROGRAMS: dict[str, Callable[[int, int], list[list[str]]]] = {
    "gpipe": documents.gpipe,
    "1f1b": documents.one_f_one_b,
    "zero bubble": documents.zero_bubble,
    "two stages per rank": documents.vee,
}
SAME_SHAPE = ("gpipe", "1f1b", "zero bubble")
DATA = 4  # steps whose data differ
WATCHFUL = Sensitivity(share=1e-9, noises=1e-9, least_s=1e-9, confirm=1)
"""By it a link has changed in almost every step."""


class Steps:
    """One rank's pipeline, whose steps are submitted and waited for as all-reduces are."""

    def __init__(self, plan: Plan, rank: int, store: Store) -> None:
        dice = Dice(plan.seed, "pipeline")
        name = dice.one_of(tuple(PROGRAMS))
        self.microbatches = 1 + dice.below(5)
        verified = proved(name, plan.ranks, self.microbatches)
        adapts = dice.happens(0.5) and name in SAME_SHAPE
        self.blocks = model(verified.schedule.stages)
        own_blocks = {stage: self.blocks[stage] for stage in verified.stages_of(rank)}
        self.pipeline = Pipeline(
            own_blocks,
            verified,
            loss_fn,
            store=store,  # type: ignore[arg-type]
            timeout_s=plan.timeout_s,
            faults=_delays(dice, plan),
            adaptation=Adaptation(planner=next_one, sensitivity=WATCHFUL) if adapts else None,
        )

    def submit(self, operation: int) -> Step:
        """A step that is run when it is waited for."""
        return Step(self, operation)

    def close(self) -> None:
        """Close the pipeline."""
        self.pipeline.close()


class Step:
    """A training step."""

    def __init__(self, steps: Steps, number: int) -> None:
        self._steps = steps
        self._data = number % DATA

    def wait(self) -> str:
        """Run it; empty if gradients and losses are right, else what is not."""
        steps = self._steps
        verified = steps.pipeline.verified
        own_stages = verified.stages_of(steps.pipeline.rank)
        for stage in own_stages:
            steps.blocks[stage].zero_grad()

        losses = [loss.item() for loss in run_step(steps.pipeline, self._data)]
        expected, expected_losses = right(verified.schedule.stages, steps.microbatches, self._data)
        for stage in own_stages:
            if not _are_equal(steps.blocks[stage], expected[stage]):
                return f"gradients of stage {stage} are not those of the whole model"
        if losses and losses != expected_losses:
            return f"losses are {losses} in place of {expected_losses}"
        return ""


def _are_equal(block: nn.Module, expected: list[torch.Tensor]) -> bool:
    gradients = [parameter.grad for parameter in block.parameters()]
    return all(
        gradient is not None and torch.equal(gradient, right)
        for gradient, right in zip(gradients, expected, strict=True)
    )


def _delays(dice: Dice, plan: Plan) -> Faults:
    """Injected delays of a link, on top of what the network does."""
    if not dice.happens(0.3):
        return Faults()
    sender = dice.below(plan.ranks)
    receiver = (sender + 1) % plan.ranks
    latency_s = dice.one_of((0.0, 0.001, 0.01))
    slow = LinkFault(sender, receiver, latency_s=latency_s, occupancy_s=dice.one_of((0.0, 0.002)))
    return Faults([slow], blocking=dice.happens(0.3))


def next_one(measured: Instance, schedule: PipelineSchedule) -> PipelineSchedule:
    """A planner that takes another one of the same shape, whatever was measured."""
    shape = (len(set(schedule.rank_of)), schedule.microbatches)
    schedules = [proved(name, *shape).schedule for name in SAME_SHAPE]
    return schedules[(schedules.index(schedule) + 1) % len(schedules)]


@cache
def proved(name: str, ranks: int, microbatches: int) -> VerifiedPipeline:
    """A schedule, proved once for all executions."""
    return load(schedule(PROGRAMS[name](ranks, microbatches), microbatches))


@cache
def right(
    stages: int, microbatches: int, data: int
) -> tuple[list[list[torch.Tensor]], list[float]]:
    """(gradients of each stage, losses) of a step."""
    return reference(model(stages), data, microbatches)
