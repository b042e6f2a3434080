"""Who has come to an operation, and when: as ranks tell it, and as it is gathered from them.

Stamps are times on the reference rank's clock, eight bytes for each rank, and are sent as they lie
in memory: usually nothing is looked through rank by rank, however many ranks there are.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from latecomer.runtime.collective import ALL_REDUCE, COLLECTIVES, Collective

ABSENT = -math.inf  # the stamp of a rank that has not come
STAMP = np.dtype("<f8")  # as it is sent
SIZES = 64  # classes of sizes of each collective
CLASSES = range(SIZES * len(COLLECTIVES))
NOBODY = struct.pack("<d", ABSENT)  # in bytes, for what is looked through as it lies in memory


def size_class(nbytes: int, collective: Collective = ALL_REDUCE) -> int:
    """The class of a buffer: a collective, and sizes from one power of two to the next."""
    return COLLECTIVES.index(collective) * SIZES + nbytes.bit_length()


def first_of_class(of_class: int) -> tuple[Collective, int]:
    """Its collective, and the least bytes in it."""
    index, bits = divmod(of_class, SIZES)
    return COLLECTIVES[index], 1 << bits >> 1


def of_size_class(of_class: int) -> tuple[Collective, int]:
    """Its collective, and bytes in the middle of its sizes."""
    collective, first = first_of_class(of_class)
    return collective, first + first // 2


class BufferSignature(NamedTuple):
    """What must be the same on all ranks of an operation."""

    nbytes: int
    kind: str
    collective: Collective = ALL_REDUCE

    @property
    def can_be_begun(self) -> bool:
        """Whether ranks on time can do something without those that are late."""
        return self.collective == ALL_REDUCE

    @property
    def of_class(self) -> int:
        """The class of collective and size: see :func:`size_class`."""
        return size_class(self.nbytes, self.collective)

    def __str__(self) -> str:
        what = "" if self.collective == ALL_REDUCE else f" in {self.collective}"
        return f"{self.nbytes} bytes of {self.kind}{what}"


class Arrival(NamedTuple):
    """Ranks have come to an operation: of those that its sender speaks for, or it alone."""

    operation: int
    buffer: BufferSignature
    stamps: bytearray  # by rank: when, on the reference rank's clock (NaN: not aligned; ABSENT)
    odd: dict[int, BufferSignature]  # by rank: other buffers than ``buffer``

    @property
    def at_s(self) -> NDArray[np.float64]:
        """The stamps, in place."""
        return np.frombuffer(self.stamps, STAMP)

    def require(self, ranks: range) -> None:
        """Raise ValueError unless there is a stamp for each of ``ranks``, and no other."""
        are_odd_known = not self.odd or all(rank in ranks for rank in self.odd)
        if len(self.stamps) != STAMP.itemsize * len(ranks) or not are_odd_known:
            raise ValueError(f"{len(self.stamps)} bytes, {self.odd} are no arrivals of {ranks}")


@dataclass
class ArrivalState:
    """Who of ``ranks`` has come to an operation, as far as it is known here."""

    operation: int
    buffer: BufferSignature  # of the rank that was heard of first
    ranks: range
    last_s: float = -math.inf  # when the last arrival was heard of: own clock
    odd: dict[int, BufferSignature] = field(default_factory=dict)  # by rank: if not ``buffer``

    def __post_init__(self) -> None:
        self.absent = len(self.ranks)  # so many have not come
        self.stamps = bytearray(self.absent * NOBODY)
        self.at_s: NDArray[np.float64] = np.frombuffer(self.stamps, STAMP)  # the same, in place

    def enter(self, arrival: Arrival, sender: int, now_s: float) -> bool:
        """Take down what ``sender`` tells that is not known yet; whether there is any."""
        first = sender - self.ranks.start
        count = len(arrival.stamps) // STAMP.itemsize
        begin = STAMP.itemsize * first
        end = begin + STAMP.itemsize * count
        is_first_word = self.stamps[begin:end] == NOBODY * count
        has_same_buffer = arrival.buffer == self.buffer and not arrival.odd

        # Bytes of two neighbouring stamps may look like NOBODY: then the slower way is taken, to
        # the same end.
        if has_same_buffer and is_first_word and NOBODY not in arrival.stamps:
            self.stamps[begin:end] = arrival.stamps  # usual, and quick for any number of ranks
            newly_arrived = count
        else:
            newly_arrived = self._enter_one_by_one(arrival, sender, first, count)

        if newly_arrived:
            self.absent -= newly_arrived
            self.last_s = now_s
        return newly_arrived > 0

    def _enter_one_by_one(self, arrival: Arrival, sender: int, first: int, count: int) -> int:
        """Take down the stamps that are new, and whose buffer is another; how many are new."""
        known_s = self.at_s[first : first + count]
        is_new = (known_s == ABSENT) & (arrival.at_s != ABSENT)
        known_s[is_new] = arrival.at_s[is_new]

        for rank in (np.flatnonzero(is_new) + sender).tolist():
            buffer = arrival.odd.get(rank, arrival.buffer)
            if buffer != self.buffer:
                self.odd[rank] = buffer
        return int(np.count_nonzero(is_new))

    @property
    def missing(self) -> tuple[int, ...]:
        """The ranks that have not come, in order."""
        positions = (self.at_s == ABSENT).nonzero()[0].tolist()
        return tuple(self.ranks[position] for position in positions)

    @property
    def aligned(self) -> bool:
        """All ranks have come, and all stamps are of one clock."""
        # ABSENT and NaN, which stands for a clock that is not aligned, both go through a sum
        return math.isfinite(self.at_s.sum())

    @property
    def arrival(self) -> Arrival:
        """Who has come, as it is told."""
        return Arrival(self.operation, self.buffer, bytearray(self.stamps), dict(self.odd))
