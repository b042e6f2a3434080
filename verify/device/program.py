"""A device program: what one kernel per rank does with a schedule, as rows of numbers.

Every rank has *staging*, a slot for each chunk that it receives, and for each slot a *flag*. A rank
runs its rows in order:

    PUT     store the own chunk in the slot of the peer's staging, then raise the peer's flag of
            that slot to the epoch (release at system scope)
    REDUCE  wait until the own flag of the slot has reached the epoch (acquire), then add the slot
            to the own chunk
    COPY    wait likewise, then store the slot in the own chunk

A put never waits. A kernel runs as several *blocks*; each does all rows on its slice of every
chunk, with slots and flags of its own, and there is no barrier between blocks. Operations are
numbered by *epochs* that grow by one and wrap around at 32 bits; flags are compared by the sign of
the difference. Staging and flags outlive operations: epoch e uses the staging set ``e mod sets``,
and each set has flags of its own, which are never reset. The owner itself raises the flags of slots
that the program does not fill (from the number of its receives on), so a rank's slots have to be
numbered from 0 without a gap. The set follows from the last bits of the number, so there are 1, 2,
4, 8 ... sets: with three, the set after the last number would be the same once more.
"""

from __future__ import annotations

from enum import IntEnum
from itertools import pairwise

import msgspec
import numpy as np
from numpy.typing import NDArray

from latecomer.verify.core.programs import programs
from latecomer.verify.core.schedule import Schedule, occurrence
from latecomer.verify.errors import ArgumentError

SETS = 2
"""Staging sets of what the runtime runs: enough for every all-reduce (docs/explanation/gpu.md)."""


class DeviceAction(IntEnum):
    """What a row does; the numbers are those in the kernel's table."""

    PUT = 0
    REDUCE = 1
    COPY = 2


class DeviceProgram(msgspec.Struct, frozen=True, eq=False):
    """The rows of all ranks.

    Attributes:
        chunks: into which the buffer is cut.
        slots: in the staging of each rank, for each set and block, with a flag each.
        sets: staging sets; 2 in what the runtime runs.
        rows: for each rank int32[length, 4]: action, peer, chunk, slot. The slot is the
            receiver's: the peer's in a PUT, the rank's own in REDUCE and COPY.
    """

    chunks: int
    slots: int
    sets: int
    rows: tuple[NDArray[np.int32], ...]

    @property
    def ranks(self) -> int:
        """How many ranks take part."""
        return len(self.rows)


def require_power_of_two(sets: int, name: str = "sets") -> None:
    """ArgumentError for a number of staging sets by which numbers of 32 bits do not wrap around."""
    if sets < 1 or sets & (sets - 1):
        requirement = "must be a power of two: 2**32 operations on, sets must come in the same turn"
        raise ArgumentError(name, sets, requirement, "The runtime has 2")


def device_program(schedule: Schedule, sets: int = SETS) -> DeviceProgram:
    """The device program of a well formed schedule; as the executor, it runs ``programs``.

    A rank's part in a round is: all its PUTs, which read what it holds at the start, then its
    receives, both in the order of the file. A receiver's slots are numbered in that order, too.

    Examples:
        >>> from latecomer import synth
        >>> from latecomer.verify.device.program import DeviceAction, device_program
        >>> program = device_program(synth.ring(4))  # a DeviceProgram
        >>> program.ranks, program.slots
        (4, 6)
        >>> action, peer, chunk, slot = program.rows[3][0]  # what rank 3 does first
        >>> print(f"{DeviceAction(action).name} chunk {chunk} into slot {slot} of rank {peer}")
        PUT chunk 3 into slot 0 of rank 0
    """
    of = programs(schedule)
    # A put never waits, so all puts of a round may come first; they read what it started with.
    puts_first = np.lexsort((of.index, ~of.sends, of.step))
    slot_of = occurrence(schedule.table.dst)  # by transfer
    action = np.where(
        of.sends, DeviceAction.PUT, np.where(of.reduce, DeviceAction.REDUCE, DeviceAction.COPY)
    )
    columns = np.stack([action, of.peer, of.chunk, slot_of[of.index]], axis=1)[puts_first]
    ends = np.searchsorted(of.rank[puts_first], np.arange(schedule.ranks + 1)).tolist()
    return DeviceProgram(
        chunks=schedule.chunks,
        slots=1 + int(slot_of.max(initial=-1)),
        sets=sets,
        rows=tuple(columns[a:b].astype(np.int32) for a, b in pairwise(ends)),
    )


def document(program: DeviceProgram, schedule: bytes) -> bytes:
    """As the extracted checker reads it, with the file of the schedule that it claims."""
    return msgspec.json.encode(
        {
            "format": "latecomer-device/1",
            "ranks": program.ranks,
            "chunks": program.chunks,
            "sets": program.sets,
            "slots": program.slots,
            "rows": [rows.tolist() for rows in program.rows],
            "schedule": msgspec.Raw(schedule),
        }
    )
