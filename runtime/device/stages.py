"""What one rank does of a schedule in stages: kernels inside its machine, transfers between them.

What stages are, and what is proved of them: ``latecomer.verify.device.stages``; a node there is a
machine here. All ranks prove all of it, of all machines, so that all come to the same. With other
late ranks whole machines change places, and ranks within them: a machine's program is then, under
other names of its ranks, one that was proved before, which is looked up. What is not is proved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from latecomer.runtime.device.proofs import require_proved, rows_of, too_long
from latecomer.runtime.device.variants import LoadedProgram
from latecomer.runtime.executor.load import Runnable, Verified
from latecomer.runtime.executor.program import rank_program
from latecomer.runtime.work import TransferEnd
from latecomer.verify.core.schedule import IntArray, Schedule
from latecomer.verify.core.verdict import BaseReport, Result, Verdict
from latecomer.verify.device.check import check
from latecomer.verify.device.program import DeviceProgram
from latecomer.verify.device.stages import NodePart, faithful, in_stages, parts
from latecomer.verify.errors import ScheduleRefused

REMEDY = "synth generate --stages makes schedules for that"


@dataclass(frozen=True)
class RankStages:
    """This rank's part, by stage; where a stage is missing it has nothing to do.

    Attributes:
        stages: of the schedule.
        kernels: what kernels run, in even stages.
        between: what is transferred, in odd ones; in the order of the rank's program.
        widest: the program of any rank and stage that has most slots, by which all cut tensors.
    """

    stages: int
    kernels: Mapping[int, LoadedProgram]
    between: Mapping[int, tuple[TransferEnd, ...]]
    widest: DeviceProgram


class ProvedStages:
    """The stages of one schedule, for any late ranks, on machines of so many ranks."""

    def __init__(self, verified: Verified, ranks_per_machine: int) -> None:
        self._verified = verified
        self._per_machine = ranks_per_machine
        self._machines = verified.schedule.ranks // ranks_per_machine
        self._proved: set[bytes] = set()
        self.checks = 0  # how often a machine's program was checked

    def parts(self, late: tuple[int, ...]) -> tuple[Schedule, IntArray, tuple[NodePart, ...]]:
        """The schedule with ``late`` as late ranks, its stages, and proved parts of machines.

        ScheduleRefused if something is not proved.
        """
        schedule = self._verified.for_late(late)
        stage_of = in_stages(schedule, self._machines)
        if wrong := _refutation(faithful(schedule, self._machines, stage_of)):
            raise ScheduleRefused(f"{self._verified.name} has no stages: {wrong}")
        machine_parts = parts(schedule, self._machines, stage_of)
        first = late[0] % self._per_machine if late else 0
        for part in machine_parts:
            self._require_proved(part, first)
        return schedule, stage_of, machine_parts

    def of_rank(self, rank: int, late: tuple[int, ...], device: torch.device) -> RankStages:
        """What ``rank`` does with ``late`` as late ranks; ScheduleRefused as :meth:`parts`."""
        schedule, stage_of, machine_parts = self.parts(late)
        machine, local_rank = divmod(rank, self._per_machine)
        kernels = {
            part.stage: LoadedProgram(part.program, local_rank, device)
            for part in machine_parts
            if part.node == machine
        }
        between: dict[int, list[TransferEnd]] = {}
        for end in rank_program(schedule, rank).ends:
            stage = int(stage_of[end.index])
            if stage % 2:
                between.setdefault(stage, []).append(end)
        return RankStages(
            stages=int(stage_of.max()) + 1,
            kernels=kernels,
            between={stage: tuple(ends) for stage, ends in between.items()},
            widest=max((part.program for part in machine_parts), key=lambda each: each.slots),
        )

    def _require_proved(self, part: NodePart, first: int) -> None:
        """ScheduleRefused if the program is not proved; names of ranks count from ``first``."""
        key = _under_names_from(first, part.program)
        if key in self._proved:
            return
        self.checks += 1
        where = f"{self._verified.name}, stage {part.stage} of machine {part.node}"
        require_proved(part.program, part.rounds, where)
        self._proved.add(key)


def unfit_for_stages(runnable: Runnable, ranks_per_machine: int) -> str:
    """Why a schedule does not go in stages; empty if it does. Alike on all ranks."""
    if not isinstance(runnable, Verified):
        return f"it is for ranks of one machine; {REMEDY}"
    schedule = runnable.schedule
    if reason := too_long(rows_of(schedule)):
        return reason
    machines = schedule.ranks // ranks_per_machine
    stage_of = in_stages(schedule, machines)
    if wrong := _refutation(faithful(schedule, machines, stage_of)):
        return f"it has no stages: {wrong}; {REMEDY}"
    machine_parts = parts(schedule, machines, stage_of)
    if not machine_parts:
        return f"nothing of it is inside machines; {REMEDY}"
    for part in machine_parts:
        if wrong := _wrong_with(check(part.program, part.rounds)):
            return f"stage {part.stage} of machine {part.node} is no kernel's: {wrong}; {REMEDY}"

    told = runnable.ranks_per_machine
    if schedule.late and told != ranks_per_machine:  # another late rank would part machines
        return f"its meta tells of {told} rank(s) per machine, and there are {ranks_per_machine}"
    return ""


def _refutation(result: Result) -> str:
    counterexample = result.counterexample
    if counterexample is None:
        return ""
    where = f"{counterexample.phase} round {counterexample.round}"
    return f"{where}: {counterexample.found} of rank {counterexample.rank}"


def _wrong_with(report: BaseReport) -> str:
    if report.verdict is Verdict.PROVED:
        return ""
    counterexample = report.counterexample
    return "undecided" if counterexample is None else counterexample.found


def _under_names_from(first: int, program: DeviceProgram) -> bytes:
    """The program with its ranks numbered from ``first`` on: equal if it is the same one."""
    count = program.ranks
    numbers = [program.chunks, program.slots, program.sets]
    rows = []
    for name in range(count):
        of_rank = program.rows[(name + first) % count].copy()
        of_rank[:, 1] = (of_rank[:, 1] - first) % count
        numbers.append(len(of_rank))
        rows.append(of_rank.ravel())
    return np.concatenate([np.array(numbers, np.int32), *rows]).tobytes()
