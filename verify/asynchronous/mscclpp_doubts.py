"""Where the executor of MSCCL++ plans may do otherwise than a plan says.

None of this refutes a plan: it depends on the size of the message, on which run it is or on the
version of the executor. But nothing is proved where one of these is so. What is looked at is in
``execution_plan.cc``, ``execution_kernel.hpp`` and ``executor.cc`` of microsoft/mscclpp.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from verify.asynchronous.mscclpp_plan import Plan, PlanOperation

SCRATCH_BYTES = 2**26
"""What is shared out among the scratch chunks of plans that reuse resources."""

MOST_BYTES = 2**32
"""Larger messages are not meant by any verdict: offsets have 32 bits."""

MOST_ROUNDS = 2**16 - 1

MOST_PAIRS = 2**20
"""Pairs of areas that are compared; with more, cuts are taken to be unknown."""


PACKETS_BUFFER = "packets "
"""The name of the buffer of packets in a program."""


class Used(NamedTuple):
    """An area that an operation uses: where it lies, in chunks and in cells.

    Attributes:
        owns: whether it is named as an own buffer, not by a channel.
        owner, buffer: whose it is, ``packets `` for packets in scratch.
        first, chunks: the first chunk in its buffer, and how many.
        start: its address, in cells.
        writes: whether it is written.
    """

    rank: int
    operation: PlanOperation
    turn: int | None
    owns: bool
    owner: int
    buffer: str
    first: int
    chunks: int
    start: int
    writes: bool


def doubts(plan: Plan, used: list[Used], cells: int) -> Iterator[str]:
    """Every reason for which the executor may do otherwise."""
    yield from _switches(plan)
    yield from _rounds(plan)
    yield from _addressing(plan, used)
    yield from _scratch(plan, used)
    yield from _packets(plan, used, cells)
    yield from _cuts(used, cells)


def _switches(plan: Plan) -> Iterator[str]:
    """A switch channel is of one buffer, and every rank of its group has its end of it."""
    ends = [gpu.switches() for gpu in plan.gpus]
    for gpu in plan.gpus:
        for ranks in {ranks for _, ranks in gpu.switches()}:
            there = len(set(ranks)) == len(ranks) and max(ranks) < len(plan.gpus)
            if gpu.id not in ranks or not there:
                yield f"gpu {gpu.id} has a switch channel of ranks {list(ranks)}"
                return
            # The k-th channels of a group belong together; each rank binds its own buffer.
            bound = [[buffer for buffer, group in ends[rank] if group == ranks] for rank in ranks]
            if any(buffers != bound[0] for buffers in bound):
                yield f"the ranks {list(ranks)} have switch channels of different buffers"
                return


def _rounds(plan: Plan) -> Iterator[str]:
    """The kernel counts rounds in 16 bits."""
    message = min(plan.max_message_size, MOST_BYTES)
    first = plan.gpus[0]
    chunks = first.output_chunks if plan.collective == "allgather" else first.input_chunks
    for gpu in plan.gpus:
        for block in gpu.threadblocks:
            for operation in block.ops:
                context = operation.iter_context
                if context is None:
                    continue
                most = MOST_ROUNDS * context.unit_size * chunks
                if context.num_chunks * message > most:
                    size = most // max(1, context.num_chunks)
                    yield f"a pipeline has over {MOST_ROUNDS} rounds from {size + 1} bytes on"
                    return


def _addressing(plan: Plan, used: list[Used]) -> Iterator[str]:
    """Areas that the executor looks for at other addresses than are written."""
    gathers_in_place = plan.inplace and plan.collective == "allgather"
    for area in used:
        where = f"gpu {area.rank}: {area.operation.name}"
        if area.operation.name == "get":
            indices = [
                (source.index, target.index)
                for source, target in zip(
                    area.operation.src_buff, area.operation.dst_buff, strict=True
                )
            ]
            if any(source != target for source, target in indices):
                yield f"{where} takes each index for that of the other buffer"
                return
        if area.owns:
            continue
        if gathers_in_place and area.buffer == "i":
            yield f"{where} looks for another rank's input where its own lies"
            return
        if plan.use_double_scratch_buffer and area.buffer == "s":
            problem = "every other run, the half of the scratch that is not read"
            yield f"{where} uses, with use_double_scratch_buffer, {problem}"
            return


def _scratch(plan: Plan, used: list[Used]) -> Iterator[str]:
    """With ``reuse_resources`` scratch chunks have a fixed size; larger chunks run into others."""
    if not plan.reuse_resources:
        return
    if len({gpu.scratch_chunks for gpu in plan.gpus}) > 1:
        yield "reuse_resources, and gpus with different numbers of scratch chunks"
        return
    chunks = plan.gpus[0].input_chunks
    if plan.collective == "allgather":
        chunks *= len(plan.gpus)
    for area in used:
        in_scratch = area.buffer in {"s", PACKETS_BUFFER}
        if in_scratch and area.turn is None:
            room = scratch_chunk(plan)
            if plan.max_message_size > chunks * room:
                yield f"reuse_resources: scratch holds chunks of up to {room} bytes"
                return
        # The executor takes the pieces of these operations by the wrong buffer's type.
        if in_scratch and area.turn is not None and area.operation.name in {"re", "res", "get"}:
            yield f"reuse_resources: {area.operation.name} of scratch in a pipeline"
            return


def scratch_chunk(plan: Plan) -> int:
    """Bytes of a scratch chunk of a plan that reuses resources."""
    alignment = plan.buffer_alignment
    half = 2 if plan.use_double_scratch_buffer else 1
    chunk = -(-(SCRATCH_BYTES // half) // max(1, plan.gpus[0].scratch_chunks))
    return -(-chunk // alignment) * alignment


def _packets(plan: Plan, used: list[Used], cells: int) -> Iterator[str]:
    """Packets are twice as large as their data, which lie in the same scratch."""
    packets = [area for area in used if area.buffer == PACKETS_BUFFER]
    plain = [area for area in used if area.buffer == "s"]
    if packets and plan.protocol != "LL":
        for area in packets:
            if 2 * (area.first + area.chunks) > plan.gpus[area.owner].scratch_chunks:
                yield "packets, for which scratch has room only with the protocol LL"
                return

    twice = {(area.owner, chunk) for area in packets for chunk in _halves(area)}
    for area in plain:
        if any((area.owner, area.first + n) in twice for n in range(area.chunks)):
            yield f"packets and data share scratch chunks of rank {area.owner}"
            return

    written: set[int] = set()
    for area in packets:
        if area.writes:
            own = range(*_part(area, cells))
            if not written.isdisjoint(own):
                yield f"a packet of rank {area.owner} is written twice in one run"
                return
            written.update(own)


def _halves(area: Used) -> range:
    """The scratch chunks, of plain data, that packets take."""
    return range(2 * area.first, 2 * (area.first + area.chunks))


def _part(area: Used, cells: int) -> tuple[int, int]:
    """The cells of an area that the operation takes, from and up to; in a pipeline: all."""
    size = area.chunks * cells
    part = area.operation.tbg_info
    if part is None:
        return area.start, area.start + size
    low = size * part.tb_id // part.tbg_size
    high = size * (part.tb_id + 1) // part.tbg_size
    return area.start + low, area.start + high


class _Cut(NamedTuple):
    """An area, from and up to which cell, in how many parts."""

    start: int
    end: int
    parts: int
    chunks: int

    @property
    def even(self) -> bool:
        """Whether the parts are whole chunks, so equal whatever size chunks have."""
        return self.chunks % self.parts == 0


def _cuts(used: list[Used], cells: int) -> Iterator[str]:
    """Parts that are not whole chunks end at words that depend on the size of a chunk.

    The first parts get the words that are left over, so one area that is cut into 2 and into 4
    parts need not be cut at the same word in the middle. So what overlaps such an area has to be
    cut the same way, or to have it whole.
    """
    cuts: set[_Cut] = set()
    for area in used:
        part = area.operation.tbg_info
        parts = part.tbg_size if part is not None else 1
        cuts.add(_Cut(area.start, area.start + area.chunks * cells, parts, area.chunks))
    if all(cut.even for cut in cuts):
        return

    in_order = sorted(cuts)
    compared = 0
    for number, one in enumerate(in_order):
        for other in in_order[number + 1 :]:
            compared += 1
            if other.start >= one.end:
                break
            if compared > MOST_PAIRS or not (_fit(one, other) and _fit(other, one)):
                yield "blocks share areas that overlap and are cut differently"
                return


def _fit(one: _Cut, other: _Cut) -> bool:
    """Whether another area is not cut within ``one``, if that is cut at words nobody knows."""
    if one.even:
        return True
    if not other.even or other.start > one.start or other.end < one.end:
        return False
    step = (other.end - other.start) // other.parts
    first = (one.start - other.start) // step
    last = (one.end - 1 - other.start) // step
    return first == last
