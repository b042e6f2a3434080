"""Decide every property of a device program, and of the schedule that it claims to carry out."""

from __future__ import annotations

from typing import Any

import msgspec

from latecomer.verify.asynchronous.verdict import EVIDENCE
from latecomer.verify.core.schedule import Schedule
from latecomer.verify.core.verdict import BaseReport, Result, Verdict, unknown
from latecomer.verify.device.order import all_heard, one_operation, race_free
from latecomer.verify.device.program import DeviceProgram, require_power_of_two
from latecomer.verify.device.rows import slots_match
from latecomer.verify.device.sums import same_sums


class DeviceReport(BaseReport, msgspec.Struct, frozen=True, kw_only=True):
    """Everything ``verify`` says about one device program.

    Attributes:
        ranks, chunks, sets, slots: of the program.
        rows: of the rank that has most.
        results: property name -> result, in the order of the checks.
    """

    ranks: int
    chunks: int
    sets: int
    slots: int
    rows: int
    results: dict[str, Result]

    def to_json(self) -> dict[str, Any]:
        """The object ``device`` that ``verify --json`` prints."""
        wrong = self.counterexample
        return {
            "verdict": self.verdict.value,
            "sets": self.sets,
            "slots": self.slots,
            "rows": self.rows,
            "properties": {name: r.verdict.value for name, r in self.results.items()},
            "notes": {name: r.note for name, r in self.results.items() if r.note},
            "counterexample": wrong and {name: getattr(wrong, name) for name in EVIDENCE},
        }


def check(program: DeviceProgram, schedule: Schedule) -> DeviceReport:
    """Check a program of any maker against a well formed schedule; for any number of operations.

    Args:
        program: of all ranks, as ``latecomer.verify.device.program.device_program`` makes it.
        schedule: what the program claims to carry out.

    Raises:
        ArgumentError: the number of sets is no power of two.

    Examples:
        >>> from latecomer import synth
        >>> from latecomer.verify.device.check import check
        >>> from latecomer.verify.device.program import device_program
        >>> schedule = synth.generate(4)
        >>> report = check(device_program(schedule), schedule)  # a DeviceReport
        >>> report.verdict, report.sets
        (<Verdict.PROVED: 'proved'>, 2)
    """
    require_power_of_two(program.sets)
    names = ("slots_match", "deadlock_free", "race_free", "all_heard", "same_sums")
    results = {"slots_match": slots_match(program)}
    if results["slots_match"].verdict is Verdict.PROVED:
        results["deadlock_free"], run = one_operation(program)
        if results["deadlock_free"].verdict is Verdict.PROVED:
            results["race_free"] = race_free(program)
            results["all_heard"] = all_heard(program, run)
            if results["race_free"].verdict is Verdict.PROVED:
                results["same_sums"] = same_sums(program, schedule, run)
    broken = next((name for name, r in results.items() if r.verdict is Verdict.REFUTED), "")
    for name in names:
        results.setdefault(name, unknown(f"{broken} is refuted, so there is nothing to speak of"))
    return DeviceReport(
        ranks=program.ranks,
        chunks=program.chunks,
        sets=program.sets,
        slots=program.slots,
        rows=max(len(rows) for rows in program.rows),
        results=results,
    )
