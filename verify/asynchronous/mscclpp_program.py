"""The program that MSCCL++'s executor makes of an execution plan.

Followed: ``execution_plan.cc`` and ``execution_kernel.hpp`` of microsoft/mscclpp. All is one-sided:
a put is a store into another rank's memory, ``signal`` and ``wait`` are counters, a packet is data
with a flag that whoever reads it waits for, a switch channel is the memory of all its ranks. Chunks
are cut finer where blocks share an operation, or where a pipeline takes them piece by piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from math import lcm
from typing import NamedTuple

import numpy as np

from latecomer.verify.asynchronous.model import (
    ALL_RANKS,
    Block,
    BlockProgram,
    Buffer,
    Demand,
    Signal,
    Step,
)
from latecomer.verify.asynchronous.mscclpp_barriers import Barriers, joins_blocks
from latecomer.verify.asynchronous.mscclpp_doubts import PACKETS_BUFFER, UsedArea
from latecomer.verify.asynchronous.mscclpp_operations import SHAPES, require_understood
from latecomer.verify.asynchronous.mscclpp_order import (
    PACKETS,
    PIPELINE_ROUNDS,
    SEVERAL_OFFSETS,
    Counting,
    Key,
    Operation,
    Touched,
    Use,
    name_of,
    synchronized,
    unrolled,
)
from latecomer.verify.asynchronous.mscclpp_plan import Area, Plan, PlanOperation
from latecomer.verify.core.verdict import PROVED, Counterexample, Result, refuted
from latecomer.verify.errors import FormatError

PACKET_TARGETS = dict.fromkeys(("ppkt", "rppkt", "cpkt"), 0) | dict.fromkeys(
    ("respkt", "recpkt", "recspkt"), 1
)
PACKET_SOURCES = dict.fromkeys(("rppkt", "upkt"), 0) | dict.fromkeys(
    ("respkt", "repkt", "recpkt", "recspkt"), 1
)
"""From which on sources or targets in scratch are packets."""

MOST_CELLS = 2**21
"""Parts of chunks in all operations together, and in memory: what more is is refused."""

NOBODY = -1
"""As a block: one that never comes to a barrier."""


class _Lane(NamedTuple):
    """A sum or a copy that an operation consists of.

    Attributes:
        sources, targets: addresses at which its areas begin.
        chunks: of each of them.
    """

    sources: list[int]
    targets: list[int]
    chunks: int


class PlanLowering:
    """A plan as a program of the model.

    Args:
        plan: what is lowered.
        name: of its file, for errors.
        rounds: of every pipeline.
        relaxed: whether relaxed signals and waits order anything.
        apart: whether threads of a block are apart between two ``nop``: packets then order only
            what the same thread has.
        pieces: of rounds, for which a scratch chunk has room; then the next take their places. One
            piece stands for all. None: every round has its own.

    Attributes:
        refutations: properties that are refuted before anything runs.
        blocks: per rank, the operations of its blocks.
        cells: parts into which a chunk is cut, so that everything that moves is whole cells.
        buffers: by rank and name, in cells.
        counting: which signal ends which wait; ``barriers``: per rank, who waits for whom.

    Raises:
        FormatError: the executor would not read it as it is written, or it is too large.
    """

    def __init__(
        self,
        plan: Plan,
        name: str,
        rounds: int = PIPELINE_ROUNDS,
        relaxed: bool = True,
        apart: bool = False,
        pieces: int | None = None,
    ) -> None:
        if plan.collective not in {"allreduce", "allgather"}:
            raise FormatError(name, f"the collective {plan.collective!r} is not known here")
        require_understood(plan, name)
        self.plan = plan
        self.name = name
        self.rounds = rounds
        self.relaxed = relaxed
        self.apart = apart
        self.pieces = pieces
        self.refutations: dict[str, Result] = {}

        self.ranks = len(plan.gpus)
        self.blocks = [unrolled(gpu, rounds) for gpu in plan.gpus]
        self.cells = self._cells()
        self.addresses = 0
        self.buffers: dict[tuple[int, str], Buffer] = {}
        self._lay_out()

        self._counters: dict[tuple[object, ...], int] = {}
        self._counter_names: list[str] = []
        self.counting = Counting(plan, self.blocks)
        self.barriers = [Barriers(rank, blocks) for rank, blocks in enumerate(self.blocks)]

    def _cells(self) -> int:
        """Into how many cells a chunk is cut, so that all parts and rounds are whole cells."""
        operations = [o for blocks in self.blocks for block in blocks for o in block]
        parts = {o.operation.tbg_info.tbg_size for o in operations if o.operation.tbg_info}
        has_rounds = any(o.round is not None for o in operations)
        cells = self.rounds if has_rounds else 1
        for number in sorted(parts):
            cells = lcm(cells, number)
            if cells > MOST_CELLS:
                raise FormatError(self.name, "cuts chunks into too many parts")

        moved_chunks = 0
        for unrolled_operation in operations:
            operation = unrolled_operation.operation
            moved_chunks += sum(area.size for area in (*operation.src_buff, *operation.dst_buff))
        memory_chunks = 0
        for gpu in self.plan.gpus:
            memory_chunks += gpu.input_chunks + gpu.output_chunks + 2 * gpu.scratch_chunks
        if max(moved_chunks, memory_chunks) * cells > MOST_CELLS:
            raise FormatError(self.name, f"has more than {MOST_CELLS} parts of chunks")
        return cells

    def _lay_out(self) -> None:
        """Give every buffer its addresses; in place, input lies in the output."""
        for rank, gpu in enumerate(self.plan.gpus):
            if self.plan.inplace:
                self._allocate(rank, "o", max(gpu.input_chunks, gpu.output_chunks))
                first_chunk = 0
                if self.plan.collective == "allgather":
                    first_chunk = gpu.input_chunks * rank
                start = self.buffers[rank, "o"].start + first_chunk * self.cells
                self.buffers[rank, "i"] = Buffer(rank, "i", start, gpu.input_chunks * self.cells)
            else:
                self._allocate(rank, "o", gpu.output_chunks)
                self._allocate(rank, "i", gpu.input_chunks)
            self._allocate(rank, "s", gpu.scratch_chunks)
            # Packets have addresses of their own. Where the executor would have them lie on data,
            # the plan is doubted (mscclpp_doubts).
            self._allocate(rank, PACKETS_BUFFER, gpu.scratch_chunks)

    def _allocate(self, rank: int, name: str, chunks: int) -> None:
        self.buffers[rank, name] = Buffer(rank, name, self.addresses, chunks * self.cells)
        self.addresses += chunks * self.cells

    def program(self) -> BlockProgram:
        """The program, and what is wrong already in ``refutations``."""
        if self.counting.wrong is not PROVED:
            self.refutations["connections_match"] = self.counting.wrong
        blocks = []
        for rank, blocks_of_rank in enumerate(self.blocks):
            for block, operations in enumerate(blocks_of_rank):
                name = f"tb {self.plan.gpus[rank].threadblocks[block].id}"
                if self.apart:
                    blocks += self._blocks_of_threads(rank, block, name, operations)
                else:
                    steps = self._steps(rank, block, operations)
                    blocks.append(Block(rank, name, tuple(steps)))
                self._require_synchronized(rank, block, name, operations)

        input_rank = np.full(self.addresses, -1)
        input_chunk = np.full(self.addresses, -1)
        for rank in range(self.ranks):
            buffer = self.buffers[rank, "i"]
            end = buffer.start + buffer.chunks
            input_rank[buffer.start : end] = rank
            input_chunk[buffer.start : end] = np.arange(buffer.chunks)
        return BlockProgram(
            kind=self.plan.collective,
            placement="in place" if self.plan.inplace else "out of place",
            ranks=self.ranks,
            blocks=tuple(blocks),
            slots=None,
            fifos=(),
            counters=tuple(self._counter_names),
            buffers=tuple(self.buffers.values()),
            addresses=self.addresses,
            input_rank=input_rank,
            input_chunk=input_chunk,
            demands=(self._demand(),),
        )

    def _demand(self) -> Demand:
        input_cells = [self.buffers[rank, "i"].chunks for rank in range(self.ranks)]
        if self.plan.collective == "allreduce":
            of_rank = np.full(input_cells[0], ALL_RANKS)
            cell = np.arange(input_cells[0])
        else:
            of_rank = np.repeat(np.arange(self.ranks), input_cells)
            cell = np.concatenate([np.arange(number) for number in input_cells])

        addresses = []
        for rank in range(self.ranks):
            addresses.append(self.buffers[rank, "o"].start + np.arange(len(cell)))
        return Demand(
            "",
            address=np.concatenate(addresses),
            rank=np.tile(of_rank, self.ranks),
            chunk=np.tile(cell, self.ranks),
        )

    def _steps(self, rank: int, block: int, operations: list[Operation]) -> Iterator[Step]:
        """The steps of a block whose threads are together."""
        for index, operation in enumerate(operations):
            yield from self._signals_and_waits(rank, block, operations, index)
            for lane in self._lanes(rank, block, operation.operation):
                yield from self._moves(operation, lane)

    def _signals_and_waits(
        self, rank: int, block: int, operations: list[Operation], index: int
    ) -> Iterator[Step]:
        """The steps of an operation that move no data: who waits, who lets others go on."""
        current = operations[index]
        operation = current.operation
        position = current.position
        if joins_blocks(current) and self.barriers[rank].understood(operation.barrier):
            yield from self._barrier(rank, block, operations, index)

        for key in self.counting.awaited(rank, block, operation):
            numbers = self._awaited_signals(key, rank, Use(block, index))
            waits = [Signal(self._counter(*key, number), 1) for number in numbers]
            yield Step(f"{operation.name} {name_of(key)}", position, 0, waits=tuple(waits))

        for key in self.counting.signalled(rank, block, operation):
            if key in self.counting.unordered:
                continue
            number = self.counting.signals[key].index((rank, Use(block, index)))
            signal = Signal(self._counter(*key, number), 1)
            yield Step(f"{operation.name} {name_of(key)}", position, 0, signals=(signal,))

    def _barrier(
        self, rank: int, block: int, operations: list[Operation], index: int
    ) -> Iterator[Step]:
        """A barrier as two steps: the block says that it has come, and waits for all others."""
        current = operations[index]
        identity = current.operation.barrier
        use = 0  # how often the block has come to it before
        for earlier in operations[:index]:
            if joins_blocks(earlier) and earlier.operation.barrier == identity:
                use += 1

        signal = Signal(self._counter(rank, "barrier", identity, block, use), 1)
        yield Step("barrier: come", current.position, 0, signals=(signal,))

        members = list(self.barriers[rank].members[identity])
        if self.barriers[rank].never_full(identity):
            members.append(NOBODY)
        waits = []
        for member in members:
            waits.append(Signal(self._counter(rank, "barrier", identity, member, use), 1))
        yield Step("barrier: go", current.position, 0, waits=tuple(waits))

    def _blocks_of_threads(
        self, rank: int, block: int, name: str, operations: list[Operation]
    ) -> list[Block]:
        """A block, and beside it its threads between two ``nop`` with packets among the data.

        The cells at one offset of the areas of packet operations are the same threads'; other data
        operations share words otherwise. All begin when the block does, which waits for them.
        """
        steps: list[Step] = []
        threads: list[Block] = []
        # By what a thread is told apart: an offset, or the index of a data operation.
        steps_of_thread: dict[tuple[str, int], list[Step]] = {}

        def join() -> None:
            if not steps_of_thread:
                return
            ends = []
            for own_steps in steps_of_thread.values():
                begin = Signal(self._counter(rank, "begin", block, len(threads)), 1)
                end = Signal(self._counter(rank, "end", block, len(threads)), 1)
                first_position = own_steps[0].position
                last_position = own_steps[-1].position
                steps.append(Step("begin", first_position, 0, signals=(begin,)))
                first = Step("begin", first_position, 0, waits=(begin,))
                last = Step("end", last_position, 0, signals=(end,))
                threads.append(Block(rank, name, (first, *own_steps, last)))
                ends.append(end)
            steps.append(Step("end", steps[-1].position, 0, waits=tuple(ends)))
            steps_of_thread.clear()

        for index, current in enumerate(operations):
            operation = current.operation
            if operation.name in {"nop", "barrier"}:
                join()
            steps += self._signals_and_waits(rank, block, operations, index)
            for lane in self._lanes(rank, block, operation):
                for step in self._moves(current, lane):
                    if operation.name not in PACKETS | {"rppkt"}:
                        steps_of_thread.setdefault(("operation", index), []).append(step)
                        continue
                    for offset in range(step.count):
                        thread = steps_of_thread.setdefault(("offset", offset), [])
                        thread.append(_one_cell(step, offset))
        join()
        return [Block(rank, name, tuple(steps)), *threads]

    def _awaited_signals(self, key: Key, rank: int, use: Use) -> list[int]:
        """The numbers of the signals that a wait needs."""
        counting = self.counting
        if key in counting.unordered:
            return []
        if key in counting.joined:
            return list(range(len(counting.signals[key])))
        number = counting.waits[key].index((rank, use)) - self._initial(key)
        if number < 0:
            return []
        is_given = number < len(counting.signals.get(key, ()))
        if is_given and not self.relaxed and not counting.orders_data(key, number):
            return []
        return [number]

    def _initial(self, key: Key) -> int:
        """Waits that need no signal; with one piece for all, credits for as many are for one."""
        initial = self.counting.initial(key)
        if self.pieces is None:
            return initial
        waits_of_round = len(self.counting.waits[key]) // self.rounds
        if initial > waits_of_round * self.pieces:
            return initial
        return min(initial, waits_of_round)

    def _counter(self, *key: object) -> int:
        """The counter of a key, made when it is first asked for."""
        counter = self._counters.get(key)
        if counter is None:
            counter = len(self._counter_names)
            self._counters[key] = counter
            self._counter_names.append(" ".join(map(str, key)))
        return counter

    def _moves(self, current: Operation, lane: _Lane) -> Iterator[Step]:
        """The steps of one lane of an operation."""
        for low, length in self._runs(current, lane.chunks):
            sources = [start + low - self._moved_back(start, current) for start in lane.sources]
            targets = [start + low - self._moved_back(start, current) for start in lane.targets]
            yield Step(
                current.operation.name,
                current.position,
                length,
                tuple(sources),
                tuple(targets),
                waits=self._packet_flags(sources, length),
                signals=self._packet_flags(targets, length),
            )

    def _packet_flags(self, starts: list[int], length: int) -> tuple[Signal, ...]:
        """The flags of all cells of the areas that are packets."""
        flags = []
        for start in starts:
            if self._is_packet(start):
                for address in range(start, start + length):
                    flags.append(Signal(self._counter("packet", address), 1))
        return tuple(flags)

    def _moved_back(self, start: int, current: Operation) -> int:
        """How many cells before its own a round finds its piece of an area in scratch."""
        if self.pieces is None or not current.round:
            return 0
        if self._name_of_buffer(start) != "s":
            return 0
        return current.round * (self.cells // self.rounds)

    def _is_packet(self, address: int) -> bool:
        return self._name_of_buffer(address) == PACKETS_BUFFER

    def _name_of_buffer(self, address: int) -> str:
        """The buffer that an address is in; in place ``o``, also of the input."""
        for (_, name), buffer in self.buffers.items():
            if buffer.start <= address < buffer.start + buffer.chunks:
                return name
        return ""

    def _runs(self, current: Operation, chunks: int) -> Iterator[tuple[int, int]]:
        """The cells of an area of so many chunks that are taken, as (from, how many)."""
        area_cells = chunks * self.cells
        cells = range(area_cells)
        part = current.operation.tbg_info
        if part is not None:
            first = area_cells * part.tb_id // part.tbg_size
            end = area_cells * (part.tb_id + 1) // part.tbg_size
            cells = range(first, end)

        taken = list(cells)
        if current.round is not None:
            cells_of_round = self.cells // self.rounds
            taken = [c for c in cells if c % self.cells // cells_of_round == current.round]
        # Of cells in a row, each is as far from its index.
        for _, group in groupby(enumerate(taken), lambda indexed: indexed[1] - indexed[0]):
            run = [cell for _, cell in group]
            yield run[0], len(run)

    def _lanes(self, rank: int, block: int, operation: PlanOperation) -> Iterator[_Lane]:
        """The sums or copies that an operation consists of; none if an area is not there."""
        if not operation.dst_buff or not operation.src_buff:
            return
        sources = []
        for area, packets in _sources(operation):
            sources.append(self._starts(rank, block, operation, area, packets))
        targets = []
        for area, packets in _targets(operation):
            targets.append(self._starts(rank, block, operation, area, packets))
        if not all(sources) or not all(targets):
            return  # outside of its buffer: refuted already

        if SHAPES[operation.name].pairs:
            for source, target, area in zip(sources, targets, operation.dst_buff, strict=True):
                yield _Lane(source, target, area.size)
        else:
            all_sources = [start for starts in sources for start in starts]
            all_targets = [start for starts in targets for start in starts]
            yield _Lane(all_sources, all_targets, operation.dst_buff[0].size)

    def _buffers_of(
        self, rank: int, block: int, area: Area, packets: bool
    ) -> list[tuple[int, str]]:
        """The buffers that an area is in, by rank and name: of several ranks behind a switch."""
        gpu = self.plan.gpus[rank]
        plan_block = gpu.threadblocks[block]
        if area.switch_channel_id is not None:
            switch = plan_block.switch_channels()[area.switch_channel_id]
            name, owners = gpu.switches()[switch]
        elif area.buffer_id is not None:
            remote = gpu.remote_buffers[plan_block.remote_buffers()[area.buffer_id]]
            name = remote.type
            owners = (remote.rank,)
        else:
            assert area.type is not None
            name = area.type
            owners = (rank,)
        buffer = PACKETS_BUFFER if packets and name == "s" else name
        return [(owner, buffer) for owner in owners]

    def _starts(
        self, rank: int, block: int, operation: PlanOperation, area: Area, packets: bool
    ) -> list[int]:
        """The addresses at which an area begins (several behind a switch); none: not there."""
        starts = []
        for owner, name in self._buffers_of(rank, block, area, packets):
            buffer = self.buffers.get((owner, name))
            end = (area.index + area.size) * self.cells
            if buffer is None or area.index < 0 or end > buffer.chunks:
                self._refute_bounds(rank, operation, owner, area, name)
                return []
            starts.append(buffer.start + area.index * self.cells)
        return starts

    def _refute_bounds(
        self, rank: int, operation: PlanOperation, owner: int, area: Area, name: str
    ) -> None:
        if "bounds" in self.refutations:
            return
        last = area.index + area.size - 1
        self.refutations["bounds"] = refuted(
            Counterexample(
                property="bounds",
                rank=rank,
                action=operation.name,
                expected=f"chunks {area.index} to {last} of rank {owner}'s {name} to exist",
                found="they do not",
            )
        )

    def used_areas(self) -> list[UsedArea]:
        """The areas of all operations, those of a pipeline once; the bounds are kept."""
        areas: list[UsedArea] = []
        for rank, blocks in enumerate(self.blocks):
            for block, operations in enumerate(blocks):
                for operation in operations:
                    if not operation.round:  # outside of pipelines, or in the first round
                        areas += self._areas_of(rank, block, operation)
        return areas

    def _areas_of(self, rank: int, block: int, current: Operation) -> Iterator[UsedArea]:
        sides = ((_sources(current.operation), False), (_targets(current.operation), True))
        for areas, writes in sides:
            for area, packets in areas:
                for owner, name in self._buffers_of(rank, block, area, packets):
                    yield UsedArea(
                        rank=rank,
                        operation=current.operation,
                        round=current.round,
                        is_own=area.type is not None,
                        owner=owner,
                        buffer=name,
                        first=area.index,
                        chunks=area.size,
                        start=self.buffers[owner, name].start + area.index * self.cells,
                        writes=writes,
                    )

    def _require_synchronized(
        self, rank: int, block: int, name: str, operations: list[Operation]
    ) -> None:
        """Refute a block whose threads do something before others have done what it needs."""

        def touched(operation: Operation) -> Touched:
            return self._touched(rank, block, operation)

        wrong = synchronized(rank, name, operations, touched)
        if wrong is None:
            smeared = (self._smeared(rank, block, operation) for operation in operations)
            wrong = next((result for result in smeared if result is not None), None)
        if wrong is not None:
            self.refutations.setdefault("synchronized", wrong)

    def _touched(self, rank: int, block: int, current: Operation) -> Touched:
        """The cells that an operation reads and writes, packets left out."""
        reads: dict[int, int] = {}
        writes: dict[int, int] = {}
        for lane in self._lanes(rank, block, current.operation):
            for low, length in self._runs(current, lane.chunks):
                for start in lane.sources:
                    self._note_offsets(start, low, length, reads)
                for start in lane.targets:
                    self._note_offsets(start, low, length, writes)
        return Touched(reads, writes)

    def _note_offsets(
        self, start: int, low: int, length: int, offset_of_cell: dict[int, int]
    ) -> None:
        """Add cells of an area, unless they are packets, each with its offset in the run."""
        if self._is_packet(start):
            return
        for offset in range(length):
            cell = start + low + offset
            if offset_of_cell.setdefault(cell, offset) != offset:
                offset_of_cell[cell] = SEVERAL_OFFSETS

    def _smeared(self, rank: int, block: int, current: Operation) -> Result | None:
        """Whether an operation writes, at another place of an area, what it reads or writes.

        Its threads share each area alike, and nothing keeps them in step.
        """
        areas: list[tuple[int, int, bool]] = []
        for lane in self._lanes(rank, block, current.operation):
            for low, length in self._runs(current, lane.chunks):
                areas += [(start + low, length, False) for start in lane.sources]
                areas += [(start + low, length, True) for start in lane.targets]
        if not _overlap(areas):
            return None
        block_id = self.plan.gpus[rank].threadblocks[block].id
        return refuted(
            Counterexample(
                property="synchronized",
                rank=rank,
                position=current.position,
                action=f"tb {block_id}: {current.operation.name}",
                expected="areas that are the same or have nothing in common",
                found="one is written that overlaps another, some threads before others",
            )
        )


def _one_cell(step: Step, offset: int) -> Step:
    """One cell of a step with packets; its waits and signals are cell by cell, too."""
    return Step(
        step.text,
        step.position,
        1,
        tuple(start + offset for start in step.sources),
        tuple(start + offset for start in step.targets),
        waits=step.waits[offset :: step.count],
        signals=step.signals[offset :: step.count],
    )


def _sources(operation: PlanOperation) -> list[tuple[Area, bool]]:
    """The sources of an operation, with whether what lies there in scratch is packets."""
    packets_from = PACKET_SOURCES.get(operation.name, len(operation.src_buff))
    return [(area, number >= packets_from) for number, area in enumerate(operation.src_buff)]


def _targets(operation: PlanOperation) -> list[tuple[Area, bool]]:
    """Likewise its targets."""
    packets_from = PACKET_TARGETS.get(operation.name, len(operation.dst_buff))
    return [(area, number >= packets_from) for number, area in enumerate(operation.dst_buff)]


def _overlap(areas: list[tuple[int, int, bool]]) -> bool:
    """Whether of two areas (start, length, written) that overlap elsewhere one is written."""
    end = -1  # of all areas that begin before
    end_of_written = -1
    for start, group in groupby(sorted(areas), lambda area: area[0]):
        lengths = []
        lengths_written = []
        for _, length, written in group:
            lengths.append(length)
            if written:
                lengths_written.append(length)

        if start < end_of_written or (lengths_written and start < end):
            return True
        end = max(end, start + max(lengths))
        if lengths_written:
            end_of_written = max(end_of_written, start + max(lengths_written))
    return False
