"""What can be seen of a device program row by row: indices, and that puts and receives match.

In an operation each slot is put into by one row of one rank, and received by one row, which knows
who puts, and what. Flags tell epochs apart, not puts within an epoch: a second put into a slot
could be taken for the first. A rank that receives m times does so in its slots 0 to m - 1: it
raises the flags of all others itself, and who waited for one of these would not wait at all.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from latecomer.verify.core.schedule import IntArray, occurrence
from latecomer.verify.core.verdict import PROVED, Counterexample, Result, refuted
from latecomer.verify.device.program import DeviceAction, DeviceProgram
from latecomer.verify.device.unrolled import in_words


def slots_match(program: DeviceProgram) -> Result:
    """Whether rows are valid, and each slot has one put and one receive that agree."""
    n = program.ranks
    rank = np.repeat(np.arange(n), [len(rows) for rows in program.rows])
    place = np.concatenate([np.arange(len(rows)) for rows in program.rows])
    row = np.concatenate([rows.reshape(-1, 4) for rows in program.rows]).astype(np.int64)
    action, peer, chunk, slot = row.T

    def at(index: int, expected: str, found: str, *others: int) -> Result:
        return refuted(
            Counterexample(
                property="slots_match",
                rank=int(rank[index]),
                position=int(place[index]),
                action=in_words(row[index].tolist()),
                expected=expected,
                found=found,
                actions=tuple(
                    f"rank {rank[i]} row {place[i]}: {in_words(row[i].tolist())}"
                    for i in (index, *others)
                ),
            )
        )

    for name, column, limit in (
        ("action", action, len(DeviceAction)),
        ("peer", peer, n),
        ("chunk", chunk, program.chunks),
        ("slot", slot, program.slots),
    ):
        for index in np.flatnonzero((column < 0) | (column >= limit))[:1].tolist():
            return at(index, f"{name} in 0..{limit - 1}", f"{name} {column[index]}")
    for index in np.flatnonzero(peer == rank)[:1].tolist():
        return at(index, "another rank as peer", "the rank itself")
    return _matched(
        action == DeviceAction.PUT, np.where(action == DeviceAction.PUT, peer, rank), row, rank, at
    )


def _matched(
    put: NDArray[np.bool_],
    holder: IntArray,
    row: IntArray,
    rank: IntArray,
    at: Callable[..., Result],
) -> Result:
    _, peer, chunk, slot = row.T
    # A number for each slot of each rank.
    key = holder * (1 + slot.max(initial=0)) + slot
    sides = [np.flatnonzero(put), np.flatnonzero(~put)]
    for side, what in zip(sides, ("put into", "received"), strict=True):
        for index in side[occurrence(key[side]) > 0][:1].tolist():
            first = int(side[key[side] == key[index]][0])
            expected = f"slot {slot[index]} of rank {holder[index]} to be {what} once an operation"
            return at(index, expected, "a second time", first)
    for side, other, what in zip(
        sides, sides[::-1], ("nobody receives it", "nobody puts it"), strict=True
    ):
        for index in side[~np.isin(key[side], key[other])][:1].tolist():
            return at(index, "a put and a receive for each slot", what)
    received = np.bincount(rank[~put], minlength=1 + rank.max(initial=0))
    for index in np.flatnonzero(~put & (slot >= received[rank]))[:1].tolist():
        expected = f"a slot below {received[rank[index]]}, the number of receives of the rank"
        return at(index, expected, f"slot {slot[index]}, whose flag the rank raises itself")
    puts, receives = (side[np.argsort(key[side])] for side in sides)
    wrong = (peer[receives] != rank[puts]) | (chunk[receives] != chunk[puts])
    for index in np.flatnonzero(wrong)[:1].tolist():
        receive = int(receives[index])
        sent = int(puts[index])
        expected = f"chunk {chunk[receive]} from rank {peer[receive]}"
        return at(receive, expected, f"chunk {chunk[sent]} from rank {rank[sent]}", sent)
    return PROVED
