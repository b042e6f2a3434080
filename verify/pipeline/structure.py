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

from verify.pipeline.costs import HALVES, Costs, fault
from verify.pipeline.schedule import COMPUTE, Action, Kind, PipelineSchedule
from verify.pipeline.verdict import PROVED, Fault, Finding, refuted, refuted_at


def well_formed(schedule: PipelineSchedule) -> Finding:
    """Property 1; also of schedules made in memory, which no reader of files has seen."""
    stages, microbatches = schedule.stages, schedule.microbatches
    problem = fault(schedule.situation, stages, schedule.ranks)
    for size, value in [("stages", stages), ("microbatches", microbatches)]:
        if value < 1:
            problem = f"{size} is {value}, must be 1 or more"
    if problem is not None:
        return _no_place("a situation that makes sense", problem)
    for rank, position, action in schedule.located():
        found = None
        if not 0 <= action.stage < stages:
            expected, found = f"stages in 0..{stages - 1}", f"stage {action.stage}"
        elif action.microbatch is not None and not 0 <= action.microbatch < microbatches:
            expected = f"microbatches in 0..{microbatches - 1}"
            found = f"microbatch {action.microbatch}"
        elif schedule.rank_of[action.stage] != rank:
            expected = "each stage on one rank"
            found = f"stage {action.stage} on rank {schedule.rank_of[action.stage]} and here"
        if found is not None:
            return refuted_at("well_formed", rank, position, action, expected, found)
    for stage in range(stages):
        if stage not in schedule.rank_of:
            return _no_place("a rank for each stage", f"stage {stage} is on none")
    for rank, program in enumerate(schedule.programs):
        if not program:
            return _no_place("a stage for each rank", f"rank {rank} has no actions")
    return PROVED


def _no_place(expected: str, found: str) -> Finding:
    return refuted(Fault(property="well_formed", expected=expected, found=found))


def exactly_once(schedule: PipelineSchedule) -> Finding:
    """Property 2, of the compute actions; messages have their own."""
    seen: set[Action] = set()
    for rank, position, action in schedule.located():
        if action.kind not in COMPUTE:
            continue
        clash = [action]
        if action.kind == "B":
            clash += [action._replace(kind="I"), action._replace(kind="W")]
        elif action.kind in ("I", "W"):
            clash.append(action._replace(kind="B"))
        for other in clash:
            if other in seen:
                found = "it runs a second time" if other == action else f"{other} runs, too"
                expected = "one F and one backward (B, or I and W) per stage and microbatch"
                return refuted_at("exactly_once", rank, position, action, expected, found)
        seen.add(action)
    for stage in range(schedule.stages):
        for microbatch in range(schedule.microbatches):
            full = Action(stage, "B", microbatch) in seen
            needed: tuple[Kind, ...] = ("F",) if full else ("F", "I", "W")
            for kind in needed:
                if Action(stage, kind, microbatch) not in seen:
                    rank = schedule.rank_of[stage]
                    return refuted(
                        Fault(
                            property="exactly_once",
                            rank=rank,
                            action=str(Action(stage, kind, microbatch)),
                            expected="one F and one backward per stage and microbatch",
                            found="it never runs",
                        )
                    )
    return PROVED


def dependencies(schedule: PipelineSchedule) -> Finding:
    """Property 3, within each rank; across ranks a broken dependency is a deadlock.

    Every compute action occurs once.
    """
    done: set[Action] = set()
    for rank, position, action in schedule.located():
        if action.kind not in COMPUTE:
            continue
        for need in _needs(schedule, rank, action):
            if not any(Action(stage, kind, action.microbatch) in done for stage, kind in need):
                stage, kind = need[0]
                wanted = Action(stage, kind, action.microbatch)
                return refuted_at(
                    "dependencies",
                    rank,
                    position,
                    action,
                    f"{wanted} before it on the same rank",
                    f"{wanted} comes later",
                )
        done.add(action)
    return PROVED


def _needs(schedule: PipelineSchedule, rank: int, action: Action) -> list[list[tuple[int, Kind]]]:
    """What an action needs of its own rank: of each list, one."""
    stage = action.stage
    if action.kind == "F":
        before = stage > 0 and schedule.rank_of[stage - 1] == rank
        return [[(stage - 1, "F")]] if before else []
    if action.kind == "W":
        return [[(stage, "I")]]
    own: list[list[tuple[int, Kind]]] = [[(stage, "F")]]
    after = stage + 1 < schedule.stages and schedule.rank_of[stage + 1] == rank
    return [*own, [(stage + 1, "I"), (stage + 1, "B")]] if after else own


def loss_order(schedule: PipelineSchedule) -> Finding:
    """Property 4."""
    last, expected = schedule.stages - 1, 0
    for rank, position, action in schedule.located():
        if action.stage == last and action.kind == "F":
            if action.microbatch != expected:
                return refuted_at(
                    "loss_order",
                    rank,
                    position,
                    action,
                    f"the last stage to run F{expected} now, for PyTorch numbers losses as they "
                    "are computed",
                    f"F{action.microbatch}",
                )
            expected += 1
    return PROVED


def peak_memory(schedule: PipelineSchedule) -> tuple[int, ...]:
    """The most each rank holds at once, in half activations."""
    peaks = []
    for program in schedule.programs:
        held = peak = 0
        for action in program:
            held += HALVES.get(action.kind, 0)
            peak = max(peak, held)
        peaks.append(peak)
    return tuple(peaks)


def memory(schedule: PipelineSchedule, costs: Costs) -> Finding:
    """Property 10: no rank ever holds more than its limit."""
    if costs.memory is None:
        return Finding(PROVED.verdict, note="no limit is given")
    for rank, program in enumerate(schedule.programs):
        held = 0
        for position, action in enumerate(program):
            held += HALVES.get(action.kind, 0)
            if held > costs.memory[rank]:
                return refuted_at(
                    "memory",
                    rank,
                    position,
                    action,
                    f"at most {costs.memory[rank] / 2:g} activations on rank {rank}",
                    f"{held / 2:g} are held here, {peak_memory(schedule)[rank] / 2:g} at the most",
                )
    return PROVED


def sharding(schedule: PipelineSchedule) -> Finding:
    """Property 8: of the stages that are gathered anywhere, none computes while it is freed."""
    gathered = {action.stage for _, _, action in schedule.located() if action.kind == "UNSHARD"}
    here: set[int] = set()
    for rank, position, action in schedule.located():
        stage, kind = action.stage, action.kind
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
            return refuted_at("sharding", rank, position, action, expected, problem)
    return PROVED
