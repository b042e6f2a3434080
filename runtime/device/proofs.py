"""What a kernel is launched with is proved here first, the very rows.

The proof is that of ``latecomer.verify.device.check``.

A schedule's device program is checked once, when it is built, outside of any operation. With other
late ranks it is the same program under other names of ranks, which is compared row by row; names
enter nothing that is decided, so the proof holds for it. What is not the same is checked anew.

The check's time grows with the rows of all ranks, by a tenth of a millisecond for each or less. So
there is a limit, by the number of rows and not by the clock, so that all ranks come to the same: a
schedule that is beyond it is run by transfers, and this is reported.
"""

from __future__ import annotations

import logging

import numpy as np

from latecomer.runtime.executor.load import Verified
from latecomer.runtime.host import host
from latecomer.verify.core.schedule import Schedule
from latecomer.verify.core.verdict import Verdict
from latecomer.verify.device.check import check
from latecomer.verify.device.program import SETS, DeviceProgram, device_program
from latecomer.verify.errors import ScheduleRefused

MOST_ROWS = 50_000
"""Of all ranks together, some seconds on one core; 8 ranks have fewer with up to 1,700 chunks."""

REMEDY = "Run it by transfers: device='transfers', or LATECOMER_DEVICE=transfers"
logger = logging.getLogger("latecomer")


def rows_of(schedule: Schedule) -> int:
    """Rows of all ranks: a put and a receive for each transfer."""
    return 2 * len(schedule.table.dst)


def too_long(rows: int) -> str:
    """Why so many rows are not checked; empty if they are."""
    return f"{rows} rows are more than are proved ({MOST_ROWS})" if rows > MOST_ROWS else ""


def require_proved(program: DeviceProgram, schedule: Schedule, name: str) -> None:
    """ScheduleRefused, with what is wrong and what to do, if not every property is proved."""
    began_s = host.monotonic()
    report = check(program, schedule)
    took_s = host.monotonic() - began_s
    rows = rows_of(schedule)
    if report.verdict is not Verdict.PROVED:
        counterexample = report.counterexample
        reason = "undecided"
        if counterexample is not None:
            on_rank = "" if counterexample.rank is None else f" on rank {counterexample.rank}"
            lines = [
                f"{counterexample.property} is refuted{on_rank}",
                f"expected {counterexample.expected}, found {counterexample.found}",
                *counterexample.actions,
            ]
            reason = "\n  ".join(lines)
        text = f"{name}: the program that one kernel per rank would run is not proved: {reason}"
        raise ScheduleRefused(f"{text}\n{REMEDY}")
    logger.info("%s: device program of %d rows proved in %.2f s", name, rows, took_s)


class ProvedPrograms:
    """The device programs of one schedule, for any late ranks."""

    def __init__(self, verified: Verified, sets: int = SETS) -> None:
        self._verified = verified
        self._sets = sets
        self._proved: tuple[DeviceProgram, list[int]] | None = None
        self.checks = 0  # how often all was checked

    def program(self, late: tuple[int, ...]) -> DeviceProgram:
        """With ``late`` as late ranks; ScheduleRefused if it is not proved."""
        schedule = self._verified.for_late(late)
        program = device_program(schedule, self._sets)
        places = _places(self._verified, late)
        if self._proved is not None:
            proved, proved_places = self._proved
            if _same(program, places, proved, proved_places):
                return program

        self.checks += 1
        require_proved(program, schedule, self._verified.name)
        self._proved = (program, places)
        return program


def _places(verified: Verified, late: tuple[int, ...]) -> list[int]:
    """By rank of the file, who takes its place where ``late`` ranks are late (``for_late``)."""
    old = verified.late
    places = list(range(verified.schedule.ranks))
    moved = sorted(set(late) - set(old))
    freed = sorted(set(old) - set(late))
    for place, rank in zip((*old, *moved), (*late, *freed), strict=True):
        places[place] = rank
    return places


def _same(
    program: DeviceProgram,
    places: list[int],
    proved: DeviceProgram,
    proved_places: list[int],
) -> bool:
    """Whether both are one program, with ``places`` and ``proved_places`` as its ranks' names."""
    new_names = np.empty(proved.ranks, np.int64)
    new_names[proved_places] = places
    for rank, rows in enumerate(proved.rows):
        expected = rows.copy()
        expected[:, 1] = new_names[rows[:, 1]]  # the peers
        if not np.array_equal(expected, program.rows[new_names[rank]]):
            return False
    return True
