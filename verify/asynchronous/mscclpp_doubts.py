"""Where the executor of MSCCL++ plans may do otherwise than a plan says.

None of this refutes a plan: it depends on the size of the message, on which run it is or on the
version of the executor. But nothing is proved where one of these is so. What is looked at is in
``execution_plan.cc``, ``execution_kernel.hpp`` and ``executor.cc`` of microsoft/mscclpp.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from latecomer.verify.asynchronous.mscclpp_plan import Plan, PlanOperation

SCRATCH_BYTES = 2**26
"""What is shared out among the scratch chunks of plans that reuse resources; the executor has it
fixed."""

MOST_BYTES = 2**32
"""Larger messages are not meant by any verdict: offsets have 32 bits."""

MOST_ROUNDS = 2**16 - 1
"""Of a pipeline; the kernel counts them in 16 bits."""

MOST_PAIRS = 2**20
"""Pairs of areas that are compared; with more, cuts are taken to be unknown."""

PACKETS_BUFFER = "packets "
"""The name of the buffer of packets in a program."""


class UsedArea(NamedTuple):
    """An area that an operation uses: where it lies, in chunks and in cells.

    Attributes:
        rank: whose operation it is; ``operation``: that one.
        round: of a pipeline; None outside of pipelines.
        is_own: whether it is named as an own buffer, not by a channel.
        owner, buffer: whose it is, ``packets `` for packets in scratch.
        first, chunks: the first chunk in its buffer, and how many.
        start: its address, in cells.
        writes: whether it is written.
    """

    rank: int
    operation: PlanOperation
    round: int | None
    is_own: bool
    owner: int
    buffer: str
    first: int
    chunks: int
    start: int
    writes: bool


def doubts(plan: Plan, areas: list[UsedArea], cells: int) -> Iterator[str]:
    """Every reason for which the executor may do otherwise.

    Args:
        plan: what it runs.
        areas: that its operations use.
        cells: of a chunk.
    """
    yield from _switches(plan)
    yield from _rounds(plan)
    yield from _addressing(plan, areas)
    yield from _scratch(plan, areas)
    yield from _packets(plan, areas, cells)
    yield from _cuts(areas, cells)


def _switches(plan: Plan) -> Iterator[str]:
    """A switch channel is of one buffer, and every rank of its group has its end of it."""
    switches_of_rank = [gpu.switches() for gpu in plan.gpus]
    for gpu in plan.gpus:
        for group in {group for _, group in gpu.switches()}:
            all_differ = len(set(group)) == len(group)
            all_exist = all(rank < len(plan.gpus) for rank in group)
            if gpu.id not in group or not all_differ or not all_exist:
                yield f"gpu {gpu.id} has a switch channel of ranks {list(group)}"
                return

            # The k-th channels of a group belong together; each rank binds its own buffer.
            bound = []
            for rank in group:
                switches = switches_of_rank[rank]
                bound.append([buffer for buffer, ranks in switches if ranks == group])
            if any(buffers != bound[0] for buffers in bound):
                yield f"the ranks {list(group)} have switch channels of different buffers"
                return


def _rounds(plan: Plan) -> Iterator[str]:
    """The kernel counts rounds in 16 bits."""
    message_bytes = min(plan.max_message_size, MOST_BYTES)
    first = plan.gpus[0]
    chunks = first.output_chunks if plan.collective == "allgather" else first.input_chunks
    operations = (op for gpu in plan.gpus for block in gpu.threadblocks for op in block.ops)
    for operation in operations:
        context = operation.iter_context
        if context is None:
            continue
        most_bytes = MOST_ROUNDS * context.unit_size * chunks
        if context.num_chunks * message_bytes > most_bytes:
            last_size = most_bytes // max(1, context.num_chunks)
            yield f"a pipeline has over {MOST_ROUNDS} rounds from {last_size + 1} bytes on"
            return


def _addressing(plan: Plan, areas: list[UsedArea]) -> Iterator[str]:
    """Areas that the executor looks for at other addresses than are written."""
    gathers_in_place = plan.inplace and plan.collective == "allgather"
    for area in areas:
        where = f"gpu {area.rank}: {area.operation.name}"
        if area.operation.name == "get":
            pairs = zip(area.operation.src_buff, area.operation.dst_buff, strict=True)
            if any(source.index != target.index for source, target in pairs):
                yield f"{where} takes each index for that of the other buffer"
                return
        if area.is_own:
            continue
        if gathers_in_place and area.buffer == "i":
            yield f"{where} looks for another rank's input where its own lies"
            return
        if plan.use_double_scratch_buffer and area.buffer == "s":
            problem = "every other run, the half of the scratch that is not read"
            yield f"{where} uses, with use_double_scratch_buffer, {problem}"
            return


def _scratch(plan: Plan, areas: list[UsedArea]) -> Iterator[str]:
    """With ``reuse_resources`` scratch chunks have a fixed size; larger chunks run into others."""
    if not plan.reuse_resources:
        return
    if len({gpu.scratch_chunks for gpu in plan.gpus}) > 1:
        yield "reuse_resources, and gpus with different numbers of scratch chunks"
        return

    chunks = plan.gpus[0].input_chunks
    if plan.collective == "allgather":
        chunks *= len(plan.gpus)
    for area in areas:
        if area.buffer not in {"s", PACKETS_BUFFER}:
            continue
        if area.round is None:
            room = scratch_chunk_bytes(plan)
            if plan.max_message_size > chunks * room:
                yield f"reuse_resources: scratch holds chunks of up to {room} bytes"
                return
        # The executor takes the pieces of these operations by the wrong buffer's type.
        elif area.operation.name in {"re", "res", "get"}:
            yield f"reuse_resources: {area.operation.name} of scratch in a pipeline"
            return


def scratch_chunk_bytes(plan: Plan) -> int:
    """Bytes of a scratch chunk of a plan that reuses resources."""
    halves = 2 if plan.use_double_scratch_buffer else 1
    chunks = max(1, plan.gpus[0].scratch_chunks)
    chunk_bytes = -(-(SCRATCH_BYTES // halves) // chunks)  # rounded up, and so is the alignment
    return -(-chunk_bytes // plan.buffer_alignment) * plan.buffer_alignment


def _packets(plan: Plan, areas: list[UsedArea], cells: int) -> Iterator[str]:
    """Packets are twice as large as their data, which lie in the same scratch."""
    packets = [area for area in areas if area.buffer == PACKETS_BUFFER]
    data = [area for area in areas if area.buffer == "s"]
    if packets and plan.protocol != "LL":
        for area in packets:
            if 2 * (area.first + area.chunks) > plan.gpus[area.owner].scratch_chunks:
                yield "packets, for which scratch has room only with the protocol LL"
                return

    # Packets of chunk c lie where the data of chunks 2 c and 2 c + 1 would.
    chunks_under_packets = set()
    for area in packets:
        for chunk in range(2 * area.first, 2 * (area.first + area.chunks)):
            chunks_under_packets.add((area.owner, chunk))
    for area in data:
        for chunk in range(area.first, area.first + area.chunks):
            if (area.owner, chunk) in chunks_under_packets:
                yield f"packets and data share scratch chunks of rank {area.owner}"
                return

    written: set[int] = set()
    for area in packets:
        if area.writes:
            taken_cells = _taken_cells(area, cells)
            if not written.isdisjoint(taken_cells):
                yield f"a packet of rank {area.owner} is written twice in one run"
                return
            written.update(taken_cells)


def _taken_cells(area: UsedArea, cells: int) -> range:
    """The cells of an area that the operation takes; in a pipeline: all."""
    area_cells = area.chunks * cells
    part = area.operation.tbg_info
    if part is None:
        return range(area.start, area.start + area_cells)
    low = area_cells * part.tb_id // part.tbg_size
    high = area_cells * (part.tb_id + 1) // part.tbg_size
    return range(area.start + low, area.start + high)


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


def _cuts(areas: list[UsedArea], cells: int) -> Iterator[str]:
    """Parts that are not whole chunks end at words that depend on the size of a chunk.

    The first parts get the words that are left over, so one area that is cut into 2 and into 4
    parts need not be cut at the same word in the middle. So what overlaps such an area has to be
    cut the same way, or to have it whole.
    """
    cuts: set[_Cut] = set()
    for area in areas:
        part = area.operation.tbg_info
        parts = 1 if part is None else part.tbg_size
        cuts.add(_Cut(area.start, area.start + area.chunks * cells, parts, area.chunks))
    if all(cut.even for cut in cuts):
        return

    in_order = sorted(cuts)
    compared = 0
    for number, cut in enumerate(in_order):
        for next_cut in in_order[number + 1 :]:
            compared += 1
            if next_cut.start >= cut.end:
                break
            fit = _fits(cut, next_cut) and _fits(next_cut, cut)
            if compared > MOST_PAIRS or not fit:
                yield "blocks share areas that overlap and are cut differently"
                return


def _fits(cut: _Cut, other: _Cut) -> bool:
    """Whether another area is not cut within ``cut``, if that is cut at words nobody knows."""
    if cut.even:
        return True
    if not other.even or other.start > cut.start or other.end < cut.end:
        return False
    part_cells = (other.end - other.start) // other.parts
    first_part = (cut.start - other.start) // part_cells
    last_part = (cut.end - 1 - other.start) // part_cells
    return first_part == last_part
