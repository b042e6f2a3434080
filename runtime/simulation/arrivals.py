"""When the ranks of a job come to their all-reduce: as in a trace, drawn at random, or on purpose.

A trace has some ranks, and a job may have more. Then each rank of the job gets a rank of the trace
whose offsets it draws from, step by step; but a rank that is last in most steps is given to one
rank only, since a thousand ranks do not have hundreds of broken machines where four had one. The
steps of a job are drawn from those of the trace; without drawing they come in the trace's order.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from latecomer.runtime.simulation.world import Dice
from latecomer.verify.errors import ArgumentError

FORMAT = "latecomer-arrivals"
MOSTLY = 0.5  # of the steps: who is last in more of them is the straggler
LONGEST = 50.0  # times its scale: a Pareto tail is cut there, else one draw decides the whole job


class Step(NamedTuple):
    """One step of a job: when each rank has its gradients."""

    compute_s: float  # from the beginning of the step until the first rank has
    offsets_s: tuple[float, ...]  # by rank, from then on

    @property
    def last_s(self) -> float:
        """When the last rank has."""
        return self.compute_s + max(self.offsets_s)


class Arrivals(Protocol):
    """Where steps come from; the same for the same seed."""

    ranks: int
    text: str  # what they are

    def step(self, number: int) -> Step:
        """The arrivals of a step; steps are asked for in order."""


class TraceStep(msgspec.Struct, frozen=True):
    """A step as the file has it."""

    step: int
    duration_s: float
    first_s: float
    offsets_s: tuple[float, ...]


class Trace(msgspec.Struct, frozen=True):
    """A file of arrivals: where it is from, and its steps."""

    format: str
    version: int
    source: str
    license: str
    ranks: int
    unit: str
    event: str  # what was taken for the arrival
    rank_is: str
    reduce_own_s: float  # what the trace's own reduction took
    steps: tuple[TraceStep, ...]

    @property
    def straggler(self) -> int | None:
        """The rank that is last in most steps, if there is one."""
        rank, count = Counter(_last(step.offsets_s) for step in self.steps).most_common(1)[0]
        return rank if count > MOSTLY * len(self.steps) else None


def read(path: str | os.PathLike[str]) -> Trace:
    """The trace in a file.

    Raises:
        ArgumentError: it cannot be read, or is no such file.
    """
    name = os.fspath(path)
    try:
        trace = msgspec.json.decode(Path(path).read_bytes(), type=Trace)
    except (OSError, msgspec.DecodeError) as error:
        raise ArgumentError("arrivals", name, f"is no file of arrivals ({error})") from None
    if (trace.format, trace.version, trace.unit) != (FORMAT, 1, "s"):
        found = f"{trace.format} {trace.version} in {trace.unit}"
        raise ArgumentError("arrivals", name, f"must be {FORMAT} 1 in s, not {found}")
    if trace.ranks < 2 or not trace.steps:
        raise ArgumentError("arrivals", name, "must have two ranks and one step, or more")
    for step in trace.steps:
        if len(step.offsets_s) != trace.ranks or min(step.offsets_s) < 0 or step.first_s < 0:
            requirement = f"must have an offset of 0 or more for each of {trace.ranks} ranks"
            raise ArgumentError("arrivals", name, f"step {step.step} {requirement}")
    return trace


class OfTrace:
    """The arrivals of a trace, in order where the job has as many ranks, else drawn from it."""

    def __init__(self, trace: Trace, ranks: int, seed: int) -> None:
        self.ranks = ranks
        self.text = f"{trace.source}, {len(trace.steps)} steps of {trace.ranks} ranks"
        self._trace = trace
        self._dice = Dice(seed, "arrivals")
        self._models: list[int] = []  # by rank: the rank of the trace that it is like
        if ranks != trace.ranks:
            self.text += f", drawn from for {ranks}"
            self._models = self._chosen_models()

    def step(self, number: int) -> Step:
        """The next one."""
        steps = self._trace.steps
        if not self._models:
            step = steps[number % len(steps)]
            return Step(step.first_s, step.offsets_s)

        dice = self._dice
        compute_s = dice.one_of(steps).first_s
        offsets_s = [dice.one_of(steps).offsets_s[model] for model in self._models]
        first_s = min(offsets_s)
        return Step(compute_s, tuple(offset_s - first_s for offset_s in offsets_s))

    def _chosen_models(self) -> list[int]:
        """The trace's straggler, if it has one, is a model for one rank, its others for all."""
        straggler = self._trace.straggler
        others = [rank for rank in range(self._trace.ranks) if rank != straggler]
        models = [self._dice.one_of(others) for _ in range(self.ranks)]
        if straggler is not None:
            models[self._dice.below(self.ranks)] = straggler
        return models


class Tails:
    """Every rank is late by a delay of its own with a Pareto distribution, cut at ``LONGEST``."""

    def __init__(self, ranks: int, seed: int, shape: float, scale_s: float) -> None:
        self.ranks = ranks
        self.text = f"each rank by a Pareto delay, shape {shape:g}, from {scale_s:g} s"
        self._shape = shape
        self._scale_s = scale_s
        self._dice = Dice(seed, "arrivals")

    def step(self, number: int) -> Step:
        """The next one."""
        delays_s = [self._delay_s() for _ in range(self.ranks)]
        first_s = min(delays_s)
        return Step(first_s, tuple(delay_s - first_s for delay_s in delays_s))

    def _delay_s(self) -> float:
        uniform = 1.0 - self._dice.random()  # above 0
        return min(LONGEST * self._scale_s, self._scale_s * float(uniform ** (-1.0 / self._shape)))


class OneLate:
    """One rank comes late: always the last rank, or another in each step; the others together."""

    def __init__(self, ranks: int, seed: int, late_s: float, *, is_random: bool = False) -> None:
        who = "another rank in each step" if is_random else f"rank {ranks - 1} in each step"
        self.ranks = ranks
        self.text = f"{who} by {late_s:g} s" if late_s else "all ranks together"
        self._late_s = late_s
        self._is_random = is_random
        self._dice = Dice(seed, "arrivals")

    def step(self, number: int) -> Step:
        """The next one."""
        late = self._dice.below(self.ranks) if self._is_random else self.ranks - 1
        offsets_s = [0.0] * self.ranks
        offsets_s[late] = self._late_s
        return Step(0.0, tuple(offsets_s))


def usual_straggler(arrivals: Arrivals, steps: int) -> int:
    """The rank that is last most often in the first steps: what one would name in mode static."""
    lasts = Counter(_last(arrivals.step(number).offsets_s) for number in range(steps))
    return lasts.most_common(1)[0][0]


def _last(offsets_s: Sequence[float]) -> int:
    return max(range(len(offsets_s)), key=lambda rank: offsets_s[rank])
