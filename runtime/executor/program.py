"""What one rank sends and receives, and which bytes must be done before which.

A step is a round in which the rank takes part (``latecomer.verify.core.programs``, what was
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

from latecomer.runtime.work import RankProgram, TransferEnd
from latecomer.verify.core.programs import Programs, programs
from latecomer.verify.core.schedule import Schedule


def rank_program(
    schedule: Schedule,
    rank: int,
    programs_of_ranks: Programs | None = None,
    *,
    alone: bool = False,
) -> RankProgram:
    """The part of ``rank`` in ``schedule``.

    Args:
        programs_of_ranks: ``programs(schedule)``, if they have been made before.
        alone: the schedule has what this rank does, and no more; it sends at most once in a round,
            as all others do. Then a transfer's index follows from round and sender; else it is its
            position in the schedule.
    """
    rows_of_ranks = programs(schedule) if programs_of_ranks is None else programs_of_ranks
    needs_scratch = rows_of_ranks.scratch()
    rounds = _rounds(schedule)

    ends: list[TransferEnd] = []
    steps: list[tuple[str, int]] = []
    order = _ChunkOrder()

    rows_of_rank = np.flatnonzero(rows_of_ranks.rank == rank).tolist()
    for _, rows_of_step in groupby(rows_of_rank, key=rows_of_ranks.step.__getitem__):
        rows = sorted(rows_of_step, key=lambda row: not rows_of_ranks.sends[row])
        phase, phase_name, round_in_phase = rounds[int(rows_of_ranks.round[rows[0]])]

        for row in rows:
            send = bool(rows_of_ranks.sends[row])
            chunk = int(rows_of_ranks.chunk[row])
            peer = int(rows_of_ranks.peer[row])

            if alone:
                sender = rank if send else peer
                index = int(rows_of_ranks.round[row]) * schedule.ranks + sender
            else:
                index = int(rows_of_ranks.index[row])

            end = TransferEnd(
                index=index,
                send=send,
                reduce=not send and bool(rows_of_ranks.reduce[row]),
                scratch=bool(needs_scratch[row]),
                peer=peer,
                chunk=chunk,
                phase=phase,
                step=len(steps),
                after=order.add(chunk, position=len(ends), send=send),
            )
            ends.append(end)

        steps.append((phase_name, round_in_phase))
    return RankProgram(tuple(ends), tuple(steps), len(schedule.phases))


class _ChunkOrder:
    """Which ends of transfers go before the next one of the same chunk; see the module."""

    def __init__(self) -> None:
        self._last_receive: dict[int, int] = {}  # by chunk: the position of the last one into it
        self._sends_since: dict[int, list[int]] = {}  # by chunk: positions of sends since then

    def add(self, chunk: int, *, position: int, send: bool) -> tuple[int, ...]:
        """The next end of a transfer of ``chunk``: the positions of those that go before it."""
        after: tuple[int, ...] = ()
        if chunk in self._last_receive:
            after = (self._last_receive[chunk],)
        if send:
            self._sends_since.setdefault(chunk, []).append(position)
            return after

        # the sends have waited for the last receive themselves, where there are any
        after = tuple(self._sends_since.pop(chunk, ())) or after
        self._last_receive[chunk] = position
        return after


def _rounds(schedule: Schedule) -> list[tuple[int, str, int]]:
    """For each round of the schedule: its phase's number and name, and the round in that phase."""
    rounds = []
    for number, phase in enumerate(schedule.phases):
        for round_in_phase in range(len(phase.rounds)):
            rounds.append((number, phase.name, round_in_phase))
    return rounds
