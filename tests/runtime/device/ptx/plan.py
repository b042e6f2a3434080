"""What one seed runs: which all-reduces, on how many ranks, built for what, and disturbed how."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from dataclasses import dataclass

from latecomer.runtime.device.layout import ALIGNMENT, UNIT, WIDEST, rounded
from latecomer.runtime.device.variants import TILE
from latecomer.verify import Schedule
from latecomer.verify.device.program import SETS
from latecomer.verify.renaming import renamed
from tests.runtime.device.ptx.adversary import Adversary
from tests.runtime.device.ptx.allreduce import (
    DTYPES,
    AllReduces,
    Case,
    Operation,
    ProgramOf,
    proved,
    shipped,
)
from tests.runtime.device.ptx.builds import ARCHITECTURES
from tests.runtime.device.ptx.validation import check
from tests.runtime.kinds import kinds

WRAP = 2**31
MOST_ELEMENTS = 60_000  # of all ranks together, in one operation: a run is to take a second or less


@dataclass(frozen=True)
class Plan:
    """A case, and how it is run.

    Attributes:
        arch: of the build.
        units: in how many groups of warps each block runs.
        stops: by rank, after how many steps its host stops it.
    """

    seed: int
    case: Case
    arch: int
    units: int
    stops: tuple[tuple[int, int], ...]


@dataclass
class Tally:
    """What runs have shown, added up: each run is an interleaving."""

    runs: int = 0
    steps: int = 0
    old: int = 0
    rows: int = 0
    given_up: int = 0
    stopped: int = 0

    def add(self, other: Tally) -> None:
        """Add up."""
        for name in self.__dict__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@functools.cache
def schedules(ranks: int) -> list[list[Schedule]]:
    """Of each family, with the ranks' names turned by each number."""
    return [
        [
            renamed(schedule, {rank: (rank + by) % ranks for rank in range(ranks)})
            for by in range(ranks)
        ]
        for schedule in kinds(ranks)
    ]


def drawn(seed: int, ranks: Sequence[int] = tuple(range(2, 9))) -> Plan:
    """The plan of a seed."""
    dice = random.Random(seed)
    n = dice.choice(ranks)
    blocks = dice.choice((1, 2, 2, 3))
    count = dice.choice((1, 2, 3, 4)) if n < 6 else dice.choice((1, 2))
    chosen = [dice.choice(dice.choice(schedules(n))) for _ in range(count)]
    slots = max(proved(schedule).slots for schedule in chosen)
    least = SETS * blocks * rounded(slots * UNIT * WIDEST, ALIGNMENT)
    staging = dice.choice((least, least, 2 * least, 1 << 22))
    operations = []
    for schedule in chosen:
        dtype = dice.choice((*DTYPES, "fp32", "fp16", "bf16"))
        average = dtype != "i32" and dice.random() < 0.3
        slices = schedule.chunks * blocks
        numel = _size(dice, slices, n, staging == 1 << 22)
        operations.append(Operation(schedule, dtype, average, numel))
    epoch = dice.choice((1, 1, WRAP - dice.randint(1, 3), dice.randint(1 - WRAP, WRAP - 1), -2))
    case = Case(n, blocks, staging, epoch, tuple(operations), seed)
    stops: tuple[tuple[int, int], ...] = ()
    if dice.random() < 0.25:
        hosts = dice.sample(range(n), dice.choice((1, 1, 2)))
        stops = tuple((rank, dice.randint(1, 60 * n * blocks * count)) for rank in hosts)
    units = dice.choice((1, 1, 1, 2, 4)) if n < 6 else 1
    return Plan(seed, case, dice.choice(ARCHITECTURES), units, stops)


def _size(dice: random.Random, slices: int, ranks: int, has_room: bool) -> int:
    """Elements, near a border as often as not: of 16 bytes, of slices, of tiles, of pieces."""
    borders = [0, UNIT, UNIT * slices, 5 * UNIT * slices, 3 * UNIT * slices + UNIT]
    if has_room and TILE * slices * ranks < MOST_ELEMENTS:
        borders += [TILE * slices, TILE * slices]
    border = dice.choice(borders)
    return max(0, border + dice.choice((0, 0, 1, -1, 7, dice.randint(-UNIT, UNIT))))


def execute(plan: Plan) -> Tally:
    """Run a plan; Wrong where something does not hold.

    A block runs in parts only after a run in which it was one: see ``copies`` in :mod:`memory`.
    """
    tally = Tally()
    for units in sorted({1, plan.units}):
        tally.add(_execute(plan, units, functools.partial(shipped, plan.arch)))
    return tally


def _execute(plan: Plan, units: int, program_of: ProgramOf) -> Tally:
    runs = AllReduces(plan.case, program_of, units)
    outcome = Adversary(plan.seed, dict(plan.stops)).run(runs.machine)
    rows, given_up = check(runs)
    return Tally(
        runs=1,
        steps=outcome.steps,
        old=outcome.old,
        rows=rows,
        given_up=given_up,
        stopped=int(bool(runs.machine.stopped)),
    )
