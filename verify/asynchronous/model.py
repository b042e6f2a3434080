"""One model for programs whose parts run at their own pace, whoever wrote them.

A *program* is a set of *blocks* (thread blocks of MSCCL or MSCCL++, or of our own GPU kernels),
each a list of *steps* that run in order. As far as values go a step is atomic; it does four things:

1. it *waits* until counters have reached values, until the FIFO that it receives from has a
   message, and until the FIFO that it sends to has a free slot;
2. it takes the message and reads its *sources*, and adds them up, chunk by chunk;
3. it stores the sum in its *targets* and puts it into the FIFO that it sends to;
4. it *signals*: it raises counters to values.

A FIFO has one sending and one receiving block and ``slots`` messages of room. A counter only grows
and is raised by one block, so the step that ends a wait is known: the first that raises the counter
so far. This carries MSCCL's flags (a counter for each block), MSCCL++'s semaphores (a counter for
each end of a channel: the k-th signal raises it to k), packets (a put that signals, and a read that
waits) and barriers (every block signals in one step, and waits for all others in its next).

Memory is one range of addresses, one chunk each, over all ranks: a put is a target at another rank,
and two names for one chunk (in place) are one address. What a chunk holds is how often each input
chunk of each rank is contained in it.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

ALL_RANKS = -1
"""As the rank of a demanded value: one contribution of every rank."""

NONE = -1
"""No FIFO."""

IntArray = NDArray[np.int64]


class Signal(NamedTuple):
    """Raise ``counter`` to ``value``; as a wait: go on when it has been raised to at least that.

    Every wait needs a signal: a counter that nobody has raised is below all values.
    """

    counter: int
    value: int


class Step(msgspec.Struct, frozen=True, gc=False):
    """One step of a block.

    Attributes:
        text: the step as its file has it, for people.
        position: which step of the block that is in the file, from 0.
        count: chunks; every area below has so many, from the address given.
        sources: first addresses of the areas that are added up (beside the message).
        targets: first addresses of the areas that get the sum.
        receives, sends: FIFO, or ``NONE``.
        waits: what must have been signalled before.
        signals: what is signalled when the step is done.
    """

    text: str
    position: int
    count: int
    sources: tuple[int, ...] = ()
    targets: tuple[int, ...] = ()
    receives: int = NONE
    sends: int = NONE
    waits: tuple[Signal, ...] = ()
    signals: tuple[Signal, ...] = ()


class Block(msgspec.Struct, frozen=True):
    """What runs in order: ``name`` is its name within its rank, for people (``tb 3``)."""

    rank: int
    name: str
    steps: tuple[Step, ...]


class Buffer(msgspec.Struct, frozen=True):
    """A rank's buffer: ``chunks`` addresses from ``start``; where in place, others overlap it."""

    rank: int
    name: str
    start: int
    chunks: int


class Demand(msgspec.Struct, frozen=True, eq=False):
    """What the collective wants at the end: ``chunk[i]`` of ``rank[i]`` at ``address[i]``, once.

    Attributes:
        name: which demand, where several would do (``root 3``); else empty.
        address, rank, chunk: one row for each chunk of output. ``ALL_RANKS``: of each rank once.
    """

    name: str
    address: IntArray
    rank: IntArray
    chunk: IntArray


class BlockProgram(msgspec.Struct, frozen=True, eq=False):
    """All blocks, the memory that they share, and what is to be there at the end.

    Attributes:
        kind: the collective; ``placement``: ``in place`` or ``out of place``.
        slots: messages that a FIFO holds; None where there is no bound.
        sliced: whether a slot's first part can be used again while its last part is still to be
            received, so that parts of one more message are on their way.
        fifos: names for people; counters: likewise.
        addresses: chunks of memory, of all ranks together.
        input_rank, input_chunk: per address, whose input chunk it holds at the start; -1: nothing.
        demands: any one of them makes the result right.
    """

    kind: str
    placement: str
    ranks: int
    blocks: tuple[Block, ...]
    slots: int | None
    fifos: tuple[str, ...]
    counters: tuple[str, ...]
    buffers: tuple[Buffer, ...]
    addresses: int
    input_rank: IntArray
    input_chunk: IntArray
    demands: tuple[Demand, ...]
    sliced: bool = False

    @property
    def largest(self) -> int:
        """Chunks of the largest step that sends or receives; at least 1."""
        largest = 1
        for block in self.blocks:
            for step in block.steps:
                if step.receives != NONE or step.sends != NONE:
                    largest = max(largest, step.count)
        return largest

    def name_of(self, address: int) -> str:
        """A chunk as people write it: ``rank 2 o[5]``, with all its names where in place."""
        buffers = [b for b in self.buffers if b.start <= address < b.start + b.chunks]
        if not buffers:
            return f"address {address}"
        names = " = ".join(f"{b.name}[{address - b.start}]" for b in buffers)
        return f"rank {buffers[0].rank} {names}"
