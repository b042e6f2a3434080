"""Rounds kept as arrays: thousands of ranks without an object for each transfer.

What a phase holds is a sequence of rounds; here it is one in which a round becomes objects only
when it is looked at. The checks work on :class:`latecomer.verify.core.schedule.Table` alone, and a
file can be written from the arrays, so on the way from a maker to a file no transfer becomes an
object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import cast, overload

import msgspec
import numpy as np
from numpy.typing import NDArray

from latecomer.verify.core.schedule import (
    IntArray,
    Op,
    Phase,
    Round,
    Schedule,
    Table,
    Transfer,
    occurrence,
)

OPS: tuple[Op, Op] = ("copy", "reduce")
Columns = tuple[IntArray, IntArray, IntArray, NDArray[np.bool_]]
"""Transfers as parallel arrays: src, dst, chunk, and whether the op is ``reduce``."""


class ArrayRounds(Sequence[Round]):
    """Rounds whose transfers are parallel arrays, in order of execution.

    Attributes:
        src, dst, chunk, reduce: of all transfers.
        begins: where each round begins, and at last where all end.
    """

    def __init__(self, rounds: Sequence[Columns]) -> None:
        sizes = [len(src) for src, *_ in rounds]
        self.begins = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        none = np.empty(0, np.int64)
        src, dst, chunk, reduce = zip(*rounds, strict=True) if rounds else ((),) * 4
        self.src: IntArray = np.concatenate([none, *src])
        self.dst: IntArray = np.concatenate([none, *dst])
        self.chunk: IntArray = np.concatenate([none, *chunk])
        self.reduce: NDArray[np.bool_] = np.concatenate([none, *reduce]).astype(np.bool_)

    def __len__(self) -> int:
        return len(self.begins) - 1

    @overload
    def __getitem__(self, index: int) -> Round: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Round, ...]: ...
    def __getitem__(self, index: int | slice) -> Round | tuple[Round, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        return tuple(Transfer(*row) for row in self.rows(range(len(self))[index]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def rows(self, number: int) -> Iterator[tuple[int, int, int, Op]]:
        """The transfers of a round as plain tuples."""
        low = self.begins[number]
        high = self.begins[number + 1]
        ops = map(OPS.__getitem__, self.reduce[low:high].tolist())
        ends = (column[low:high].tolist() for column in (self.src, self.dst, self.chunk))
        return zip(*ends, ops, strict=True)

    def renamed(self, named: Callable[[IntArray], IntArray]) -> ArrayRounds:
        """The same with other ranks: ``named`` gives the new names of some."""
        copy = ArrayRounds(())
        copy.src = named(self.src)
        copy.dst = named(self.dst)
        copy.chunk = self.chunk
        copy.reduce = self.reduce
        copy.begins = self.begins
        return copy


def phase(name: str, absent: tuple[int, ...], rounds: Sequence[Round]) -> Phase:
    """A phase of such rounds, or of any."""
    return Phase(name, absent, cast(tuple[Round, ...], rounds))


def with_table(schedule: Schedule) -> Schedule:
    """The same schedule; if all of its phases are arrays, its table is made of them directly."""
    rounds_of_phases: list[Sequence[Round]] = [part.rounds for part in schedule.phases]
    parts = [rounds for rounds in rounds_of_phases if isinstance(rounds, ArrayRounds)]
    if len(parts) < len(schedule.phases) or not parts:
        return schedule

    def joined(name: str) -> IntArray:
        return np.concatenate([getattr(part, name) for part in parts])

    sizes = list(chain.from_iterable(np.diff(part.begins) for part in parts))
    number = np.repeat(np.arange(len(sizes)), sizes)
    dst = joined("dst")
    chunk = joined("chunk")
    table = Table(
        src=joined("src"),
        dst=dst,
        chunk=chunk,
        reduce=joined("reduce").astype(np.bool_),
        round=number,
        turn=occurrence(number, dst, chunk),
    )
    result = msgspec.structs.replace(schedule)
    # Where the cached property looks for it first: it would make objects of all transfers.
    vars(result)["table"] = table
    return result
