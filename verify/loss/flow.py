"""Where the data of each transfer comes from and gets to, in a run without loss, chunk by chunk.

Legend, used in all of ``latecomer.verify.loss``; sets of ranks are bit masks (bit r: rank r):

    entry       (rank, chunk, contribution): a right AllReduce has each of the n * k * n once
    C, carried  the contributions in the value that a transfer brings
    K, kept     the contributions in the value that a copy overwrites; none for a reduce
    K2          those that are in that value more than once (which only a value can be that is
                overwritten everywhere before the end)
    R, reach    the ranks that end with a value into which this one went

The schedule is right (``exactly_once`` and ``hazards`` hold): there is one way, through transfers
and values kept, from each contribution to each rank at the end. A transfer lies on the ways of
exactly the entries R x C, its *block*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby, pairwise
from operator import attrgetter
from typing import TypeVar

import msgspec
import numpy as np

from latecomer.verify.core.schedule import Schedule

T = TypeVar("T")


class Move(msgspec.Struct, frozen=True, gc=False):
    """A transfer of one chunk, at ``index`` of ``schedule.table``; rounds count from the start."""

    index: int
    round: int
    src: int
    dst: int
    reduce: bool


class Chunk(msgspec.Struct, frozen=True):
    """All that happens to one chunk: its transfers by round, rounds without any left out."""

    number: int
    ranks: int
    rounds: tuple[tuple[Move, ...], ...]

    @property
    def everybody(self) -> int:
        """The mask of all ranks, and of all contributions."""
        return (1 << self.ranks) - 1


class DataFlow(msgspec.Struct, frozen=True, gc=False):
    """A transfer with its C, K, K2 and R."""

    move: Move
    carried: int
    kept: int
    kept_twice: int
    reach: int

    @property
    def block(self) -> int:
        """How many entries come by way of this transfer."""
        return self.carried.bit_count() * self.reach.bit_count()


def chunks_of(schedule: Schedule) -> Iterator[Chunk]:
    """The chunks of a well formed schedule, in order."""
    table = schedule.table
    order = np.argsort(table.chunk, kind="stable")
    bounds = np.searchsorted(table.chunk[order], np.arange(schedule.chunks + 1)).tolist()
    for number, (begin, end) in enumerate(pairwise(bounds)):
        indices = order[begin:end]
        columns = (table.round, table.src, table.dst, table.reduce)
        moves = map(Move, indices.tolist(), *(column[indices].tolist() for column in columns))
        rounds = tuple(tuple(in_round) for _, in_round in groupby(moves, attrgetter("round")))
        yield Chunk(number, schedule.ranks, rounds)


Value = tuple[int, int]
"""Contributions that are in a value, and those that are in it more than once."""


def start(chunk: Chunk) -> list[Value]:
    """What each rank holds at first: its own contribution."""
    return [(1 << rank, 0) for rank in range(chunk.ranks)]


def added(a: Value, b: Value) -> Value:
    """The sum of two values."""
    return a[0] | b[0], a[1] | b[1] | a[0] & b[0]


def run(
    chunk: Chunk, held: list[T], add: Callable[[T, T], T], lost: frozenset[int] = frozenset()
) -> Iterator[tuple[Move, T, T]]:
    """Run one chunk without the lost transfers; ``held`` is what the ranks hold.

    Yields each transfer with what it brings and what it meets. (The core's interpreter runs many
    chunks at once; searches for losses run one chunk many times, and one by one that is slower.)
    """
    for moves in chunk.rounds:
        carried = [held[move.src] for move in moves]  # all read the start of the round
        for move, value in zip(moves, carried, strict=True):
            if move.index not in lost:
                here = held[move.dst]
                held[move.dst] = add(here, value) if move.reduce else value
                yield move, value, here


def flows_of(chunk: Chunk) -> list[DataFlow]:
    """C, K, K2 and R of every transfer of the chunk, in order; time linear in their number."""
    brought = [
        (move, value[0], (0, 0) if move.reduce else here)
        for move, value, here in run(chunk, start(chunk), added)
    ]
    # Backwards: the ranks that end with a value into which what a rank holds here goes.
    reach = [1 << rank for rank in range(chunk.ranks)]
    reached: list[int] = []
    for moves in reversed(chunk.rounds):
        after = [reach[move.dst] for move in moves]
        reached += reversed(after)
        for move in moves:
            if not move.reduce:
                reach[move.dst] = 0  # what was there before goes no further
        for move, ranks in zip(moves, after, strict=True):
            reach[move.src] |= ranks
    return [
        DataFlow(move, value, kept, twice, ranks)
        for (move, value, (kept, twice)), ranks in zip(brought, reversed(reached), strict=True)
    ]
