"""Cases that notice what is wrong with a kernel, the quickest first.

Between them they have every action, averages, several pieces, tiles and tails of all sizes, slices
that are empty, idle slots whose flags are refreshed, epochs that wrap, several blocks and ranks,
operations in a row, waits that are long, and stops.
"""

from __future__ import annotations

from collections.abc import Iterator

from latecomer.runtime.device.variants import TILE
from latecomer.synth import generate
from latecomer.verify import Phase, Schedule, Transfer
from tests.runtime.device.ptx.adversary import Adversary
from tests.runtime.device.ptx.allreduce import AllReduces, Case, Operation, ProgramOf, shipped
from tests.runtime.device.ptx.program import Program
from tests.runtime.device.ptx.regions import Wrong
from tests.runtime.device.ptx.validation import check
from tests.runtime.schedules import direct, ring, straggler, swapping

LATE = straggler(3)
RING = ring(2)
DIRECT = direct(3)
FREE = generate(3, chunks=3, owners="free")
SWAPPING = swapping()
ONE_CHUNK = Schedule(
    ranks=2,
    chunks=1,
    phases=(Phase("all", (), ((Transfer(0, 1, 0, "reduce"), Transfer(1, 0, 0, "reduce")),)),),
)
THERE_AND_BACK = Schedule(
    ranks=2,
    chunks=1,
    phases=(Phase("all", (), ((Transfer(1, 0, 0, "reduce"),), (Transfer(0, 1, 0, "copy"),))),),
)
MOST = 6_000
"""Steps: ten times what the longest of these cases takes."""


def cases(dtype: str, average: bool) -> Iterator[tuple[Case, dict[int, int]]]:
    """Each with the steps after which hosts stop."""

    def case(ranks: int, blocks: int, staging: int, epoch: int, *operations, **named) -> Case:
        made = tuple(Operation(schedule, dtype, average, numel) for schedule, numel in operations)
        return Case(ranks, blocks, staging, epoch, made, **{"calibrated": True} | named)

    yield case(2, 1, 1 << 12, 2**31 - 2, (RING, 95), (SWAPPING, 16), (RING, 1), (RING, 33)), {}
    for seed in range(3):
        yield case(3, 2, 1 << 13, 1, (LATE, 301), (FREE, 37), (LATE, 301), seed=seed), {}
    yield case(2, 1, 1 << 22, 1, (RING, 2 * TILE + 19), (THERE_AND_BACK, 17 * TILE + 19)), {}
    yield case(3, 1, 1536, -2, (DIRECT, 1203), (LATE, 48), (DIRECT, 7)), {}
    yield case(2, 2, 1 << 17, 1, (RING, 95), (ONE_CHUNK, 7), (THERE_AND_BACK, 64), slots=200), {}
    for at in (1, 25, 60, 100, 140):
        stopped = case(3, 2, 1 << 13, 1, (LATE, 301), (DIRECT, 16), seed=at, calibrated=False)
        yield stopped, {at % 3: at}


def caught(program: Program, arch: int, dtype: str, average: bool) -> str:
    """How a kernel, in the place of one build, is found to be wrong; empty if it is not."""
    program_of = instead(program, arch, dtype, average)
    for number, (case, stops) in enumerate(cases(dtype, average)):
        try:
            runs = AllReduces(case, program_of)
            Adversary(number, stops, MOST).run(runs.machine)
            check(runs)
        except Wrong as error:
            return f"case {number}: {error}"
    return ""


def instead(program: Program, arch: int, dtype: str, average: bool) -> ProgramOf:
    """The shipped kernels, but for one build."""

    def program_of(of: str, averages: bool) -> Program:
        return program if (of, averages) == (dtype, average) else shipped(arch, of, averages)

    return program_of
