"""Properties 1, 2, 3 and 6: what can be seen without following any data.

well_formed  sizes and indices in range, no rank sends to itself, absent ranks are declared late
ports        a round asks no more of a rank than its ports allow
absence      an absent rank takes no part
hazards      no two transfers of a round fight for one buffer; what needs a second buffer is
             counted (``staging``)
"""

from __future__ import annotations

import numpy as np

from latecomer.verify.core.schedule import Incast, Schedule, occurrence
from latecomer.verify.core.verdict import PROVED, SHOWN, Counterexample, Result, locate, refuted


def _at(
    schedule: Schedule, broken: str, indices: list[int], expected: str, found: str, rank: int = -1
) -> Result:
    """A refutation at the last of the given transfers, at its receiver or at ``rank``."""
    transfers = tuple(locate(schedule, index) for index in indices)
    last = transfers[-1]
    return refuted(
        Counterexample(
            property=broken,
            phase=last.phase,
            round=last.round,
            rank=last.dst if rank < 0 else rank,
            chunk=last.chunk,
            expected=expected,
            found=found,
            transfers=transfers,
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
    for name, value, low in [("ranks", n, 2), ("chunks", k, 1), ("incast", incast, 1)]:
        if value < low:
            return _wrong_size(expected=f"{name} >= {low}", found=f"{name} = {value}")
    for rank in schedule.late:
        if not 0 <= rank < n:
            return _wrong_size(expected=f"late ranks in 0..{n - 1}", found=f"late rank {rank}")

    columns = [("src", table.src, n), ("dst", table.dst, n), ("chunk", table.chunk, k)]
    for field, column, limit in columns:
        outside = np.flatnonzero((column < 0) | (column >= limit))
        if len(outside):
            index = int(outside[0])
            expected = f"{field} in 0..{limit - 1}"
            return _at(schedule, "well_formed", [index], expected, str(column[index]))

    to_itself = np.flatnonzero(table.src == table.dst)
    if len(to_itself):
        index = int(to_itself[0])
        found = f"rank {table.src[index]} sends to itself"
        return _at(schedule, "well_formed", [index], "src and dst differ", found)

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


def _wrong_size(expected: str, found: str) -> Result:
    return refuted(Counterexample(property="well_formed", expected=expected, found=found))


def ports(schedule: Schedule) -> Result:
    """Property 2: at most one send and one receive per rank and round (duplex), disjoint pairs
    (matching), or at most I of each (incast I).
    """
    table = schedule.table
    limit = schedule.ports.incast if isinstance(schedule.ports, Incast) else 1
    for verb, column in [("sends", table.src), ("receives", table.dst)]:
        beyond = np.flatnonzero(occurrence(table.round, column) >= limit)
        if len(beyond):
            index = beyond[0]
            rank = int(column[index])
            same = np.flatnonzero((table.round == table.round[index]) & (column == rank))
            shown = same[: min(limit + 1, SHOWN)].tolist()
            expected = f"at most {limit} {verb} per rank and round"
            found = f"rank {rank} {verb} {len(same)} times"
            return _at(schedule, "ports", shown, expected, found, rank)
    if schedule.ports == "matching":
        return _disjoint_pairs(schedule)
    return PROVED


def _disjoint_pairs(schedule: Schedule) -> Result:
    """In every round each rank deals with one partner only (duplex ports already hold)."""
    table = schedule.table
    if not len(table):
        return PROVED
    sender = table.round * schedule.ranks + table.src
    receiver = table.round * schedule.ranks + table.dst
    order = np.argsort(sender)
    position = np.searchsorted(sender, receiver, sorter=order)

    # Of transfer i, what its receiver sends in the round; another transfer if it sends nothing.
    sends = order[np.minimum(position, len(table) - 1)]
    clash = (sender[sends] == receiver) & (table.dst[sends] != table.src)
    clashes = np.flatnonzero(clash)
    if not len(clashes):
        return PROVED

    received = int(clashes[0])
    sent = int(sends[received])
    rank = int(table.dst[received])
    found = f"rank {rank} receives from {table.src[received]} and sends to {table.dst[sent]}"
    expected = "one partner per rank and round (matching)"
    return _at(schedule, "ports", sorted([received, sent]), expected, found, rank)


def absence(schedule: Schedule) -> Result:
    """Property 3: a rank that is absent from a phase neither sends nor receives in it."""
    table = schedule.table
    first_round = 0
    for phase in schedule.phases:
        next_round = first_round + len(phase.rounds)
        begin, end = np.searchsorted(table.round, [first_round, next_round]).tolist()
        first_round = next_round
        if not phase.absent:
            continue

        for column in (table.src, table.dst):
            of_absent = np.flatnonzero(np.isin(column[begin:end], phase.absent))
            if len(of_absent):
                index = begin + int(of_absent[0])
                rank = int(column[index])
                expected = f"no transfer of rank {rank}, which is absent here"
                found = str(table.transfer(index))
                return _at(schedule, "absence", [index], expected, found, rank)
    return PROVED


def hazards(schedule: Schedule) -> Result:
    """Property 6: one writer per (rank, chunk) and round; several reduces only under incast."""
    table = schedule.table
    summing_allowed = isinstance(schedule.ports, Incast)
    target = (table.round * schedule.ranks + table.dst) * schedule.chunks + table.chunk
    further = np.flatnonzero(table.turn > 0)  # not the first into its target
    if summing_allowed:
        # several reduces add up; what is wrong is one beside a copy
        further = further[np.isin(target[further], target[~table.reduce])]
    if not len(further):
        return PROVED

    # Of those with this target two are shown, a copy if there is one.
    same = np.flatnonzero(target == target[further[0]])
    copies = same[~table.reduce[same]]
    first = int(copies[0] if len(copies) else same[0])
    second = int(same[same != first][0])
    shown = sorted([first, second])

    if summing_allowed:
        expected = "a copy to be the only transfer into its (rank, chunk) of the round"
    else:
        expected = "one transfer into each (rank, chunk) of a round"
    texts = ", ".join(str(table.transfer(index)) for index in shown)
    found = f"{len(same)} transfers write it: {texts}"
    if len(same) > 2:
        found += ", ..."
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
    position = np.minimum(np.searchsorted(sent, received), max(0, len(sent) - 1))
    both = np.unique(received[sent[position] == received])
    _, chunks_per_rank_and_round = np.unique(both // k, return_counts=True)
    return int(chunks_per_rank_and_round.max(initial=0))
