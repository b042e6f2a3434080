"""What one rank does in each phase: its steps, and which receives need a buffer of their own.

A step is a round in which the rank takes part (``verify.core.programs.by_round``, the order that
was proved free of deadlock). Its transfers read the state at its start, so a reduce, and a copy
that meets a send of the same chunk in its round, can't land in the user's tensor: they need
*scratch*.
"""

from __future__ import annotations

from dataclasses import dataclass

from verify.core.programs import by_round
from verify.core.schedule import Schedule


@dataclass(frozen=True)
class Send:
    """A chunk to ``peer``; ``index`` numbers the transfer within the schedule."""

    index: int
    peer: int
    chunk: int


@dataclass(frozen=True)
class Receive:
    """A chunk from ``peer``."""

    index: int
    peer: int
    chunk: int
    reduce: bool
    scratch: bool


@dataclass(frozen=True)
class Step:
    """One round of one rank; ``round`` counts within the phase."""

    round: int
    sends: tuple[Send, ...]
    receives: tuple[Receive, ...]


@dataclass(frozen=True)
class PhasePlan:
    """One rank's part of a phase."""

    name: str
    steps: tuple[Step, ...]


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
    steps: list[Step] = []
    for group in groups:
        sends = tuple(
            Send(i, int(table.dst[i]), int(table.chunk[i])) for i in group if table.src[i] == rank
        )
        sent = {send.chunk for send in sends}
        receives = []
        for i in group:
            if table.src[i] != rank:
                chunk, reduce = int(table.chunk[i]), bool(table.reduce[i])
                scratch = reduce or chunk in sent
                receives.append(Receive(i, int(table.src[i]), chunk, reduce, scratch))
        steps.append(Step(int(table.round[group[0]]) - first, sends, tuple(receives)))
    return PhasePlan(name, tuple(steps))
