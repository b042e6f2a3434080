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

from latecomer.verify.core.verdict import PROVED, Counterexample, Result, refuted
from latecomer.verify.pipeline.costs import HALVES, Costs, fault, written
from latecomer.verify.pipeline.schedule import (
    COMPUTE,
    TOWARDS,
    Action,
    Kind,
    LocatedAction,
    PipelineSchedule,
    Program,
)
from latecomer.verify.pipeline.verdict import missing, refuted_at

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

    for located in schedule.located():
        rank, _, action = located
        found = None
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
            return refuted_at(located, "well_formed", expected, found)

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
    ran: set[Action] = set()
    for located in schedule.located():
        action = located.action
        if action.kind not in COMPUTE:
            continue

        expected = "one F and one backward (B, or I and W) per stage and microbatch"
        if action in ran:
            return refuted_at(located, "exactly_once", expected, "it runs a second time")
        for kind in CLASHES.get(action.kind, ()):
            clashing = action._replace(kind=kind)
            if clashing in ran:
                return refuted_at(located, "exactly_once", expected, f"{clashing} runs, too")
        ran.add(action)

    for stage in range(schedule.stages):
        for microbatch in range(schedule.microbatches):
            is_fused = Action(stage, "B", microbatch) in ran
            needed: tuple[Kind, ...] = ("F",) if is_fused else ("F", "I", "W")
            for kind in needed:
                action = Action(stage, kind, microbatch)
                if action not in ran:
                    expected = "one F and one backward per stage and microbatch"
                    return missing(schedule, action, "exactly_once", expected, "it never runs")
    return PROVED


def dependencies(schedule: PipelineSchedule) -> Result:
    """Property 3, within each rank; across ranks a broken dependency is a deadlock.

    Every compute action occurs once.
    """
    done: set[Action] = set()
    for located in schedule.located():
        if located.action.kind not in COMPUTE:
            continue
        for need in _needs(schedule, located):
            if done.isdisjoint(need):
                expected = f"{need[0]} before it on the same rank"
                found = f"{need[0]} comes later"
                return refuted_at(located, "dependencies", expected, found)
        done.add(located.action)
    return PROVED


def _needs(schedule: PipelineSchedule, located: LocatedAction) -> Iterator[tuple[Action, ...]]:
    """What an action needs of its own rank: of each tuple, one."""
    stage, kind, microbatch = located.action
    if kind == "W":
        yield (Action(stage, "I", microbatch),)
        return
    source = stage - TOWARDS[kind]
    if kind != "F":
        yield (Action(stage, "F", microbatch),)
    if schedule.rank_of.get(source) == located.rank:
        kinds: tuple[Kind, ...] = ("F",) if kind == "F" else ("I", "B")
        yield tuple(Action(source, source_kind, microbatch) for source_kind in kinds)


def loss_order(schedule: PipelineSchedule) -> Result:
    """Property 4."""
    last_stage = schedule.stages - 1
    next_microbatch = 0
    for located in schedule.located():
        stage, kind, microbatch = located.action
        if stage == last_stage and kind == "F":
            if microbatch != next_microbatch:
                expected = (
                    f"the last stage to run F{next_microbatch} now, for PyTorch numbers losses as "
                    "they are computed"
                )
                return refuted_at(located, "loss_order", expected, f"F{microbatch}")
            next_microbatch += 1
    return PROVED


def _held(program: Program) -> list[int]:
    """The half activations held after each action."""
    return list(accumulate(HALVES.get(action.kind, 0) for action in program))


def peak_memory(schedule: PipelineSchedule) -> tuple[int, ...]:
    """The most each rank holds at once, in half activations."""
    return tuple(max([0, *_held(program)]) for program in schedule.programs)


def memory(schedule: PipelineSchedule, costs: Costs) -> Result:
    """Property 11: no rank ever holds more than its limit."""
    if costs.memory is None:
        return Result(PROVED.verdict, note="no limit is given")

    for rank, program in enumerate(schedule.programs):
        limit = costs.memory[rank]
        held = _held(program)
        for position, halves in enumerate(held):
            if halves > limit:
                expected = f"at most {_activations(limit)} activations on rank {rank}"
                found = (
                    f"{_activations(halves)} are held here, {_activations(max(held))} at the most"
                )
                located = LocatedAction(rank, position, program[position])
                return refuted_at(located, "memory", expected, found)
    return PROVED


def _activations(halves: int) -> str:
    return written(Fraction(halves, 2))


def sharding(schedule: PipelineSchedule) -> Result:
    """Property 9: of the stages that are gathered anywhere, none computes while it is freed."""
    gathered = {action.stage for _, _, action in schedule.located() if action.kind == "UNSHARD"}
    gathered_now: set[int] = set()
    for located in schedule.located():
        stage, kind, _ = located.action
        problem = None
        if kind == "UNSHARD":
            if stage in gathered_now:
                problem = "it is gathered already"
            gathered_now.add(stage)
        elif kind == "RESHARD":
            if stage not in gathered_now:
                problem = "it is not gathered"
            gathered_now.discard(stage)
        elif kind in COMPUTE and stage in gathered and stage not in gathered_now:
            problem = "its weights are not gathered"
        if problem is not None:
            expected = f"stage {stage} to be gathered (UNSHARD), used, freed (RESHARD) in turn"
            return refuted_at(located, "sharding", expected, problem)
    return PROVED
