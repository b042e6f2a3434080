"""From rounds to programs without rounds: both ends of each transfer, and what each must wait for.

All transfers of a round read the state at its start; an executor without rounds keeps to that if,
on every rank, a send waits for the last write of its chunk, and a write waits for all reads of the
chunk since the last write, else for that write. Ends stand in an order in which everything that one
waits for comes earlier: round by round, sends before receives. So whoever runs them in this order,
each message of a pair after the one before, can't deadlock, with room for one message or more.
"""

from __future__ import annotations

from typing import NamedTuple

from latecomer.verify.core.schedule import Phase, Schedule, Transfer
from latecomer.verify.errors import ArgumentError

MAX_CHUNKS = 1024
"""Of an exported program; every target's limits are reached before."""


class End(NamedTuple):
    """What one rank does for one transfer.

    Attributes:
        transfer: number of the transfer in the schedule, shared by its two ends.
        before: numbers of the ends, on this rank, that must be complete first.
    """

    rank: int
    peer: int
    chunk: int
    sends: bool
    reduce: bool
    round: int
    transfer: int
    before: tuple[int, ...]


def ends(schedule: Schedule) -> list[End]:
    """Both ends of all transfers, in an order in which everything waits only for earlier ones."""
    table = schedule.table
    writes: dict[tuple[int, int], int] = {}
    reads: dict[tuple[int, int], list[int]] = {}
    all_ends: list[End] = []

    def add(rank: int, peer: int, index: int, sends: bool, before: tuple[int, ...]) -> None:
        end = End(
            rank=rank,
            peer=peer,
            chunk=int(table.chunk[index]),
            sends=sends,
            reduce=bool(table.reduce[index]),
            round=int(table.round[index]),
            transfer=index,
            before=before,
        )
        all_ends.append(end)

    first = 0
    for _, _, transfers in schedule.located_rounds():
        numbered = list(enumerate(transfers, first))
        first += len(transfers)
        # All sends of a round come before its receives: they read the state at its start.
        for index, transfer in numbered:
            buffer = (transfer.src, transfer.chunk)
            last_write = (writes[buffer],) if buffer in writes else ()
            reads.setdefault(buffer, []).append(len(all_ends))
            add(transfer.src, transfer.dst, index, True, last_write)
        for index, transfer in numbered:
            buffer = (transfer.dst, transfer.chunk)
            last_write = (writes[buffer],) if buffer in writes else ()
            reads_since = tuple(reads.pop(buffer, ()))
            writes[buffer] = len(all_ends)
            add(transfer.dst, transfer.src, index, False, reads_since or last_write)
    return all_ends


def with_chunks(schedule: Schedule, chunks: int) -> Schedule:
    """The same schedule over more chunks: each of its own becomes one or several of the new ones.

    Targets use a program only for buffers whose count is divisible by the chunks, which with 7 or
    31 chunks is seldom so. Chunk c becomes chunks floor(c K / k) .. floor((c + 1) K / k) - 1 of K,
    one after the other, so each round becomes up to ceil(K / k).

    Raises:
        ArgumentError: fewer chunks than the schedule has, or too many.

    Examples:
        >>> from latecomer import synth
        >>> from latecomer.synth.export.ends import with_chunks
        >>> seven = synth.generate(8)
        >>> eight = with_chunks(seven, 8)
        >>> seven.chunks, seven.rounds, eight.chunks, eight.rounds
        (7, 15, 8, 24)
    """
    own = schedule.chunks
    if not own <= chunks <= max(own, MAX_CHUNKS):
        raise ArgumentError("--chunks", chunks, f"must be in {own}..{max(own, MAX_CHUNKS)}")
    phases = []
    for phase in schedule.phases:
        rounds = []
        for transfers in phase.rounds:
            parts = [
                [Transfer(t.src, t.dst, piece, t.op) for piece in _pieces(t.chunk, own, chunks)]
                for t in transfers
            ]
            for turn in range(max(map(len, parts), default=1)):
                rounds.append(tuple(part[turn] for part in parts if turn < len(part)))
        phases.append(Phase(phase.name, phase.absent, tuple(rounds)))
    return Schedule(
        ranks=schedule.ranks,
        chunks=chunks,
        phases=tuple(phases),
        late=schedule.late,
        ports=schedule.ports,
    )


def _pieces(chunk: int, own: int, chunks: int) -> range:
    return range(chunk * chunks // own, (chunk + 1) * chunks // own)
