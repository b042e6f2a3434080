"""Pipeline schedules in training: run, watched, and exchanged when a link turns slow."""

from runtime.pipeline.agent import Adaptation, Event, Planner
from runtime.pipeline.detector import Sensitivity
from runtime.pipeline.load import VerifiedPipeline, load
from runtime.pipeline.pipeline import Pipeline
from runtime.pipeline.transport import Faults, LinkFault, both_ways
from verify.pipeline.measured import Span, StepRecord, Transit

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
