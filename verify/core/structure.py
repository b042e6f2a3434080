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
    schedule: Schedule, broken: str, indices: list[int], expected: str, found: str, rank: int = -1
) -> Result:
    """A refutation at the last of the given transfers, at its receiver or at ``rank``."""
    places = tuple(locate(schedule, i) for i in indices)
    last = places[-1]
    return refuted(
        Counterexample(
            property=broken,
            phase=last.phase,
            round=last.round,
            rank=last.dst if rank < 0 else rank,
            chunk=last.chunk,
            expected=expected,
            found=found,
            transfers=places,
        )
    )


def well_formed(schedule: Schedule) -> Result:
    """Property 1: every index exists, no rank sends to itself, absent ranks are declared late.

    The sizes and the late ranks are looked at too: a schedule that was made in memory has not been
    through the reader of files.
    """
    table = schedule.table
    n = schedule.ranks
    k = schedule.chunks
    incast = schedule.ports.incast if isinstance(schedule.ports, Incast) else 1
    sizes = [("ranks", n, 2), ("chunks", k, 1), ("incast", incast, 1)]
    wrong = [(f"{name} >= {low}", f"{name} = {value}") for name, value, low in sizes if value < low]
    ranks = f"late ranks in 0..{n - 1}"
    wrong += [(ranks, f"late rank {rank}") for rank in schedule.late if not 0 <= rank < n]
    for expected, found in wrong:
        return refuted(Counterexample(property="well_formed", expected=expected, found=found))
    columns = [("src", table.src, n), ("dst", table.dst, n), ("chunk", table.chunk, k)]
    for field, column, limit in columns:
        for i in np.flatnonzero((column < 0) | (column >= limit))[:1].tolist():
            return _at(schedule, "well_formed", [i], f"{field} in 0..{limit - 1}", str(column[i]))
    for i in np.flatnonzero(table.src == table.dst)[:1].tolist():
        found = f"rank {table.src[i]} sends to itself"
        return _at(schedule, "well_formed", [i], "src and dst differ", found)
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
        for i in np.flatnonzero(occurrence(table.round, column) >= limit)[:1].tolist():
            same = np.flatnonzero((table.round == table.round[i]) & (column == column[i]))
            shown = same[: min(limit + 1, SHOWN)].tolist()
            rank = int(column[i])
            expected = f"at most {limit} {verb} per rank and round"
            found = f"rank {rank} {verb} {len(same)} times"
            return _at(schedule, "ports", shown, expected, found, rank)
    return _disjoint_pairs(schedule) if schedule.ports == "matching" else PROVED


def _disjoint_pairs(schedule: Schedule) -> Result:
    """In every round each rank deals with one partner only (duplex ports already hold)."""
    table = schedule.table
    if not len(table):
        return PROVED
    sender = table.round * schedule.ranks + table.src
    receiver = table.round * schedule.ranks + table.dst
    order = np.argsort(sender)
    place = np.searchsorted(sender, receiver, sorter=order)
    sends = order[np.minimum(place, len(table) - 1)]  # what the receiver of i sends, if anything
    clash = (sender[sends] == receiver) & (table.dst[sends] != table.src)
    for i in np.flatnonzero(clash)[:1].tolist():
        other = int(sends[i])
        rank = int(table.dst[i])
        found = f"rank {rank} receives from {table.src[i]} and sends to {table.dst[other]}"
        expected = "one partner per rank and round (matching)"
        return _at(schedule, "ports", sorted([i, other]), expected, found, rank)
    return PROVED


def absence(schedule: Schedule) -> Result:
    """Property 3: a rank that is absent from a phase neither sends nor receives in it."""
    table = schedule.table
    start = 0
    for phase in schedule.phases:
        low = start
        start = start + len(phase.rounds)
        begin, end = np.searchsorted(table.round, [low, start]).tolist()
        for column in (table.src, table.dst) if phase.absent else ():
            for i in np.flatnonzero(np.isin(column[begin:end], phase.absent))[:1].tolist():
                rank = int(column[begin + i])
                expected = f"no transfer of rank {rank}, which is absent here"
                found = str(table.transfer(begin + i))
                return _at(schedule, "absence", [begin + i], expected, found, rank)
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
    return _at(schedule, "hazards", shown, expected, found)


def staging(schedule: Schedule) -> int:
    """The most chunks any rank both sends and receives in one round.

    The incoming data of such a chunk can't land in place before the send is over: this many
    chunk-sized buffers are needed beside the user's own.
    """
    table = schedule.table
    k = schedule.chunks
    n = schedule.ranks
    sent = (table.round * n + table.src) * k + table.chunk
    received = (table.round * n + table.dst) * k + table.chunk
    sent.sort()
    place = np.minimum(np.searchsorted(sent, received), max(0, len(sent) - 1))
    both = np.unique(received[sent[place] == received])
    return int(np.unique(both // k, return_counts=True)[1].max(initial=0))
