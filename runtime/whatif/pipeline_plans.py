"""What a recorded pipeline could run instead: planned schedules by its own times, within memory.

The traced order is what the recording shows, by the times of :mod:`.stage_times`; how far that is
from what was traced tells what the model leaves out. A planned schedule splits the backward pass
where that is of use; ``synth`` plans it, and ``verify`` proves it.
"""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from latecomer.runtime.whatif.pipeline_spans import PipelineSpans
from latecomer.runtime.whatif.stage_times import StageTimes, stage_times
from latecomer.synth.pipeline import PipelineAnswer, Problem, Solver, make, plan
from latecomer.synth.pipeline.evaluate import makespan, peaks
from latecomer.synth.units import format_seconds
from latecomer.verify.pipeline import Instance, Link, write
from latecomer.verify.pipeline.schedule import Action

ASSUMED_SHARE = 0.5
TICK_S = 1e-6
BY_OTHERS = "not by latecomer"


@dataclass(frozen=True)
class Plan:
    """One way to run the step; ``less`` than the traced order, as a share of it."""

    name: str
    step_s: float
    less: float
    basis: str


@dataclass(frozen=True)
class PipelineAdvice:
    """What was recorded, and the ways; ``share_is_assumed``: the recording does not tell it."""

    source: str
    stages: int
    microbatches: int
    steps: int
    times: StageTimes
    model_s: float
    weight_share: float
    share_is_assumed: bool
    memory: tuple[int, ...]
    plans: tuple[Plan, ...]

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        return asdict(self)


def advise(
    recorded: PipelineSpans,
    *,
    weight_share: float | None = None,
    time_limit_s: float = 10.0,
    schedule: Path | None = None,
) -> PipelineAdvice:
    """Plan for the recorded times.

    Args:
        weight_share: of a backward pass, what is for the weights; default: as recorded, or half.
        time_limit_s: for each search.
        schedule: where the schedule within the traced order's memory goes.
    """
    times = stage_times(recorded)
    share = weight_share if weight_share is not None else times.weight_share
    is_assumed = share is None
    if share is None:
        share = ASSUMED_SHARE

    solver = Solver(time_limit_s=time_limit_s)
    free = _problem(recorded, times, share)
    orders = [[Action(*action) for action in order] for order in times.orders]
    traced_ticks = makespan(free, orders)
    memory = tuple(-(-halves // 2) for halves in peaks(orders))
    within = plan(_problem(recorded, times, share, memory=memory), solver=solver)
    beyond = plan(free, solver=solver)
    alike = _alike(times)
    alike_ticks = makespan(_problem(recorded, alike, share), orders)
    alike_within = plan(_problem(recorded, alike, share, memory=memory), solver=solver)
    if schedule is not None:
        write(within.schedule, schedule)

    def shorter(name: str, ticks: int, basis: str) -> Plan:
        return Plan(name, ticks * TICK_S, 1 - ticks / traced_ticks, basis)

    plans = (
        shorter("planned, in the traced order's memory", _ticks(within), within.claim),
        shorter("planned, with all the memory that it wants", _ticks(beyond), beyond.claim),
        shorter("the traced order, stages alike", alike_ticks, BY_OTHERS),
        shorter("stages alike, planned in that memory", _ticks(alike_within), BY_OTHERS),
    )
    return PipelineAdvice(
        source=recorded.source,
        stages=recorded.stages,
        microbatches=recorded.microbatches,
        steps=len(recorded.steps),
        times=times,
        model_s=traced_ticks * TICK_S,
        weight_share=share,
        share_is_assumed=is_assumed,
        memory=memory,
        plans=plans,
    )


def as_text(advice: PipelineAdvice) -> str:
    """For people."""
    times = advice.times
    lines = [
        advice.source,
        f"a pipeline of {advice.stages} stages, {advice.microbatches} microbatches, recorded "
        f"{advice.steps} times",
        "",
        f"{'stage':<7}{'forward':>10}{'backward':>10}{'message to the next':>21}",
    ]
    for stage, (forward_s, backward_s) in enumerate(
        zip(times.forward_s, times.backward_s, strict=True)
    ):
        row = f"{stage:<7}{format_seconds(forward_s):>10}{format_seconds(backward_s):>10}"
        if stage < len(times.message_s):
            row += f"{format_seconds(times.message_s[stage]):>21}"
        lines.append(row)
    off = times.traced_s / advice.model_s - 1
    lines += [
        "",
        f"From the first forward to the last backward {format_seconds(times.traced_s)} "
        f"({format_seconds(advice.model_s)} by these times; {off:+.1%} is beyond them).",
        f"Its order holds {', '.join(map(str, advice.memory))} activations on its ranks.",
    ]
    share = f"{advice.weight_share:.0%} of a backward pass is for the weights"
    lines.append(f"{share}, as is assumed." if advice.share_is_assumed else f"{share}.")
    lines += ["", f"{'instead':<44}{'a step':>10}{'less':>8}  by"]
    lines += [
        f"{each.name:<44}{format_seconds(each.step_s):>10}{each.less:>8.1%}  {each.basis}"
        for each in advice.plans
    ]
    return "\n".join(lines)


def _ticks(answer: PipelineAnswer) -> int:
    return answer.measures.exact.makespan


def _alike(times: StageTimes) -> StageTimes:
    """The same work, spread evenly over the stages."""
    stages = len(times.forward_s)
    return replace(
        times,
        forward_s=(statistics.fmean(times.forward_s),) * stages,
        backward_s=(statistics.fmean(times.backward_s),) * stages,
    )


def _problem(
    recorded: PipelineSpans,
    times: StageTimes,
    share: float,
    memory: tuple[int, ...] | None = None,
) -> Problem:
    """The times in ticks of a microsecond."""
    weight = tuple(max(1, round(share * each_s / TICK_S)) for each_s in times.backward_s)
    whole = tuple(round(each_s / TICK_S) for each_s in times.backward_s)
    links: dict[tuple[int, int], int] = {}
    for boundary, message_s in enumerate(times.message_s):
        one, other = sorted(recorded.rank_of[boundary : boundary + 2])
        if one != other:
            links[one, other] = max(links.get((one, other), 0), round(message_s / TICK_S))
    instance = Instance(
        forward=tuple(max(1, round(each_s / TICK_S)) for each_s in times.forward_s),
        backward=tuple(
            max(1, all_of_it - part) for all_of_it, part in zip(whole, weight, strict=True)
        ),
        weight=weight,
        links=tuple(Link(pair, latency=ticks) for pair, ticks in links.items() if ticks),
        memory=memory,
    )
    return make(recorded.microbatches, instance, recorded.rank_of)
