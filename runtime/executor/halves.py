"""The door to the executor for reduce-scatters and all-gathers: halves of AllReduce, proved."""

from __future__ import annotations

from dataclasses import dataclass

from latecomer.runtime.executor.load import Runnable
from latecomer.runtime.executor.program import rank_program
from latecomer.runtime.work import RankProgram
from latecomer.verify.core.schedule import Schedule
from latecomer.verify.core.verdict import Verdict
from latecomer.verify.errors import ScheduleRefused
from latecomer.verify.halves import Half, check_half


@dataclass(eq=False)
class VerifiedHalf(Runnable):
    """A reduce-scatter or an all-gather that is proved; made by ``load_half`` and nothing else."""

    half: Half

    def program(self, rank: int, late: tuple[int, ...]) -> RankProgram:
        """What ``rank`` does; nobody is late."""
        assert not late
        return rank_program(self.schedule, rank)


def load_half(schedule: Schedule, name: str, half: Half) -> VerifiedHalf:
    """Prove that ``schedule`` is such a half; else ScheduleRefused."""
    for prop, result in check_half(schedule, half).items():
        if result.verdict is not Verdict.PROVED:
            why = result.note
            if result.counterexample is not None:
                why = f"expected {result.counterexample.expected}"
                why += f", found {result.counterexample.found}"
            raise ScheduleRefused(
                f"{name} is not proved as {half}, and so never run: {prop} is "
                f"{result.verdict.value}: {why}"
            )
    return VerifiedHalf(schedule, name, half)
