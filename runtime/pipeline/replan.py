"""Planning anew for what was measured: how, by whom, and whether the result pays."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from runtime.pipeline.detector import Sensitivity
from runtime.pipeline.load import VerifiedPipeline, load, require_same_shape
from verify.errors import ArgumentError, LatecomerError
from verify.pipeline import Instance, PipelineSchedule, timeline

Planner = Callable[[Instance, PipelineSchedule], PipelineSchedule]
"""(what was measured, in microseconds; the schedule that runs) -> a schedule of the same shape."""


def heuristic(measured: Instance, schedule: PipelineSchedule) -> PipelineSchedule:
    """The planner unless another is given: the best of ``synth.pipeline``'s quick methods."""
    from synth.pipeline.plan import plan
    from synth.pipeline.problem import make

    rank_of = [schedule.rank_of[stage] for stage in range(schedule.stages)]
    return plan(make(schedule.microbatches, measured, rank_of), "heuristic").schedule


@dataclass(frozen=True)
class Adaptation:
    """That a pipeline adapts, and how; the same on all ranks.

    Attributes:
        planner: makes schedules, on rank 0 only.
        sensitivity: when a link counts as changed.
        gain: the least share of the makespan that a new schedule must save.
    """

    planner: Planner = heuristic
    sensitivity: Sensitivity = field(default_factory=Sensitivity)
    gain: float = 0.03

    def __post_init__(self) -> None:
        if not 0 <= self.gain < 1:
            raise ArgumentError("gain", self.gain, "must be at least 0 and less than 1")


def replan(
    how: Adaptation, running: VerifiedPipeline, measured: Instance
) -> tuple[PipelineSchedule | None, str]:
    """A schedule that pays in the instance that was measured, if there is one; and the reason."""
    began_s = time.monotonic()
    try:
        new = load(how.planner(measured, running.schedule))
        require_same_shape(new, running)
    except LatecomerError as error:
        return None, f"the planner made none that can run: {error}"
    new_us, old_us = _makespan(new.schedule, measured), _makespan(running.schedule, measured)
    numbers = (
        f"in {(time.monotonic() - began_s) * 1e3:.1f} ms, predicted step "
        f"{old_us / 1e3:.4g} ms as it is, {new_us / 1e3:.4g} ms planned anew"
    )
    if new_us >= (1 - how.gain) * old_us:
        return None, f"another saves less than {how.gain:.0%} ({numbers})"
    return new.schedule, numbers


def _makespan(schedule: PipelineSchedule, measured: Instance) -> float:
    """What the verifier says that a step takes, in microseconds; the schedule is proved."""
    bars = timeline(msgspec.structs.replace(schedule, instance=measured, meta={}))
    return float(max(bar.end for bar in bars))
