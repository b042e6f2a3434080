"""Whether the kernel ran the proved rows: what blocks did, beside what the program says.

A block that nobody stopped has done all rows of its rank, in their order, in each piece; one that
gave up has done the first ones.
"""

from __future__ import annotations

from dataclasses import replace

from latecomer.verify.device.program import DeviceAction
from tests.runtime.device.ptx.allreduce import AllReduces
from tests.runtime.device.ptx.regions import Wrong
from tests.runtime.device.ptx.rows import UNSEEN, BlockRows, Row, expected_rows, rows_of


def check(runs: AllReduces) -> tuple[int, int]:
    """Wrong unless all blocks have done what the proved programs say, with the right bits.

    Returns how many rows were compared, and how many blocks have given up.
    """
    done, rows = validate(runs)
    runs.check_results(lambda *which: which in done)
    runs.check_stamps()
    case = runs.case
    return rows, len(case.operations) * case.ranks * case.blocks - len(done)


def validate(runs: AllReduces) -> tuple[set[tuple[int, int, int]], int]:
    """Compare all blocks of all operations; Wrong where one has done something else.

    Returns (operation, rank, block) of those that have done all, and how many rows were compared.
    """
    done = set()
    compared = 0
    for number in range(len(runs.case.operations)):
        found = {
            (rank, block.index): rows_of(runs, number, rank, block)
            for rank in range(runs.case.ranks)
            for block in runs.blocks_of(number, rank)
        }
        senders = {
            (row.peer, block, row.epoch, row.slot): rank
            for (rank, block), of_block in found.items()
            for row in of_block.rows
            if row.action == DeviceAction.PUT
        }
        for (rank, block), of_block in found.items():
            rows = [_with_sender(row, rank, block, senders) for row in of_block.rows]
            expected = expected_rows(runs, number, rank, block)
            where = f"operation {number}, rank {rank}, block {block}"
            if _compare(rows, of_block, expected, where, bool(runs.machine.stopped)):
                done.add((number, rank, block))
            compared += len(rows)
    return done, compared


def _with_sender(
    row: Row, rank: int, block: int, senders: dict[tuple[int, int, int, int], int]
) -> Row:
    if row.action == DeviceAction.PUT:
        return row
    return replace(row, peer=senders.get((rank, block, row.epoch, row.slot), UNSEEN))


def _compare(
    rows: list[Row], found: BlockRows, expected: BlockRows, where: str, may_give_up: bool
) -> bool:
    """Whether the block has done all; Wrong if it has done something else."""
    if rows != expected.rows[: len(rows)]:
        at = next(i for i, row in enumerate(rows) if expected.rows[i : i + 1] != [row])
        wanted = expected.rows[at] if at < len(expected.rows) else "nothing more"
        raise Wrong(f"{where}: row {at} is {rows[at]}, and not {wanted}")
    if len(rows) == len(expected.rows):
        if (found.refreshed, found.averaged) != (expected.refreshed, expected.averaged):
            raise Wrong(f"{where}: other flags are refreshed, or other elements averaged")
        return True
    if not may_give_up:
        raise Wrong(f"{where}: {len(rows)} rows of {len(expected.rows)}")
    if not found.refreshed <= expected.refreshed:
        raise Wrong(f"{where}: other flags are refreshed")
    return False
