"""That a pipeline adapts, and how: the options, the planner, and what is told of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from runtime.pipeline.detector import Sensitivity
from verify.errors import ArgumentError
from verify.pipeline import PipelineSchedule, Situation

Planner = Callable[[Situation, PipelineSchedule], PipelineSchedule]
"""(what was measured, in microseconds; the schedule that runs) -> a schedule of the same shape."""
HEURISTIC = "synth.pipeline.plan"
"""The module of :func:`heuristic`; the runtime needs nothing of ``synth`` before."""


def heuristic(situation: Situation, schedule: PipelineSchedule) -> PipelineSchedule:
    """The planner unless another is given: the best of ``synth.pipeline``'s quick methods."""
    from synth.pipeline.plan import plan
    from synth.pipeline.problem import make

    rank_of = [schedule.rank_of[stage] for stage in range(schedule.stages)]
    return plan(make(schedule.microbatches, situation, rank_of), "heuristic").schedule


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


@dataclass(frozen=True)
class Event:
    """Something that was noticed, decided or done.

    Attributes:
        step: the step after which it was noticed, or before which it was done.
        kind: ``link``, ``kept``, ``planned``, ``proposed``, ``refused``, ``switched``.
        text: what and why.
        at_s: ``time.monotonic()``.
    """

    step: int
    kind: str
    text: str
    at_s: float
