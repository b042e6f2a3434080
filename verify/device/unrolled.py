"""A device program as a program without rounds, for as many operations in sequence as are wanted.

The theory of :mod:`verify.asynchronous` is used as it is: a rank is one block of its steps, a PUT a
step with a target at the peer, a flag a counter that the PUT raises to the epoch. Staging is memory
like the own tensor; epochs that are ``sets`` apart share it. Epochs count from 1 here. Of a
kernel's blocks one is looked at: each has memory of its own (proofs/coq/DeviceBlocks.v).
"""

from __future__ import annotations

import numpy as np

from verify.asynchronous.model import Block, BlockProgram, Buffer, Signal, Step
from verify.device.program import DeviceAction, DeviceProgram


def unrolled(program: DeviceProgram, operations: int) -> BlockProgram:
    """``operations`` of a program with valid indices, one after another on each rank.

    A step's position is its row. There is no demand: what is added up is compared with the schedule
    (:mod:`verify.device.sums`).
    """
    n = program.ranks
    k = program.chunks
    sets = program.sets
    slots = program.slots
    staging = n * k
    places = n * sets * slots

    def steps(rank: int) -> tuple[Step, ...]:
        made = []
        rows = program.rows[rank].tolist()
        for epoch in range(1, operations + 1):
            for place, row in enumerate(rows):
                action, peer, chunk, slot = row
                at = (
                    (peer if action == DeviceAction.PUT else rank) * sets + epoch % sets
                ) * slots + slot
                own = (rank * k + chunk,)
                staged = (staging + at,)
                flag = (Signal(at, epoch),)
                put = action == DeviceAction.PUT
                made.append(
                    Step(
                        text=f"epoch {epoch}: {in_words(row)}",
                        position=place,
                        count=1,
                        sources=own if put else staged + own * (action == DeviceAction.REDUCE),
                        targets=staged if put else own,
                        waits=() if put else flag,
                        signals=flag if put else (),
                    )
                )
        return tuple(made)

    of_set = [
        (rank, number, staging + (rank * sets + number) * slots)
        for rank in range(n)
        for number in range(sets)
    ]
    memory = np.arange(staging + places)
    return BlockProgram(
        kind="allreduce",
        placement="in place",
        ranks=n,
        blocks=tuple(Block(rank, "kernel", steps(rank)) for rank in range(n)),
        slots=None,
        fifos=(),
        counters=tuple(f"flag {place}" for place in range(places)),
        buffers=(
            *(Buffer(rank, "chunk ", rank * k, k) for rank in range(n)),
            *(Buffer(rank, f"set {number} slot ", at, slots) for rank, number, at in of_set),
        ),
        addresses=len(memory),
        input_rank=np.where(memory < staging, memory // k, -1),
        input_chunk=np.where(memory < staging, memory % k, -1),
        demands=(),
    )


def in_words(row: list[int]) -> str:
    """A row as people read it."""
    action, peer, chunk, slot = row
    if action == DeviceAction.PUT:
        return f"put chunk {chunk} into slot {slot} of rank {peer}"
    does = "add" if action == DeviceAction.REDUCE else "copy"
    return f"{does} slot {slot}, from rank {peer}, to chunk {chunk}"
