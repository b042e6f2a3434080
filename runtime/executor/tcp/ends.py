"""What one rank sends and receives in an operation, and which bytes must be done before which.

A *move* is one end of a transfer. All transfers of a round read the state at its start, and moves
of one chunk happen in the order of rounds. Every move goes through its chunk from the first byte
to the last, so what must be done before a byte of it may move is the same byte of others:

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
    """One end of a transfer.

    Attributes:
        index: the transfer's number within the schedule, the same at both ends.
        lane: the phase it belongs to.
        step: position in :attr:`RankProgram.steps`.
        after: moves of the same chunk (positions in :attr:`RankProgram.all`) that go before it,
            byte by byte.
    """

    index: int
    send: bool
    reduce: bool
    peer: int
    chunk: int
    lane: int
    step: int
    after: tuple[int, ...]


@dataclass(frozen=True)
class RankProgram:
    """All moves of a rank.

    Attributes:
        all: in the order of rounds, sends before receives.
        at: transfer index -> position in ``all``.
        waiting: for each move, the receives that have it in ``after``.
        lanes: for each phase, its receives in order.
        steps: (phase, round within it) of each step.
    """

    all: tuple[TransferEnd, ...]
    at: dict[int, int]
    waiting: tuple[tuple[int, ...], ...]
    lanes: tuple[tuple[int, ...], ...]
    steps: tuple[tuple[str, int], ...]


def moves(phases: Sequence[PhasePlan]) -> RankProgram:
    """The moves of a rank's plan."""
    made: list[TransferEnd] = []
    steps: list[tuple[str, int]] = []
    received: dict[int, int] = {}  # chunk -> the last receive into it
    sent: dict[int, list[int]] = {}  # chunk -> sends of it since then
    for lane, phase in enumerate(phases):
        for step in phase.steps:
            for send in step.sends:
                after = tuple(received[c] for c in (send.chunk,) if c in received)
                sent.setdefault(send.chunk, []).append(len(made))
                made.append(
                    TransferEnd(
                        send.index, True, False, send.peer, send.chunk, lane, len(steps), after
                    )
                )
            for r in step.receives:
                after = tuple(sent.pop(r.chunk, ()))
                if not after and r.chunk in received:
                    after = (received[r.chunk],)
                received[r.chunk] = len(made)
                made.append(
                    TransferEnd(r.index, False, r.reduce, r.peer, r.chunk, lane, len(steps), after)
                )
            steps.append((phase.name, step.round))
    waiting: list[list[int]] = [[] for _ in made]
    for position, move in enumerate(made):
        for earlier in move.after:
            if not move.send:
                waiting[earlier].append(position)
    return RankProgram(
        all=tuple(made),
        at={move.index: position for position, move in enumerate(made)},
        waiting=tuple(map(tuple, waiting)),
        lanes=tuple(
            tuple(p for p, move in enumerate(made) if move.lane == lane and not move.send)
            for lane in range(len(phases))
        ),
        steps=tuple(steps),
    )
