"""The modes of a job beside each other: what a step takes in each, and what decides that.

Every mode runs the same steps on the same links. What no all-reduce can change comes first: how
long the ranks compute, and how long the first ones wait for the last one.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from latecomer.runtime.policy.candidates import costs_of_candidates
from latecomer.runtime.policy.cost_model import AlphaBeta, Profile, ScheduleCandidate, times
from latecomer.runtime.policy.options import Mode, Options
from latecomer.runtime.simulation.arrivals import Arrivals, usual_straggler
from latecomer.runtime.simulation.cluster import Cluster, Figures, StepWork

NATIVE_MODE: Mode = "native"
LOOKED_AT = 20  # steps from which it is seen whom one would name in mode static


@dataclass(frozen=True)
class Setting:
    """A job.

    Args:
        arrivals: makes the arrivals anew, the same each time.
        latency_s: of a message.
        bandwidth: of a port, each way, in bytes a second.
        work: what a step reduces.
        steps: how many.
        seed: of the messages' delays.
    """

    arrivals: Callable[[], Arrivals]
    latency_s: float
    bandwidth: float
    work: StepWork
    steps: int
    seed: int = 0

    @cached_property
    def ranks(self) -> int:
        """Their number."""
        return self.arrivals().ranks

    @cached_property
    def text(self) -> str:
        """What the arrivals are."""
        return self.arrivals().text

    @property
    def profile(self) -> Profile:
        """The links as ``latecomer profile`` would find them."""
        link = AlphaBeta(self.latency_s, 1.0 / self.bandwidth)
        return Profile(self.ranks, native=link, schedule=link)

    def options(self, mode: Mode) -> Options:
        """A mode's; static is told of the rank that is last most often."""
        if mode != "static":
            return Options(mode)
        return Options(mode, late=(usual_straggler(self.arrivals(), LOOKED_AT),))


@dataclass(frozen=True)
class ModeResult:
    """What became of one mode."""

    mode: Mode
    late: tuple[int, ...]  # the ranks that were named, in mode static
    figures: Figures

    @property
    def step_s(self) -> float:
        """A step, on average."""
        return statistics.fmean(took.end_s for took in self.figures.steps)

    @property
    def median_s(self) -> float:
        """The median step."""
        return statistics.median(took.end_s for took in self.figures.steps)

    @property
    def reason(self) -> str:
        """The most frequent one for how operations ran."""
        return self.figures.reasons.most_common(1)[0][0]

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        figures = self.figures
        return {
            "mode": self.mode,
            "late": list(self.late),
            "step_s": self.step_s,
            "median_s": self.median_s,
            "steps_s": [took.end_s for took in figures.steps],
            "operations": figures.operations,
            "early": figures.early,
            "reasons": dict(figures.reasons.most_common()),
            "messages": figures.messages,
        }


@dataclass(frozen=True)
class Comparison:
    """All modes of a setting; ``native`` is always among them."""

    setting: Setting
    results: tuple[ModeResult, ...]
    native_s: float  # an operation, from the last arrival on
    ceiling_s: float  # what no schedule can exceed: saved by one operation at best

    @property
    def native(self) -> ModeResult:
        """What the others are compared with."""
        return next(result for result in self.results if result.mode == NATIVE_MODE)

    @property
    def compute_s(self) -> float:
        """Until the first rank has its gradients, on average."""
        return statistics.fmean(took.first_s for took in self.native.figures.steps)

    @property
    def wait_s(self) -> float:
        """From then until the last one has, on average."""
        steps = self.native.figures.steps
        return statistics.fmean(took.last_s - took.first_s for took in steps)

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        work = self.setting.work
        return {
            "ranks": self.setting.ranks,
            "arrivals": self.setting.text,
            "latency_s": self.setting.latency_s,
            "bytes_per_s": self.setting.bandwidth,
            "bytes": work.nbytes,
            "buckets": work.buckets,
            "overlap_s": work.overlap_s,
            "steps": self.setting.steps,
            "seed": self.setting.seed,
            "compute_s": self.compute_s,
            "wait_s": self.wait_s,
            "native_s": self.native_s,
            "ceiling_s": self.ceiling_s,
            "modes": [result.as_json() for result in self.results],
        }


def compare(
    setting: Setting,
    modes: Sequence[Mode],
    progress: Callable[[Mode, int], None] = lambda mode, steps: None,
) -> Comparison:
    """Run the modes one after the other, native first.

    Args:
        setting: the job.
        modes: which; native is added.
        progress: is told how many steps of a mode are done.
    """
    others = [mode for mode in modes if mode != NATIVE_MODE]
    results = [run_mode(setting, mode, progress) for mode in (NATIVE_MODE, *others)]
    native_s = setting.profile.native_s(setting.work.nbytes)
    return Comparison(
        setting=setting,
        results=tuple(results),
        native_s=native_s,
        ceiling_s=max(0.0, native_s - _shortest_completion_s(setting)),
    )


def run_mode(
    setting: Setting,
    mode: Mode,
    progress: Callable[[Mode, int], None] = lambda mode, steps: None,
    *,
    is_metered: bool = False,
) -> ModeResult:
    """Run one mode; ``is_metered``: the processor's time of each rank's decisions is measured."""
    options = setting.options(mode)
    progress(mode, 0)
    cluster = Cluster(
        options,
        _candidates(setting.ranks, options.at_most_late(setting.ranks)),
        setting.profile,
        setting.work,
        setting.arrivals(),
        seed=setting.seed,
        is_metered=is_metered,
    )
    for number, _ in enumerate(cluster.run(setting.steps)):
        progress(mode, number + 1)
    return ModeResult(mode, options.late, cluster.figures)


def _candidates(ranks: int, most_late: int) -> tuple[ScheduleCandidate, ...]:
    """What a mode chooses from: of all that a job's modes may want, which are searched once."""
    all_modes = max(most_late, Options().at_most_late(ranks), 1)
    candidates = costs_of_candidates(ranks, all_modes)
    return tuple(candidate for candidate in candidates if candidate.late <= most_late)


def _shortest_completion_s(setting: Setting) -> float:
    """What is left to do when one rank was waited for, by the best schedule for that."""
    candidates = _candidates(setting.ranks, 1)
    schedules = times(candidates, setting.profile, 1, setting.work.nbytes)
    return min(schedule.completion_s for schedule in schedules)
