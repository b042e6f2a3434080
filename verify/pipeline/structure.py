"""Properties that each rank's program shows by itself: what runs, how often, in which order.

well_formed    stages and microbatches exist, each stage is on one rank, each rank has one
exactly_once   of every microbatch and stage one F, and one backward: either B, or I and W
dependencies   on a rank F comes before I or B, I before W, and a stage on the same rank before
               the next one (backward the other way round)
loss_order     the last stage runs F in the order of the microbatches: PyTorch's runtime stores
               losses in order of execution and looks them up by microbatch
memory         the activations a rank holds stay within its limit
sharding       a stage that is gathered (UNSHARD) and freed (RESHARD) computes in between only
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import accumulate

from verify.core.verdict import PROVED, Counterexample, Result, refuted
from verify.pipeline.costs import HALVES, Costs, fault, written
from verify.pipeline.schedule import (
    COMPUTE,
    TOWARDS,
    Action,
    Kind,
    PipelineSchedule,
    Place,
    Program,
)
from verify.pipeline.verdict import missing, refuted_at

CLASHES: dict[Kind, tuple[Kind, ...]] = {"I": ("B",), "W": ("B",), "B": ("I", "W")}
"""Kinds that do not go with one another, for one stage and microbatch."""


def well_formed(schedule: PipelineSchedule) -> Result:
    """Property 1; also of schedules made in memory, which no reader of files has seen."""
    stages = schedule.stages
    microbatches = schedule.microbatches
    problem = fault(schedule.instance, stages, schedule.ranks)
    for size, value in [("stages", stages), ("microbatches", microbatches)]:
        if value < 1:
            problem = f"{size} is {value}, must be 1 or more"
    if problem is not None:
        return _ill_formed("an instance that makes sense", problem)
    for place in schedule.located():
        (rank, _, action), found = place, None
        if not 0 <= action.stage < stages:
            expected = f"stages in 0..{stages - 1}"
            found = f"stage {action.stage}"
        elif action.microbatch is not None and not 0 <= action.microbatch < microbatches:
            expected = f"microbatches in 0..{microbatches - 1}"
            found = f"microbatch {action.microbatch}"
        elif schedule.rank_of[action.stage] != rank:
            expected = "each stage on one rank"
            found = f"stage {action.stage} on rank {schedule.rank_of[action.stage]} and here"
        if found is not None:
            return refuted_at(place, "well_formed", expected, found)
    for stage in range(stages):
        if stage not in schedule.rank_of:
            return _ill_formed("a rank for each stage", f"stage {stage} is on none")
    for rank, program in enumerate(schedule.programs):
        if not program:
            return _ill_formed("a stage for each rank", f"rank {rank} has no actions")
    return PROVED


def _ill_formed(expected: str, found: str) -> Result:
    return refuted(Counterexample(property="well_formed", expected=expected, found=found))


def exactly_once(schedule: PipelineSchedule) -> Result:
    """Property 2, of the compute actions; messages have their own."""
    seen: set[Action] = set()
    for place in schedule.located():
        action = place.action
        if action.kind not in COMPUTE:
            continue
        for other in (action, *(action._replace(kind=k) for k in CLASHES.get(action.kind, ()))):
            if other in seen:
                found = "it runs a second time" if other == action else f"{other} runs, too"
                expected = "one F and one backward (B, or I and W) per stage and microbatch"
                return refuted_at(place, "exactly_once", expected, found)
        seen.add(action)
    for stage in range(schedule.stages):
        for microbatch in range(schedule.microbatches):
            full = Action(stage, "B", microbatch) in seen
            needed: tuple[Kind, ...] = ("F",) if full else ("F", "I", "W")
            for action in [Action(stage, kind, microbatch) for kind in needed]:
                if action not in seen:
                    expected = "one F and one backward per stage and microbatch"
                    return missing(schedule, action, "exactly_once", expected, "it never runs")
    return PROVED


def dependencies(schedule: PipelineSchedule) -> Result:
    """Property 3, within each rank; across ranks a broken dependency is a deadlock.

    Every compute action occurs once.
    """
    done: set[Action] = set()
    for place in schedule.located():
        if place.action.kind not in COMPUTE:
            continue
        for need in _needs(schedule, place):
            if done.isdisjoint(need):
                expected = f"{need[0]} before it on the same rank"
                found = f"{need[0]} comes later"
                return refuted_at(place, "dependencies", expected, found)
        done.add(place.action)
    return PROVED


def _needs(schedule: PipelineSchedule, place: Place) -> Iterator[tuple[Action, ...]]:
    """What an action needs of its own rank: of each tuple, one."""
    stage, kind, microbatch = place.action
    if kind == "W":
        yield (Action(stage, "I", microbatch),)
        return
    source = stage - TOWARDS[kind]
    if kind != "F":
        yield (Action(stage, "F", microbatch),)
    if schedule.rank_of.get(source) == place.rank:
        kinds: tuple[Kind, ...] = ("F",) if kind == "F" else ("I", "B")
        yield tuple(Action(source, made, microbatch) for made in kinds)


def loss_order(schedule: PipelineSchedule) -> Result:
    """Property 4."""
    last = schedule.stages - 1
    expected = 0
    for place in schedule.located():
        stage, kind, microbatch = place.action
        if stage == last and kind == "F":
            if microbatch != expected:
                right = (
                    f"the last stage to run F{expected} now, for PyTorch numbers losses as they "
                    "are computed"
                )
                return refuted_at(place, "loss_order", right, f"F{microbatch}")
            expected += 1
    return PROVED


def _held(program: Program) -> list[int]:
    """The half activations held after each action."""
    return list(accumulate(HALVES.get(action.kind, 0) for action in program))


def peak_memory(schedule: PipelineSchedule) -> tuple[int, ...]:
    """The most each rank holds at once, in half activations."""
    return tuple(max([0, *_held(program)]) for program in schedule.programs)


def memory(schedule: PipelineSchedule, costs: Costs) -> Result:
    """Property 10: no rank ever holds more than its limit."""
    if costs.memory is None:
        return Result(PROVED.verdict, note="no limit is given")
    held = [halves for program in schedule.programs for halves in _held(program)]
    for place, halves in zip(schedule.located(), held, strict=True):
        limit = costs.memory[place.rank]
        if halves > limit:
            peak = max(_held(schedule.programs[place.rank]))
            allowed, here, most = (written(Fraction(n, 2)) for n in (limit, halves, peak))
            expected = f"at most {allowed} activations on rank {place.rank}"
            found = f"{here} are held here, {most} at the most"
            return refuted_at(place, "memory", expected, found)
    return PROVED


def sharding(schedule: PipelineSchedule) -> Result:
    """Property 8: of the stages that are gathered anywhere, none computes while it is freed."""
    gathered = {action.stage for _, _, action in schedule.located() if action.kind == "UNSHARD"}
    here: set[int] = set()
    for place in schedule.located():
        stage, kind, _ = place.action
        problem = None
        if kind == "UNSHARD":
            if stage in here:
                problem = "it is gathered already"
            here.add(stage)
        elif kind == "RESHARD":
            if stage not in here:
                problem = "it is not gathered"
            here.discard(stage)
        elif kind in COMPUTE and stage in gathered and stage not in here:
            problem = "its weights are not gathered"
        if problem is not None:
            expected = f"stage {stage} to be gathered (UNSHARD), used, freed (RESHARD) in turn"
            return refuted_at(place, "sharding", expected, problem)
    return PROVED
