"""Pipeline schedules in training: run, watched, and exchanged when a link turns slow."""

from latecomer.runtime.pipeline.agent import Adaptation, Event, Planner
from latecomer.runtime.pipeline.detector import Sensitivity
from latecomer.runtime.pipeline.load import VerifiedPipeline, load
from latecomer.runtime.pipeline.pipeline import Pipeline
from latecomer.runtime.pipeline.transport import Faults, LinkFault, both_ways
from latecomer.verify.pipeline.measured import Span, StepRecord, Transit

__all__ = [
    "Adaptation",
    "Event",
    "Faults",
    "LinkFault",
    "Pipeline",
    "Planner",
    "Sensitivity",
    "Span",
    "StepRecord",
    "Transit",
    "VerifiedPipeline",
    "both_ways",
    "load",
]
