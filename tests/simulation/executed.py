"""What every simulated execution tells, whatever ran in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from latecomer.runtime.simulation.job import Job, Outcome


@dataclass
class Executed:
    """What became of a plan."""

    plan: Any
    trace: str = ""
    steps: int = 0
    elapsed_s: float = 0.0
    problems: list[str] = field(default_factory=list)
    outcomes: dict[int, Outcome] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        """In a line."""
        return "; ".join(self.problems) or "all holds"

    def describe(self) -> str:
        """What each rank was told, a line each."""
        raise NotImplementedError

    def take_measures(self, job: Job) -> None:
        """How long the job has run, and in which steps."""
        self.trace = job.world.trace
        self.steps = job.world.steps
        self.elapsed_s = job.elapsed_s()
