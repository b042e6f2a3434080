"""What one rank sends and receives in an operation, and which bytes must be done before which.

All transfers of a round read the state at its start, and those of one chunk happen in the order of
rounds. Every transfer goes through its chunk from the first byte to the last, so what must be done
before a byte of it may move on this rank is the same byte of others:

    a send      after the last receive into the chunk in an earlier round
    a receive   after all sends of the chunk since then, up to those of its own round; if there are
                none, after the last receive (an earlier turn of the same round counts as earlier)

That is all: there is no barrier between rounds, phases or chunks. The order in which the sums are
formed is that of the rounds, so the same schedule gives the same bits however the bytes arrive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runtime.executor.program import PhasePlan


@dataclass(frozen=True, slots=True)
class TransferEnd:
    """This rank's end of a transfer.

    Attributes:
        index: the transfer's number within the schedule, the same at both ends.
        phase: number of the phase it belongs to.
        step: position in :attr:`RankProgram.steps`.
        after: ends at the same chunk (positions in :attr:`RankProgram.ends`) that go before it,
            byte by byte.
    """

    index: int
    send: bool
    reduce: bool
    peer: int
    chunk: int
    phase: int
    step: int
    after: tuple[int, ...]


@dataclass(frozen=True)
class RankProgram:
    """All that one rank sends and receives.

    Attributes:
        ends: in the order of rounds, sends before receives.
        at: transfer index -> position in ``ends``.
        waiting: for each end, the receives that have it in ``after``.
        receives: for each phase, its receives in order.
        steps: (phase, round within it) of each step.
    """

    ends: tuple[TransferEnd, ...]
    at: dict[int, int]
    waiting: tuple[tuple[int, ...], ...]
    receives: tuple[tuple[int, ...], ...]
    steps: tuple[tuple[str, int], ...]


def rank_program(phases: Sequence[PhasePlan]) -> RankProgram:
    """The ends of transfers in a rank's plan."""
    ends: list[TransferEnd] = []
    steps: list[tuple[str, int]] = []
    receives: list[list[int]] = [[] for _ in phases]
    received: dict[int, int] = {}  # chunk -> the last receive into it
    sent: dict[int, list[int]] = {}  # chunk -> sends of it since then
    for number, phase in enumerate(phases):
        for step in phase.steps:
            place = number, len(steps)
            for s in step.sends:
                after = tuple(received[c] for c in (s.chunk,) if c in received)
                sent.setdefault(s.chunk, []).append(len(ends))
                ends.append(TransferEnd(s.index, True, False, s.peer, s.chunk, *place, after))
            for r in step.receives:
                after = tuple(sent.pop(r.chunk, ()))
                if not after and r.chunk in received:
                    after = (received[r.chunk],)
                received[r.chunk] = len(ends)
                receives[number].append(len(ends))
                ends.append(TransferEnd(r.index, False, r.reduce, r.peer, r.chunk, *place, after))
            steps.append((phase.name, step.round))
    waiting: list[list[int]] = [[] for _ in ends]
    for position, end in enumerate(ends):
        for earlier in end.after if not end.send else ():
            waiting[earlier].append(position)
    return RankProgram(
        ends=tuple(ends),
        at={end.index: position for position, end in enumerate(ends)},
        waiting=tuple(map(tuple, waiting)),
        receives=tuple(map(tuple, receives)),
        steps=tuple(steps),
    )
