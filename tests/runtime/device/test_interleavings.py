"""Operations of different programs in a row, blocks and ranks interleaved at random.

A model of what the layout promises: every unit of staging remembers which put has filled it, and a
receive must find what its own epoch, peer and slot have put there. ``verify --device`` proves this
for one program repeated; here the late rank, the schedule and the size of slices change.
"""

from __future__ import annotations

import random

import pytest

from synth import generate
from tests.runtime.schedules import direct, ring, straggler
from verify.device.program import DeviceAction, device_program
from verify.renaming import renamed

BLOCKS = 2
SLOTS = 16
AREA = 32


def turned(schedule, by):
    return renamed(schedule, {r: (r + by) % schedule.ranks for r in range(schedule.ranks)})


N = 3
MADE = [ring(N), direct(N), straggler(N), generate(N, chunks=3, owners="free")]
PROGRAMS = [device_program(turned(each, by)) for each in MADE for by in range(N)]


def by_block(parity, block, slot, part):
    """As ``runtime.device.layout`` has it: an area for each block."""
    return (parity * BLOCKS + block) * AREA + slot * part


def by_slot(parity, block, slot, part):
    """Slots of all blocks in a row."""
    return parity * BLOCKS * AREA + (slot * BLOCKS + block) * part


def flag_of_set(parity, block, slot):
    return parity, slot, block


def one_flag(parity, block, slot):
    return slot, block


def run(seed, place=by_block, flag_place=flag_of_set, sets=2, operations=5):
    """The first receive that finds something else than what was put for it; empty if none does."""
    dice = random.Random(seed)
    chosen = [(dice.choice(PROGRAMS), dice.choice([1, 2])) for _ in range(operations)]
    todo = {
        (rank, block): [
            (epoch, part, *row.tolist())
            for epoch, (program, part) in enumerate(chosen, 1)
            for row in program.rows[rank]
        ]
        for rank in range(N)
        for block in range(BLOCKS)
    }
    staging = {}
    flags = {}
    at = dict.fromkeys(todo, 0)
    speed = {each: dice.random() ** 3 for each in todo}
    while open_ := [each for each in todo if at[each] < len(todo[each])]:
        moved = False
        for rank, block in sorted(open_, key=lambda each: dice.random() * speed[each]):
            epoch, part, action, peer, _, slot = todo[rank, block][at[rank, block]]
            parity = epoch % sets
            put = action == DeviceAction.PUT
            holder, sender = (peer, rank) if put else (rank, peer)
            start = place(parity, block, slot, part)
            units = [(holder, start + i) for i in range(part)]
            token = (epoch, sender, block, slot)
            flag = (holder, flag_place(parity, block, slot))
            if put:
                staging |= dict.fromkeys(units, token)
                flags[flag] = epoch
            elif flags.get(flag, 0) < epoch:
                continue
            elif any(staging.get(unit) != token for unit in units):
                return f"{token}: {[staging.get(unit) for unit in units]}"
            at[rank, block] += 1
            moved = True
            if dice.random() < 0.3:
                speed[rank, block] = dice.random() ** 3
            break
        if not moved:
            return "all wait"
    return ""


def test_other_programs_follow_each_other():
    assert all(program.slots <= SLOTS for program in PROGRAMS)
    for seed in range(150):
        assert run(seed) == ""


@pytest.mark.parametrize(
    "mutant",
    [{"place": by_slot}, {"flag_place": one_flag}, {"sets": 1}],
    ids=["slots of all blocks in a row", "one flag for all sets", "one set"],
)
def test_other_layouts_fail(mutant):
    assert any(run(seed, **mutant) for seed in range(600))
