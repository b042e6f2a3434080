"""What a schedule is: phases of rounds of transfers, and the same as arrays.

Legend, used in all of ``verify``:

    n           number of ranks, numbered 0 .. n-1
    k           number of chunks the buffer is cut into, numbered 0 .. k-1
    transfer    (src, dst, chunk, op), op is ``copy`` (overwrite) or ``reduce`` (add)
    round       transfers that all read the state at the start of the round
    phase       rounds, with the ranks that are absent from all of them

The typed objects mirror the file (format ``latecomer/1``); ``Table`` is the same schedule as
flat numpy arrays in file order, which is what the checks work on.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

FORMAT = "latecomer/1"

Op = Literal["copy", "reduce"]
Scalar = str | int | float | bool | None
IntArray = NDArray[np.int64]


# Without the garbage collector (gc=False): a transfer holds nothing that could refer back to it,
# and a file has millions.
class Transfer(msgspec.Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """One chunk going from ``src`` to ``dst``; in the file ``[src, dst, chunk, op]``."""

    src: int
    dst: int
    chunk: int
    op: Op

    def __str__(self) -> str:
        return f"{self.src} -> {self.dst}  chunk {self.chunk}  {self.op}"


Round = tuple[Transfer, ...]


class Incast(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Ports that let every rank send and receive up to ``incast`` transfers in one round."""

    incast: int


Ports = Literal["duplex", "matching"] | Incast


class Phase(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Consecutive rounds in which the ranks in ``absent`` take no part."""

    name: str
    absent: tuple[int, ...]
    rounds: tuple[Round, ...]


class Schedule(msgspec.Struct, frozen=True, dict=True, kw_only=True):
    """A collective schedule; ``meta`` is information only and never believed.

    ``dict=True`` lets :meth:`table` be cached; the fields themselves are immutable.
    """

    ranks: int
    chunks: int
    phases: tuple[Phase, ...]
    late: tuple[int, ...] = ()
    ports: Ports = "duplex"
    kind: Literal["allreduce"] = "allreduce"
    meta: dict[str, Scalar] = {}

    @cached_property
    def table(self) -> Table:
        """The schedule as arrays, built once."""
        return Table.of(self)

    @property
    def rounds(self) -> int:
        """Rounds in all phases together."""
        return sum(len(phase.rounds) for phase in self.phases)

    @property
    def completion_rounds(self) -> int:
        """Rounds in which no rank is absent."""
        return sum(len(phase.rounds) for phase in self.phases if not phase.absent)

    def located_rounds(self) -> Iterator[tuple[Phase, int, Round]]:
        """Yield (phase, round number within the phase, transfers) in order of execution."""
        for phase in self.phases:
            for number, transfers in enumerate(phase.rounds):
                yield phase, number, transfers

    def place(self, global_round: int) -> tuple[str, int]:
        """The (phase name, round within that phase) of a round counted from the start."""
        for phase in self.phases:
            if global_round < len(phase.rounds):
                return phase.name, global_round
            global_round -= len(phase.rounds)
        raise IndexError(global_round)


class Table(msgspec.Struct, frozen=True, eq=False):
    """All transfers of a schedule as parallel arrays, in file order; rounds count from the start.

    ``turn`` numbers the transfers of one round into the same (dst, chunk): 0 for the first, and
    only several reduces under incast have a legal turn 1. They are applied in turn.
    """

    src: IntArray
    dst: IntArray
    chunk: IntArray
    reduce: NDArray[np.bool_]
    round: IntArray
    turn: IntArray

    @classmethod
    def of(cls, schedule: Schedule) -> Table:
        """Flatten ``schedule``; indices beyond 64 bits are clipped (they are out of range)."""
        rounds = [transfers for phase in schedule.phases for transfers in phase.rounds]
        transfers = list(chain.from_iterable(rounds))

        def column(field: str) -> IntArray:
            values = list(map(attrgetter(field), transfers))
            try:
                return np.array(values, np.int64)
            except OverflowError:
                limit = 2**63 - 1
                return np.array([max(-limit, min(limit, value)) for value in values])

        dst = column("dst")
        chunk = column("chunk")
        round_number = np.repeat(np.arange(len(rounds)), list(map(len, rounds)))
        return cls(
            src=column("src"),
            dst=dst,
            chunk=chunk,
            reduce=np.array([transfer.op == "reduce" for transfer in transfers], np.bool_),
            round=round_number,
            turn=occurrence(round_number, dst, chunk),
        )

    def __len__(self) -> int:
        return len(self.src)

    def rounds_of(self, low: int, high: int) -> Iterator[IntArray]:
        """Indices of the transfers of chunks low..high-1, one array per round that has any."""
        chosen = np.flatnonzero((self.chunk >= low) & (self.chunk < high))
        if len(chosen):
            yield from np.split(chosen, np.flatnonzero(np.diff(self.round[chosen])) + 1)

    def by_turn(self, transfers: IntArray) -> Iterator[IntArray]:
        """Positions in ``transfers`` (of one round) by turn: no target twice in a group."""
        turn = self.turn[transfers]
        order = np.argsort(turn, kind="stable")
        begin = 0
        for count in np.bincount(turn).tolist():
            yield order[begin : begin + count]
            begin += count

    def transfer(self, index: int) -> Transfer:
        """The transfer at ``index`` of the flat arrays."""
        op: Op = "reduce" if self.reduce[index] else "copy"
        return Transfer(int(self.src[index]), int(self.dst[index]), int(self.chunk[index]), op)


def occurrence(*columns: IntArray) -> IntArray:
    """For each row, how many earlier rows have the same values in all ``columns``."""
    rows = len(columns[0])
    order = np.lexsort(columns[::-1])  # stable: equal rows stay in file order
    changes = np.zeros(rows, np.bool_)
    for column in columns:
        changes[1:] |= np.diff(column[order]) != 0

    # for each row, in this order, where the equal ones begin
    first_equal = np.maximum.accumulate(np.where(changes, np.arange(rows), 0))
    result = np.empty(rows, np.int64)
    result[order] = np.arange(rows) - first_equal
    return result
