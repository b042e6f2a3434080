"""What one rank sends and receives, and which bytes must be done before which.

A step is a round in which the rank takes part (``verify.core.programs``, what was
proved free of deadlock). Its transfers read the state at its start, so a reduce, and a copy
that meets a send of the same chunk in its step, can't land in the user's tensor where all of a step
goes at once: they need *scratch*.

Byte by byte there is more freedom. Every transfer goes through its chunk from the first byte to the
last, so what must be done before a byte of it may move on this rank is the same byte of others:

    a send      after the last receive into the chunk in an earlier round
    a receive   after all sends of the chunk since then, up to those of its own round; if there are
                none, after the last receive (an earlier turn of the same round counts as earlier)

There is no barrier between rounds, phases or chunks. Sums are formed in the order of rounds, so the
same schedule gives the same bits however the bytes arrive.
"""

from __future__ import annotations

from itertools import groupby

import numpy as np

from runtime.work import RankProgram, TransferEnd
from verify.core.programs import programs
from verify.core.schedule import Schedule


def rank_program(schedule: Schedule, rank: int, *, alone: bool = False) -> RankProgram:
    """The part of ``rank`` in ``schedule``.

    A transfer's index is its place in the schedule; in one that has what this rank does ``alone``
    (and sends at most once in a round, as all others do) it follows from round and sender.
    """
    of = programs(schedule)
    scratch = of.scratch()
    rounds = [
        (number, phase.name, round)
        for number, phase in enumerate(schedule.phases)
        for round in range(len(phase.rounds))
    ]
    ends: list[TransferEnd] = []
    steps: list[tuple[str, int]] = []
    received: dict[int, int] = {}  # chunk -> the last receive into it
    sent: dict[int, list[int]] = {}  # chunk -> sends of it since then
    for _, group in groupby(np.flatnonzero(of.rank == rank).tolist(), of.step.__getitem__):
        rows = sorted(group, key=lambda row: not of.sends[row])
        phase, name, round = rounds[int(of.round[rows[0]])]
        for row in rows:
            send = bool(of.sends[row])
            chunk = int(of.chunk[row])
            after: tuple[int, ...] = (received[chunk],) if chunk in received else ()
            if send:
                sent.setdefault(chunk, []).append(len(ends))
            else:
                after = tuple(sent.pop(chunk, ())) or after
                received[chunk] = len(ends)
            peer = int(of.peer[row])
            by_round = int(of.round[row]) * schedule.ranks
            end = TransferEnd(
                index=by_round + (rank if send else peer) if alone else int(of.index[row]),
                send=send,
                reduce=not send and bool(of.reduce[row]),
                scratch=bool(scratch[row]),
                peer=peer,
                chunk=chunk,
                phase=phase,
                step=len(steps),
                after=after,
            )
            ends.append(end)
        steps.append((name, round))
    return RankProgram(tuple(ends), tuple(steps), len(schedule.phases))
