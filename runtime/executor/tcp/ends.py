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
    """This rank's end of a transfer; ``index`` is the same at both ends."""

    index: int
    send: bool
    reduce: bool
    peer: int
    chunk: int
    step: int  # position in RankProgram.steps
    after: tuple[int, ...]  # positions of what goes before it at the same chunk, byte by byte


@dataclass(frozen=True)
class RankProgram:
    """All that one rank sends and receives; an end of a transfer is known by its position."""

    ends: tuple[TransferEnd, ...]  # in the order of rounds, sends before receives
    at: dict[int, int]  # transfer index -> position
    waiting: tuple[tuple[int, ...], ...]  # for each end, the receives that have it in ``after``
    receives: tuple[tuple[int, ...], ...]  # for each phase, in order
    steps: tuple[tuple[str, int], ...]  # (phase, round within it)


def rank_program(phases: Sequence[PhasePlan]) -> RankProgram:
    """The ends of transfers in a rank's plan."""
    ends: list[TransferEnd] = []
    steps: list[tuple[str, int]] = []
    receives: list[list[int]] = [[] for _ in phases]
    received: dict[int, int] = {}  # chunk -> the last receive into it
    sent: dict[int, list[int]] = {}  # chunk -> sends of it since then
    for number, phase in enumerate(phases):
        for step in phase.steps:
            at = len(steps)
            for s in step.sends:
                after = tuple(received[c] for c in (s.chunk,) if c in received)
                sent.setdefault(s.chunk, []).append(len(ends))
                ends.append(TransferEnd(s.index, True, False, s.peer, s.chunk, at, after))
            for r in step.receives:
                after = tuple(sent.pop(r.chunk, ()))
                if not after and r.chunk in received:
                    after = (received[r.chunk],)
                received[r.chunk] = len(ends)
                receives[number].append(len(ends))
                ends.append(TransferEnd(r.index, False, r.reduce, r.peer, r.chunk, at, after))
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
