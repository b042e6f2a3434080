"""Pipeline schedules: the named ones, a fast list scheduler, and the optimum by CP-SAT."""

from synth.pipeline.answer import PipelineAnswer
from synth.pipeline.plan import METHODS, Solver, plan
from synth.pipeline.problem import Placement, Problem, make, place
from synth.pipeline.robust import Objective, Robust, Scenario, robust

__all__ = [
    "METHODS",
    "Objective",
    "PipelineAnswer",
    "Placement",
    "Problem",
    "Robust",
    "Scenario",
    "Solver",
    "make",
    "place",
    "plan",
    "robust",
]
