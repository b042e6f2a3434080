"""What one rank does in each phase: its steps, and how early each receive may be posted.

A step is a round in which the rank takes part (``verify.programs.by_round``, the order that was
proved free of deadlock). Its sends and receives are posted together; on top of that a receive may
be posted ``AHEAD`` steps early, so that the data of a peer that is ahead already flows:

    in place    a copy into a chunk that is not sent in the same round lands in the user's buffer;
                it may be posted once the rank has finished with the chunk's old content
    scratch     a reduce, or a copy that meets a send of the same chunk in its round, lands in a
                scratch buffer and is folded in when its step comes
"""

from __future__ import annotations

from dataclasses import dataclass

from verify.programs import by_round
from verify.schedule import Schedule

AHEAD_IN_PLACE = 8
AHEAD_SCRATCH = 2


@dataclass(frozen=True)
class Send:
    """A chunk to ``peer``; ``index`` numbers the transfer within the schedule."""

    index: int
    peer: int
    chunk: int


@dataclass(frozen=True)
class Receive:
    """A chunk from ``peer``; ``post_at`` is the step before which it may be posted."""

    index: int
    peer: int
    chunk: int
    reduce: bool
    scratch: bool
    post_at: int


@dataclass(frozen=True)
class Step:
    """One round of one rank; ``round`` counts within the phase."""

    round: int
    sends: tuple[Send, ...]
    receives: tuple[Receive, ...]


@dataclass(frozen=True)
class PhasePlan:
    """One rank's part of a phase; ``posts[i]`` are the receives to post at the start of step i."""

    name: str
    steps: tuple[Step, ...]
    posts: tuple[tuple[Receive, ...], ...]


def plan(schedule: Schedule, rank: int) -> tuple[PhasePlan, ...]:
    """The part of ``rank`` in each phase of ``schedule`` (no steps where it is absent)."""
    table = schedule.table
    program = by_round(schedule)[rank]
    first = 0
    phases = []
    for phase in schedule.phases:
        last = first + len(phase.rounds)
        groups = [step for step in program if first <= int(table.round[step[0]]) < last]
        phases.append(_phase(schedule, rank, phase.name, first, groups))
        first = last
    return tuple(phases)


def _phase(
    schedule: Schedule, rank: int, name: str, first: int, groups: list[tuple[int, ...]]
) -> PhasePlan:
    table = schedule.table
    touched: dict[int, int] = {}  # chunk -> last step that sent or received it
    steps: list[Step] = []
    posts: list[list[Receive]] = [[] for _ in groups]
    for number, group in enumerate(groups):
        sends, receives = [], []
        for i in group:
            src, dst, chunk = int(table.src[i]), int(table.dst[i]), int(table.chunk[i])
            if src == rank:
                sends.append(Send(i, dst, chunk))
            else:
                receives.append((i, src, chunk, bool(table.reduce[i])))
        sent = {send.chunk for send in sends}
        posted = []
        for i, peer, chunk, reduce in receives:
            scratch = reduce or chunk in sent
            ahead = AHEAD_SCRATCH if scratch else AHEAD_IN_PLACE
            free = 0 if scratch else touched.get(chunk, -1) + 1
            post_at = max(0, free, number - ahead)
            receive = Receive(i, peer, chunk, reduce, scratch, post_at)
            posted.append(receive)
            posts[post_at].append(receive)
        for chunk in [*sent, *(receive.chunk for receive in posted)]:
            touched[chunk] = number
        steps.append(Step(int(table.round[group[0]]) - first, tuple(sends), tuple(posted)))
    return PhasePlan(name, tuple(steps), tuple(map(tuple, posts)))
