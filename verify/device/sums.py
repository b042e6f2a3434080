"""The same bits as the schedule: every rank adds up every chunk as the schedule says.

One operation is run on expression trees, with the numbers that :mod:`latecomer.verify.core.bits`
gives them: equal numbers are equal trees, up to swapping the operands of an addition. Programs
without races have one result, so any order of steps will do; which other operations run beside it
makes no difference, because every take finds what was put for it (proofs/coq/DeviceOrder.v).
All chunks are compared, also where the schedule is no all-reduce: a node's part of one is none.
"""

from __future__ import annotations

from latecomer.verify.asynchronous.order import Run
from latecomer.verify.core.bits import TreeNumbers
from latecomer.verify.core.interpreter import run as run_rounds
from latecomer.verify.core.schedule import Schedule
from latecomer.verify.core.verdict import PROVED, Counterexample, Result, refuted
from latecomer.verify.device.program import DeviceAction, DeviceProgram


def same_sums(program: DeviceProgram, schedule: Schedule, run: Run) -> Result:
    """Compare what the ranks hold after the ``run`` of one operation with the schedule's trees."""
    if (program.ranks, program.chunks) != (schedule.ranks, schedule.chunks):
        sizes = f"{schedule.ranks} ranks and {schedule.chunks} chunks"
        found = f"{program.ranks} and {program.chunks}"
        return refuted(Counterexample(property="same_sums", expected=sizes, found=found))
    trees = TreeNumbers()
    ends = run_rounds(schedule, trees, 0, schedule.chunks)
    n = program.ranks
    rows = [rows.tolist() for rows in program.rows]
    held = [[rank] * program.chunks for rank in range(n)]
    staged: dict[tuple[int, int], int] = {}
    written: dict[tuple[int, int], str] = {}
    for event in run.sequence:
        rank = int(run.events.block[event])
        step = run.events.flat.steps[event]
        action, peer, chunk, slot = rows[rank][step.position]
        own = held[rank]
        if action == DeviceAction.PUT:
            staged[peer, slot] = own[chunk]
            continue
        moved = staged[rank, slot]
        if action == DeviceAction.REDUCE:
            pair = min(own[chunk], moved), max(own[chunk], moved)
            # A sum that the schedule never makes gets a number of its own: it equals none of its
            # trees.
            moved = trees.sums.setdefault(pair, n + len(trees.sums))
        own[chunk] = moved
        written[rank, chunk] = run.events.flat.describe(event)
    for rank in range(n):
        for chunk, tree in enumerate(ends[rank].tolist()):
            if held[rank][chunk] != tree:
                last = written.get((rank, chunk))
                return refuted(
                    Counterexample(
                        property="same_sums",
                        rank=rank,
                        chunk=chunk,
                        expected="the schedule's sum, added up in the schedule's order",
                        found="another sum, or the same in another order",
                        actions=() if last is None else (f"written last by {last}",),
                    )
                )
    return PROVED
