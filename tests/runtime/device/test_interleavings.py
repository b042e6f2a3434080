"""Operations of different programs in a row, blocks and ranks interleaved at random.

A model of what the layout promises: every unit of staging remembers which put has filled it, and a
receive must find what its own epoch, peer and slot have put there. ``verify --device`` proves this
for one program repeated; here the late rank, the schedule and the size of slices change.
"""

from __future__ import annotations

import random

import pytest

from latecomer.synth import generate
from latecomer.verify.device.program import DeviceAction, device_program
from latecomer.verify.renaming import renamed
from tests.runtime.schedules import direct, ring, straggler

BLOCKS = 2
SLOTS = 16
AREA = 32


def turned(schedule, by):
    """The schedule with other ranks' names: each has the name of the rank ``by`` further on."""
    n = schedule.ranks
    return renamed(schedule, {rank: (rank + by) % n for rank in range(n)})


N = 3
SCHEDULES = [ring(N), direct(N), straggler(N), generate(N, chunks=3, owners="free")]
PROGRAMS = [device_program(turned(schedule, by)) for schedule in SCHEDULES for by in range(N)]


def by_block(parity, block, slot, part):
    """As ``latecomer.runtime.device.layout`` has it: an area for each block."""
    return (parity * BLOCKS + block) * AREA + slot * part


def by_slot(parity, block, slot, part):
    """Slots of all blocks in a row."""
    return parity * BLOCKS * AREA + (slot * BLOCKS + block) * part


def flag_of_set(parity, block, slot):
    return parity, slot, block


def one_flag(parity, block, slot):
    return slot, block


class Model:
    """The staging and the flags of all ranks.

    ``unit_of`` tells where in the staging a slot begins, ``flag_of`` which flag is the slot's.
    """

    def __init__(self, unit_of, flag_of, sets):
        self.unit_of = unit_of
        self.flag_of = flag_of
        self.sets = sets
        self.staging = {}  # (rank, unit) -> which put has filled it
        self.flags = {}  # (rank, flag) -> the epoch that raised it

    def act(self, rank, block, row):
        """Do what a row says: "done", "waits", or what else a receive has found."""
        epoch, part, action, peer, _, slot = row
        is_put = action == DeviceAction.PUT
        holder, sender = (peer, rank) if is_put else (rank, peer)

        parity = epoch % self.sets
        start = self.unit_of(parity, block, slot, part)
        units = [(holder, start + i) for i in range(part)]
        flag = (holder, self.flag_of(parity, block, slot))
        put = (epoch, sender, block, slot)
        if is_put:
            self.staging |= dict.fromkeys(units, put)
            self.flags[flag] = epoch
            return "done"

        if self.flags.get(flag, 0) < epoch:
            return "waits"
        held = [self.staging.get(unit) for unit in units]
        return "done" if held == [put] * part else f"{put}: {held}"


def _rows(operations):
    """By (rank, block): each row with its operation's epoch and size of slices, in order."""
    rows = {}
    for rank in range(N):
        for block in range(BLOCKS):
            of_block = []
            for epoch, (program, part) in enumerate(operations, 1):
                of_block += [(epoch, part, *row.tolist()) for row in program.rows[rank]]
            rows[rank, block] = of_block
    return rows


def run(seed, unit_of=by_block, flag_of=flag_of_set, sets=2, operations=5):
    """The first receive that finds something else than what was put for it; empty if none does."""
    dice = random.Random(seed)
    model = Model(unit_of, flag_of, sets)
    rows = _rows([(dice.choice(PROGRAMS), dice.choice([1, 2])) for _ in range(operations)])
    done = dict.fromkeys(rows, 0)  # rows, by (rank, block)
    slowness = {block: dice.random() ** 3 for block in rows}

    while running := [block for block in rows if done[block] < len(rows[block])]:
        for rank, block in sorted(running, key=lambda block: dice.random() * slowness[block]):
            outcome = model.act(rank, block, rows[rank, block][done[rank, block]])
            if outcome == "waits":
                continue
            if outcome != "done":
                return outcome
            done[rank, block] += 1
            if dice.random() < 0.3:
                slowness[rank, block] = dice.random() ** 3
            break
        else:
            return "all wait"
    return ""


def test_other_programs_follow_each_other():
    assert all(program.slots <= SLOTS for program in PROGRAMS)
    for seed in range(150):
        assert run(seed) == ""


@pytest.mark.parametrize(
    "mutant",
    [{"unit_of": by_slot}, {"flag_of": one_flag}, {"sets": 1}],
    ids=["slots of all blocks in a row", "one flag for all sets", "one set"],
)
def test_other_layouts_fail(mutant):
    """Different programs take each other's data; the same one again would not show it."""
    assert any(run(seed, **mutant) for seed in range(600))
