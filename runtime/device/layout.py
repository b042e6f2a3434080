"""Where everything lies in a rank's symmetric memory, and how a tensor is cut for a program.

    staging   [set][block]: an *area* of fixed size, in which the slots of a program stand in a row
    flags     int32[set][slot][block]: the epoch of what lies in the slot
    stamps    int64[KEPT][rank][2]: which operation a rank's kernel began (with a checksum of what
              it takes it to be), and when
    stop      int32: raised by the own host, ends a kernel that waits

Operations run different programs, for another late rank or another number of chunks. All that is
known of the ranks when block b begins epoch e + 2 is that their blocks b have ended e and begun
e + 1. Two things follow. An area belongs to one block: cut in another way it still holds only what
blocks b have read. And there are flags for each set: the slot that one rank fills in e + 1 another
may fill in e + 2, before the first has come, and its flag must not be taken for the first one's.

A tensor is cut into *pieces*, each an epoch of its own, each of ``chunks`` times ``blocks``
*slices* of ``part`` elements: element i is of chunk ``i // (part * blocks) % chunks``.
"""

from __future__ import annotations

from dataclasses import dataclass

from latecomer.verify.device.program import SETS, DeviceProgram
from latecomer.verify.errors import ArgumentError

UNIT = 16  # elements: slices begin at multiples, so that all dtypes are moved 16 bytes at a time
WIDEST = 8  # bytes of the largest element
KEPT = 256  # operations whose stamps are kept
ALIGNMENT = 256  # bytes, of each part of the memory


@dataclass(frozen=True)
class Layout:
    """The same on all ranks; sizes and offsets in bytes."""

    ranks: int
    blocks: int
    slots: int  # the most that a program may have
    area: int  # staging of one block in one set

    @classmethod
    def within(cls, staging: int, ranks: int, blocks: int, slots: int) -> Layout:
        """At most ``staging`` bytes of it; ArgumentError where the smallest slices do not fit."""
        area = staging // (SETS * blocks) // ALIGNMENT * ALIGNMENT
        if area < slots * UNIT * WIDEST:
            least = SETS * blocks * rounded(slots * UNIT * WIDEST, ALIGNMENT)
            requirement = f"must be at least {least} bytes for {slots} slots and {blocks} blocks"
            raise ArgumentError("staging", staging, requirement)
        return cls(ranks, blocks, slots, area)

    @property
    def flags_at(self) -> int:
        """Where the flags begin."""
        return SETS * self.blocks * self.area

    @property
    def stamps_at(self) -> int:
        """Where the stamps begin."""
        return self.flags_at + rounded(4 * SETS * self.slots * self.blocks, ALIGNMENT)

    @property
    def stop_at(self) -> int:
        """Where the stop word is."""
        return self.stamps_at + rounded(16 * KEPT * self.ranks, ALIGNMENT)

    @property
    def nbytes(self) -> int:
        """Of the whole."""
        return self.stop_at + ALIGNMENT


@dataclass(frozen=True)
class Cut:
    """How a tensor is cut: ``pieces``, and elements of a slice."""

    pieces: int
    part: int


def cut(numel: int, itemsize: int, program: DeviceProgram, layout: Layout) -> Cut:
    """The fewest pieces of equal size for which the staging suffices; at least one."""
    assert program.slots <= layout.slots
    largest_part = layout.area // (program.slots * itemsize) // UNIT * UNIT
    slices = program.chunks * layout.blocks
    pieces = max(1, -(-numel // (largest_part * slices)))
    return Cut(pieces, max(UNIT, rounded(-(-numel // (pieces * slices)), UNIT)))


def stamp_place(mark: int) -> int:
    """Where the stamps of an operation stand, by its number, the upper half of its mark."""
    return (mark >> 32) % KEPT


def epoch_after(epoch: int, pieces: int) -> int:
    """The epoch that comes ``pieces`` later, in 32 bits with a sign, as the kernel counts."""
    return (epoch + pieces + 2**31) % 2**32 - 2**31


def rounded(size: int, unit: int) -> int:
    """``size``, or the next multiple of ``unit``."""
    return -(-size // unit) * unit
