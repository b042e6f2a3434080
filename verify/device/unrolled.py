"""A device program as a program without rounds, for as many operations in sequence as are wanted.

The theory of :mod:`latecomer.verify.asynchronous` is used as it is: a rank is one block of its
steps, a PUT a step with a target at the peer, a flag a counter that the PUT raises to the epoch.
Staging is memory like the own tensor; epochs that are ``sets`` apart share it. Epochs count from 1
here. Of a kernel's blocks one is looked at: each has memory of its own (proofs/coq/DeviceBlocks.v).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from latecomer.verify.asynchronous.model import Block, BlockProgram, Buffer, Signal, Step
from latecomer.verify.device.program import DeviceAction, DeviceProgram


def unrolled(program: DeviceProgram, operations: int) -> BlockProgram:
    """``operations`` of a program with valid indices, one after another on each rank.

    A step's position is its row. There is no demand: what is added up is compared with the schedule
    (:mod:`latecomer.verify.device.sums`).
    """
    ranks = program.ranks
    chunks = program.chunks
    own_chunks = ranks * chunks
    all_slots = ranks * program.sets * program.slots

    memory = np.arange(own_chunks + all_slots)
    return BlockProgram(
        kind="allreduce",
        placement="in place",
        ranks=ranks,
        blocks=tuple(
            Block(rank, "kernel", tuple(_steps(program, rank, operations))) for rank in range(ranks)
        ),
        slots=None,
        fifos=(),
        counters=tuple(f"flag {slot}" for slot in range(all_slots)),
        buffers=tuple(_buffers(program)),
        addresses=len(memory),
        input_rank=np.where(memory < own_chunks, memory // chunks, -1),
        input_chunk=np.where(memory < own_chunks, memory % chunks, -1),
        demands=(),
    )


def _steps(program: DeviceProgram, rank: int, operations: int) -> Iterator[Step]:
    """What a rank does in all operations, in order."""
    rows = program.rows[rank].tolist()
    for epoch in range(1, operations + 1):
        for position, row in enumerate(rows):
            yield _step(program, rank, epoch, position, row)


def _step(program: DeviceProgram, rank: int, epoch: int, position: int, row: list[int]) -> Step:
    """A row of the program in one operation."""
    action, peer, chunk, slot = row
    text = f"epoch {epoch}: {in_words(row)}"
    own_chunk = rank * program.chunks + chunk
    if action == DeviceAction.PUT:
        number = _number_of_slot(program, peer, epoch % program.sets, slot)
        return Step(
            text=text,
            position=position,
            count=1,
            sources=(own_chunk,),
            targets=(_address_of_slot(program, number),),
            signals=(Signal(number, epoch),),
        )

    number = _number_of_slot(program, rank, epoch % program.sets, slot)
    sources = [_address_of_slot(program, number)]
    if action == DeviceAction.REDUCE:
        sources.append(own_chunk)
    return Step(
        text=text,
        position=position,
        count=1,
        sources=tuple(sources),
        targets=(own_chunk,),
        waits=(Signal(number, epoch),),
    )


def _number_of_slot(program: DeviceProgram, rank: int, staging_set: int, slot: int) -> int:
    """The number of a slot among those of all ranks and sets; its flag has the same."""
    return (rank * program.sets + staging_set) * program.slots + slot


def _address_of_slot(program: DeviceProgram, number: int) -> int:
    """Slots lie behind the own chunks of all ranks."""
    return program.ranks * program.chunks + number


def _buffers(program: DeviceProgram) -> Iterator[Buffer]:
    """The chunks of all ranks, then their staging, set by set."""
    for rank in range(program.ranks):
        yield Buffer(rank, "chunk ", rank * program.chunks, program.chunks)
    for rank in range(program.ranks):
        for staging_set in range(program.sets):
            first_slot = _number_of_slot(program, rank, staging_set, 0)
            start = _address_of_slot(program, first_slot)
            yield Buffer(rank, f"set {staging_set} slot ", start, program.slots)


def in_words(row: list[int]) -> str:
    """A row as people read it."""
    action, peer, chunk, slot = row
    if action == DeviceAction.PUT:
        return f"put chunk {chunk} into slot {slot} of rank {peer}"
    does = "add" if action == DeviceAction.REDUCE else "copy"
    return f"{does} slot {slot}, from rank {peer}, to chunk {chunk}"
