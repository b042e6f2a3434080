"""Our own schedules as the executor runs them: the same theory for rounds without a clock.

A rank is one block. A round in which it takes part is: its sends, which read what it holds at the
start; its receives, in the order of the file; and a wait until all that it sent has been received
(rendezvous, before the next round is posted). The executor takes what comes in any order, which
can only end more waits.
"""

from __future__ import annotations

from itertools import groupby

import numpy as np

from verify.asynchronous.model import ALL_RANKS, Block, Buffer, Demand, Program, Signal, Step
from verify.core.programs import programs
from verify.core.schedule import Schedule


def program_of(schedule: Schedule) -> Program:
    """The program of a well formed schedule; a FIFO and a counter for each pair of ranks."""
    of = programs(schedule)
    n = schedule.ranks
    k = schedule.chunks
    pairs: dict[tuple[int, int], int] = {}
    received: dict[tuple[int, int], int] = {}
    sent: dict[tuple[int, int], int] = {}
    rows: list[list[Step]] = [[] for _ in range(n)]
    columns = (of.rank, of.peer, of.chunk, of.sends, of.reduce, of.step, of.round)
    ends = list(zip(*(column.tolist() for column in columns), strict=True))
    for (rank, _), group in groupby(ends, lambda end: (end[0], end[5])):
        acks: dict[int, int] = {}
        step = list(group)
        for _, peer, chunk, sends, reduce, _, number in sorted(step, key=lambda end: not end[3]):
            own = rank * k + chunk
            place = len(rows[rank])
            if sends:
                pair = rank, peer
                fifo = pairs.setdefault(pair, len(pairs))
                sent[pair] = acks[fifo] = sent.get(pair, 0) + 1
                text = f"round {number}: send chunk {chunk} to rank {peer}"
                made = Step(text=text, place=place, count=1, sources=(own,), sends=fifo)
            else:
                pair = peer, rank
                fifo = pairs.setdefault(pair, len(pairs))
                received[pair] = received.get(pair, 0) + 1
                text = f"round {number}: receive chunk {chunk} from rank {peer}"
                made = Step(
                    text=text,
                    place=place,
                    count=1,
                    sources=(own,) if reduce else (),
                    targets=(own,),
                    receives=fifo,
                    signals=(Signal(fifo, received[pair]),),
                )
            rows[rank].append(made)
        waits = tuple(Signal(fifo, value) for fifo, value in acks.items())
        text = f"round {step[0][6]}: over when all that was sent is received"
        rows[rank].append(Step(text=text, place=len(rows[rank]), count=0, sources=(), waits=waits))
    memory = np.arange(n * k)
    names = [f"rank {a} -> rank {b}" for a, b in pairs]
    return Program(
        kind=schedule.kind,
        placement="in place",
        ranks=n,
        blocks=tuple(Block(rank, "program", tuple(steps)) for rank, steps in enumerate(rows)),
        slots=None,
        fifos=tuple(names),
        counters=tuple(f"what is received of {name}" for name in names),
        buffers=tuple(Buffer(rank, "chunk ", rank * k, k) for rank in range(n)),
        addresses=n * k,
        input_rank=memory // k,
        input_chunk=memory % k,
        demands=(Demand("", memory, np.full(n * k, ALL_RANKS), memory % k),),
    )
