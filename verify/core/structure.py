"""Properties 1, 2, 3 and 6: what can be seen without following any data.

well_formed  sizes and indices in range, no rank sends to itself, absent ranks are declared late
ports        a round asks no more of a rank than its ports allow
absence      an absent rank takes no part
hazards      no two transfers of a round fight for one buffer; what needs a second buffer is
             counted (``staging``)
"""

from __future__ import annotations

import numpy as np

from verify.core.schedule import Incast, Schedule, occurrence
from verify.core.verdict import PROVED, SHOWN, Counterexample, Result, locate, refuted


def _at(
    schedule: Schedule,
    broken: str,
    indices: list[int],
    *,
    rank: int | None = None,
    expected: str,
    found: str,
) -> Result:
    """A refutation at the last of the given transfers."""
    places = tuple(locate(schedule, i) for i in indices)
    last = places[-1]
    return refuted(
        Counterexample(
            property=broken,
            phase=last.phase,
            round=last.round,
            rank=last.dst if rank is None else rank,
            chunk=last.chunk,
            expected=expected,
            found=found,
            transfers=places,
        )
    )


def _no_place(expected: str, found: str) -> Result:
    return refuted(Counterexample(property="well_formed", expected=expected, found=found))


def well_formed(schedule: Schedule) -> Result:
    """Property 1: every index exists, nobody sends to itself, absent ranks are declared late.

    The sizes and the late ranks are looked at too: a schedule that was made in memory has not been
    through the reader of files.
    """
    table, n, k = schedule.table, schedule.ranks, schedule.chunks
    incast = schedule.ports.incast if isinstance(schedule.ports, Incast) else 1
    for name, value in [("ranks", n), ("chunks", k), ("incast", incast)]:
        if value < 1:
            return _no_place(f"{name} >= 1", f"{name} = {value}")
    for rank in schedule.late:
        if not 0 <= rank < n:
            return _no_place(f"late ranks in 0..{n - 1}", f"late rank {rank}")
    for field, column, limit in [
        ("src", table.src, n),
        ("dst", table.dst, n),
        ("chunk", table.chunk, k),
    ]:
        bad = np.flatnonzero((column < 0) | (column >= limit))
        if len(bad):
            i = int(bad[0])
            expected = f"{field} in 0..{limit - 1}"
            return _at(schedule, "well_formed", [i], expected=expected, found=str(column[i]))
    own = np.flatnonzero(table.src == table.dst)
    if len(own):
        i = int(own[0])
        found = f"rank {table.src[i]} sends to itself"
        return _at(schedule, "well_formed", [i], expected="src and dst differ", found=found)
    for phase in schedule.phases:
        for rank in sorted(set(phase.absent) - set(schedule.late)):
            return refuted(
                Counterexample(
                    property="well_formed",
                    phase=phase.name,
                    rank=rank,
                    expected=f"absent ranks among the late ranks {list(schedule.late)}",
                    found=f"rank {rank} is absent but not declared late",
                )
            )
    return PROVED


def ports(schedule: Schedule) -> Result:
    """Property 2: at most one send and one receive per rank and round (duplex), disjoint pairs
    (matching), or at most I of each (incast I).
    """
    table = schedule.table
    limit = schedule.ports.incast if isinstance(schedule.ports, Incast) else 1
    for verb, column in [("sends", table.src), ("receives", table.dst)]:
        over = np.flatnonzero(occurrence(table.round, column) >= limit)
        if len(over):
            i = int(over[0])
            same = np.flatnonzero((table.round == table.round[i]) & (column == column[i]))
            indices = [int(j) for j in same[: min(limit + 1, SHOWN)]]
            rank = int(column[i])
            found = f"rank {rank} {verb} {len(same)} times"
            expected = f"at most {limit} {verb} per rank and round"
            return _at(schedule, "ports", indices, rank=rank, expected=expected, found=found)
    return _disjoint_pairs(schedule) if schedule.ports == "matching" else PROVED


def _disjoint_pairs(schedule: Schedule) -> Result:
    """In every round each rank deals with one partner only (duplex ports already hold)."""
    table = schedule.table
    if not len(table):
        return PROVED
    sender = table.round * schedule.ranks + table.src
    receiver = table.round * schedule.ranks + table.dst
    order = np.argsort(sender)
    found = np.searchsorted(sender, receiver, sorter=order)
    sends = order[np.minimum(found, len(table) - 1)]  # what the receiver of i sends, if anything
    clash = np.flatnonzero((sender[sends] == receiver) & (table.dst[sends] != table.src))
    if not len(clash):
        return PROVED
    i = int(clash[0])
    other = int(sends[i])
    rank = int(table.dst[i])
    return _at(
        schedule,
        "ports",
        sorted([i, other]),
        rank=rank,
        expected="one partner per rank and round (matching)",
        found=f"rank {rank} receives from {table.src[i]} and sends to {table.dst[other]}",
    )


def absence(schedule: Schedule) -> Result:
    """Property 3: a rank that is absent from a phase neither sends nor receives in it."""
    table = schedule.table
    start = 0
    for phase in schedule.phases:
        end = start + len(phase.rounds)
        if phase.absent:
            low, high = np.searchsorted(table.round, [start, end]).tolist()
            for column in (table.src, table.dst):
                bad = np.flatnonzero(np.isin(column[low:high], phase.absent))
                if len(bad):
                    i = low + int(bad[0])
                    rank = int(column[i])
                    expected = f"no transfer of rank {rank}, which is absent here"
                    found = str(table.transfer(i))
                    return _at(schedule, "absence", [i], rank=rank, expected=expected, found=found)
        start = end
    return PROVED


def hazards(schedule: Schedule) -> Result:
    """Property 6: one writer per (rank, chunk) and round; several reduces only under incast."""
    table = schedule.table
    summing_allowed = isinstance(schedule.ports, Incast)
    target = (table.round * schedule.ranks + table.dst) * schedule.chunks + table.chunk
    bad = np.flatnonzero(table.turn > 0)
    if summing_allowed:
        bad = bad[np.isin(target[bad], target[~table.reduce])]
    if not len(bad):
        return PROVED
    same = np.flatnonzero(target == target[bad[0]])
    copies = same[~table.reduce[same]]
    one = int(copies[0] if len(copies) else same[0])
    shown = sorted([one, int(same[same != one][0])])
    found = f"{len(same)} transfers write it: " + ", ".join(str(table.transfer(i)) for i in shown)
    found += ", ..." if len(same) > 2 else ""
    expected = (
        "a copy to be the only transfer into its (rank, chunk) of the round"
        if summing_allowed
        else "one transfer into each (rank, chunk) of a round"
    )
    return _at(schedule, "hazards", shown, expected=expected, found=found)


def staging(schedule: Schedule) -> int:
    """The most chunks any rank both sends and receives in one round.

    The incoming data of such a chunk can't land in place before the send is over: this many
    chunk-sized buffers are needed beside the user's own.
    """
    table, k, n = schedule.table, schedule.chunks, schedule.ranks
    sent = (table.round * n + table.src) * k + table.chunk
    received = (table.round * n + table.dst) * k + table.chunk
    sent.sort()
    place = np.minimum(np.searchsorted(sent, received), max(0, len(sent) - 1))
    both = np.unique(received[sent[place] == received])
    return int(np.unique(both // k, return_counts=True)[1].max(initial=0))
