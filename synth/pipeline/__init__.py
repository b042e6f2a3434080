"""Pipeline schedules: the named ones, a fast list scheduler, and the optimum by CP-SAT.

Examples:
    Four stages, eight microbatches, and a link with a latency of three forwards:

    >>> from latecomer.synth.pipeline import make, place, plan
    >>> from latecomer.verify.pipeline import Instance, Link, write
    >>> instance = Instance(forward=(1,) * 4, backward=(1,) * 4, weight=(1,) * 4,
    ...                     links=(Link((1, 2), latency=3),))
    >>> problem = make(8, instance, place(4, virtual=1, placement="loop"))  # a Problem
    >>> answer = plan(problem)  # a PipelineAnswer
    >>> answer.value, answer.bound, answer.method
    (30, 30, 'greedy')
    >>> print(answer.claim)
    optimal (paper: at the lower bound that verify recomputes)
    >>> write(answer.schedule, "pipeline.json")
"""

from latecomer.synth.pipeline.answer import PipelineAnswer
from latecomer.synth.pipeline.plan import METHODS, Solver, plan
from latecomer.synth.pipeline.problem import Placement, Problem, make, place
from latecomer.synth.pipeline.robust import Objective, Robust, Scenario, robust

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
