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

import numpy as np

from verify.asynchronous.model import ALL_RANKS, Block, Buffer, Demand, Program, Signal, Step
from verify.asynchronous.mscclpp_barriers import Barriers, joins
from verify.asynchronous.mscclpp_doubts import PACKETS_BUFFER, Used
from verify.asynchronous.mscclpp_operations import SHAPES, require_understood
from verify.asynchronous.mscclpp_order import (
    PACKETS,
    PIPELINE_ROUNDS,
    SEVERAL_PLACES,
    Counting,
    Key,
    Operation,
    Use,
    flat,
    name_of,
    synchronized,
)
from verify.asynchronous.mscclpp_plan import Area, Plan, PlanOperation
from verify.core.verdict import PROVED, Counterexample, Result, refuted
from verify.errors import FormatError

PACKET_TARGETS = dict.fromkeys(("ppkt", "rppkt", "cpkt"), 0) | dict.fromkeys(
    ("respkt", "recpkt", "recspkt"), 1
)
PACKET_SOURCES = dict.fromkeys(("rppkt", "upkt"), 0) | dict.fromkeys(
    ("respkt", "repkt", "recpkt", "recspkt"), 1
)
"""From which on sources or targets in scratch are packets."""


MOST_CELLS = 2**21
"""Parts of chunks in all operations together, and in memory: what more is is refused."""


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
        unordered: why the order of some blocks is not in the program; empty where all of it is.

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
        self.refutations = dict[str, Result]()
        self.ranks = len(plan.gpus)
        self.blocks = [flat(gpu, rounds) for gpu in plan.gpus]
        self.cells = self._cells()
        self.counters: dict[object, int] = {}
        self.names: list[str] = []
        self.addresses = 0
        self.buffers: dict[tuple[int, str], Buffer] = {}
        self._lay_out()
        self.counting = Counting(plan, self.blocks)
        self.barriers = [Barriers(rank, blocks) for rank, blocks in enumerate(self.blocks)]
        self.unordered = list(self.counting.unordered.values())

    def _cells(self) -> int:
        """Into how many cells a chunk is cut, so that all parts and rounds are whole cells."""
        operations = [now for of_rank in self.blocks for block in of_rank for now in block]
        parts = {now.operation.tbg_info.tbg_size for now in operations if now.operation.tbg_info}
        loops = any(now.turn is not None for now in operations)
        cells = self.rounds if loops else 1
        for size in sorted(parts):
            cells = lcm(cells, size)
            if cells > MOST_CELLS:
                raise FormatError(self.name, "cuts chunks into too many parts")

        moved = sum(
            area.size
            for now in operations
            for area in (*now.operation.src_buff, *now.operation.dst_buff)
        )
        memory = sum(
            gpu.input_chunks + gpu.output_chunks + 2 * gpu.scratch_chunks for gpu in self.plan.gpus
        )
        if max(moved, memory) * cells > MOST_CELLS:
            raise FormatError(self.name, f"has more than {MOST_CELLS} parts of chunks")
        return cells

    def _lay_out(self) -> None:
        """Give every buffer its addresses; in place, input lies in the output."""
        for rank, gpu in enumerate(self.plan.gpus):
            inplace = self.plan.inplace
            whole = max(gpu.input_chunks, gpu.output_chunks) if inplace else gpu.output_chunks
            self._buffer(rank, "o", whole)
            if inplace:
                share = gpu.input_chunks * rank if self.plan.collective == "allgather" else 0
                start = self.buffers[rank, "o"].start + share * self.cells
                self.buffers[rank, "i"] = Buffer(rank, "i", start, gpu.input_chunks * self.cells)
            else:
                self._buffer(rank, "i", gpu.input_chunks)
            self._buffer(rank, "s", gpu.scratch_chunks)
            self._buffer(rank, PACKETS_BUFFER, gpu.scratch_chunks)

    def _buffer(self, rank: int, name: str, chunks: int) -> None:
        self.buffers[rank, name] = Buffer(rank, name, self.addresses, chunks * self.cells)
        self.addresses += chunks * self.cells

    def program(self) -> Program:
        """The program, and what is wrong already in ``refutations``."""
        blocks = []
        if self.counting.wrong is not PROVED:
            self.refutations["connections_match"] = self.counting.wrong
        for rank, of_rank in enumerate(self.blocks):
            for block, operations in enumerate(of_rank):
                name = f"tb {self.plan.gpus[rank].threadblocks[block].id}"
                if self.apart:
                    blocks += self._threads(rank, block, name, operations)
                else:
                    blocks.append(Block(rank, name, tuple(self._steps(rank, block, operations))))
                touched = lambda op, turn, r=rank, b=block: self._touched(r, b, op, turn)  # noqa: E731
                missing = synchronized(rank, name, operations, touched)
                smeared = (self._smeared(rank, block, now) for now in operations)
                missing = missing or next((wrong for wrong in smeared if wrong), None)
                if missing is not None:
                    self.refutations.setdefault("synchronized", missing)
        input_rank = np.full(self.addresses, -1)
        input_chunk = np.full(self.addresses, -1)
        for rank in range(self.ranks):
            own = self.buffers[rank, "i"]
            input_rank[own.start : own.start + own.chunks] = rank
            input_chunk[own.start : own.start + own.chunks] = np.arange(own.chunks)
        return Program(
            kind=self.plan.collective,
            placement="in place" if self.plan.inplace else "out of place",
            ranks=self.ranks,
            blocks=tuple(blocks),
            slots=None,
            fifos=(),
            counters=tuple(self.names),
            buffers=tuple(self.buffers.values()),
            addresses=self.addresses,
            input_rank=input_rank,
            input_chunk=input_chunk,
            demands=(self._demand(),),
        )

    def _demand(self) -> Demand:
        shares = [self.buffers[rank, "i"].chunks for rank in range(self.ranks)]
        if self.plan.collective == "allreduce":
            rank = np.full(shares[0], ALL_RANKS)
            chunk = np.arange(shares[0])
        else:
            rank = np.repeat(np.arange(self.ranks), shares)
            chunk = np.concatenate([np.arange(share) for share in shares])
        places = [self.buffers[r, "o"].start + np.arange(len(rank)) for r in range(self.ranks)]
        return Demand(
            "", np.concatenate(places), np.tile(rank, self.ranks), np.tile(chunk, self.ranks)
        )

    def _steps(self, rank: int, block: int, operations: list[Operation]) -> Iterator[Step]:
        for position, now in enumerate(operations):
            yield from self._steps_at(rank, block, operations, position)
            for sources, targets, size in self._lanes(rank, block, now.operation):
                yield from self._data(now.operation, now.place, now.turn, sources, targets, size)

    def _steps_at(
        self, rank: int, block: int, operations: list[Operation], position: int
    ) -> Iterator[Step]:
        """The steps of an operation that moves no data: who waits, who lets others go on."""
        now = operations[position]
        op = now.operation
        place = now.place
        if joins(now) and self.barriers[rank].understood(op.barrier):
            before = operations[:position]
            use = sum(joins(other) and other.operation.barrier == op.barrier for other in before)
            mine = self._counter((rank, "barrier", op.barrier, block, use))
            yield Step("barrier: come", place, 0, signals=(Signal(mine, 1),))
            members = self.barriers[rank].members[op.barrier]
            absent = [-1] if self.barriers[rank].never_full(op.barrier) else []
            came = [
                self._counter((rank, "barrier", op.barrier, member, use))
                for member in (*members, *absent)
            ]
            yield Step("barrier: go", place, 0, waits=tuple(Signal(c, 1) for c in came))
        for key in self.counting.awaited(rank, block, op):
            numbers = self._awaited(key, rank, block, position)
            waits = tuple(Signal(self._counter((*key, number)), 1) for number in numbers)
            yield Step(f"{op.name} {name_of(key)}", place, 0, waits=waits)
        for key in self.counting.signalled(rank, block, op):
            if key in self.counting.unordered:
                continue
            number = self._number(self.counting.signals[key], rank, block, position)
            signals = (Signal(self._counter((*key, number)), 1),)
            yield Step(f"{op.name} {name_of(key)}", place, 0, signals=signals)

    def _threads(
        self, rank: int, block: int, name: str, operations: list[Operation]
    ) -> list[Block]:
        """A block, and beside it its threads between two ``nop`` with packets among the data.

        The cells at one place of the areas of packet operations are the same threads'; other data
        operations share words otherwise. All begin when the block does, which waits for them.
        """
        steps: list[Step] = []
        blocks: list[Block] = []
        threads: dict[object, list[Step]] = {}

        def join() -> None:
            if not threads:
                return
            ends = []
            for lane in threads.values():
                begin = self._counter((rank, "begin", block, len(blocks)))
                end = self._counter((rank, "end", block, len(blocks)))
                steps.append(Step("begin", lane[0].position, 0, signals=(Signal(begin, 1),)))
                first = Step("begin", lane[0].position, 0, waits=(Signal(begin, 1),))
                last = Step("end", lane[-1].position, 0, signals=(Signal(end, 1),))
                blocks.append(Block(rank, name, (first, *lane, last)))
                ends.append(Signal(end, 1))
            steps.append(Step("end", steps[-1].position, 0, waits=tuple(ends)))
            threads.clear()

        for position, now in enumerate(operations):
            op = now.operation
            if op.name in {"nop", "barrier"}:
                join()
            steps += self._steps_at(rank, block, operations, position)
            for sources, targets, size in self._lanes(rank, block, op):
                whole = self._data(op, now.place, now.turn, sources, targets, size)
                if op.name not in PACKETS | {"rppkt"}:
                    threads.setdefault(position, []).extend(whole)
                    continue
                for step in whole:
                    for place in range(step.count):
                        threads.setdefault(("place", place), []).append(self._one(step, place))
        join()
        return [Block(rank, name, tuple(steps)), *blocks]

    @staticmethod
    def _one(step: Step, place: int) -> Step:
        """One cell of a step with packets; its waits and signals are cell by cell, too."""
        waits = step.waits[place :: step.count]
        signals = step.signals[place :: step.count]
        return Step(
            step.text,
            step.position,
            1,
            tuple(start + place for start in step.sources),
            tuple(start + place for start in step.targets),
            waits=waits,
            signals=signals,
        )

    def _awaited(self, key: Key, rank: int, block: int, position: int) -> list[int]:
        """The numbers of the signals that a wait needs."""
        counting = self.counting
        if key in counting.unordered:
            return []
        if key in counting.joined:
            return list(range(len(counting.signals[key])))
        number = self._number(counting.waits[key], rank, block, position) - self._initial(key)
        if number < 0:
            return []
        there = number < len(counting.signals.get(key, ()))
        if there and not self.relaxed and not counting.orders_data(key, number):
            return []
        return [number]

    def _initial(self, key: Key) -> int:
        """Waits that need no signal; with one piece for all, credits for as many are for one."""
        initial = self.counting.initial(key)
        if self.pieces is None:
            return initial
        in_a_round = len(self.counting.waits[key]) // self.rounds
        return min(initial, in_a_round) if initial <= in_a_round * self.pieces else initial

    @staticmethod
    def _number(uses: list[tuple[int, Use]], rank: int, block: int, at: int) -> int:
        return uses.index((rank, Use(block, at)))

    def _counter(self, key: object) -> int:
        known = self.counters.get(key)
        if known is None:
            known = self.counters[key] = len(self.names)
            parts = key if isinstance(key, tuple) else (key,)
            self.names.append(" ".join(map(str, parts)))
        return known

    def _data(
        self,
        op: PlanOperation,
        place: int,
        turn: int | None,
        sources: list[int],
        targets: list[int],
        size: int,
    ) -> Iterator[Step]:
        """The steps of one lane: areas that begin at these addresses."""
        for low, length in self._runs(op, turn, size):
            froms = tuple(start + low - self._moved_back(start, turn) for start in sources)
            tos = tuple(start + low - self._moved_back(start, turn) for start in targets)
            waits = [a + n for a in froms if self._is_packet(a) for n in range(length)]
            signals = [a + n for a in tos if self._is_packet(a) for n in range(length)]
            yield Step(
                op.name,
                place,
                length,
                froms,
                tos,
                waits=tuple(Signal(self._counter(("packet", a)), 1) for a in waits),
                signals=tuple(Signal(self._counter(("packet", a)), 1) for a in signals),
            )

    def _moved_back(self, start: int, turn: int | None) -> int:
        """How many cells before its own a round finds its piece of an area in scratch."""
        if self.pieces is None or not turn:
            return 0
        in_scratch = any(
            buffer.name == "s" and buffer.start <= start < buffer.start + buffer.chunks
            for buffer in self.buffers.values()
        )
        return turn * (self.cells // self.rounds) if in_scratch else 0

    def _runs(self, op: PlanOperation, turn: int | None, chunks: int) -> Iterator[tuple[int, int]]:
        """The cells of an area of so many chunks that are taken, as (from, how many)."""
        size = chunks * self.cells
        cells = range(size)
        if op.tbg_info:
            part = op.tbg_info.tb_id
            parts = op.tbg_info.tbg_size
            cells = range(size * part // parts, size * (part + 1) // parts)
        per_turn = self.cells // self.rounds
        taken = [c for c in cells if turn is None or c % self.cells // per_turn == turn]
        for _, run in groupby(enumerate(taken), lambda pair: pair[1] - pair[0]):
            members = [cell for _, cell in run]
            yield members[0], len(members)

    def _is_packet(self, address: int) -> bool:
        return any(
            b.name == PACKETS_BUFFER and b.start <= address < b.start + b.chunks
            for b in self.buffers.values()
        )

    def _lanes(
        self, rank: int, block: int, op: PlanOperation
    ) -> Iterator[tuple[list[int], list[int], int]]:
        """Where the sources and targets of an operation begin, for each sum or copy that it is.

        The third is how many chunks each of them has.
        """
        if not op.dst_buff or not op.src_buff:
            return
        reads = [
            self._starts(rank, block, op, area, packets)
            for area, packets in self._areas(op.src_buff, PACKET_SOURCES.get(op.name))
        ]
        writes = [
            self._starts(rank, block, op, area, packets)
            for area, packets in self._areas(op.dst_buff, PACKET_TARGETS.get(op.name))
        ]
        if not all(reads) or not all(writes):
            return  # outside of its buffer: found already
        if not SHAPES[op.name].pairs:
            sources = [address for area in reads for address in area]
            targets = [address for area in writes for address in area]
            yield sources, targets, op.dst_buff[0].size
            return
        for read, write, area in zip(reads, writes, op.dst_buff, strict=True):
            yield read, write, area.size

    @staticmethod
    def _areas(areas: tuple[Area, ...], packets_from: int | None) -> list[tuple[Area, bool]]:
        """Areas, with whether what lies there in scratch is packets."""
        first = len(areas) if packets_from is None else packets_from
        return [(area, number >= first) for number, area in enumerate(areas)]

    def _where(self, rank: int, block: int, area: Area, packets: bool) -> list[tuple[int, str]]:
        """Whose buffers an area is in: of several ranks behind a switch."""
        gpu = self.plan.gpus[rank]
        own = gpu.threadblocks[block]
        if area.switch_channel_id is not None:
            named, ranks = gpu.switches()[own.switch_channels()[area.switch_channel_id]]
            owners = list(ranks)
        elif area.buffer_id is not None:
            remote = gpu.remote_buffers[own.remote_buffers()[area.buffer_id]]
            named = remote.type
            owners = [remote.rank]
        else:
            assert area.type is not None
            named = area.type
            owners = [rank]
        buffer = PACKETS_BUFFER if packets and named == "s" else named
        return [(owner, buffer) for owner in owners]

    def _starts(
        self, rank: int, block: int, op: PlanOperation, area: Area, packets: bool
    ) -> list[int]:
        """The addresses at which an area begins (several behind a switch); none: not there."""
        starts = []
        for owner, name in self._where(rank, block, area, packets):
            buffer = self.buffers.get((owner, name))
            end = (area.index + area.size) * self.cells
            if buffer is None or area.index < 0 or end > buffer.chunks:
                self._outside(rank, op, owner, area, name)
                return []
            starts.append(buffer.start + area.index * self.cells)
        return starts

    def used(self) -> list[Used]:
        """The areas of all operations, those of a pipeline once; the bounds are kept."""
        found: list[Used] = []
        for rank, of_rank in enumerate(self.blocks):
            for block, operations in enumerate(of_rank):
                for now in operations:
                    if not now.turn:
                        found += self._used_by(rank, block, now)
        return found

    def _used_by(self, rank: int, block: int, now: Operation) -> Iterator[Used]:
        op = now.operation
        sources = self._areas(op.src_buff, PACKET_SOURCES.get(op.name))
        targets = self._areas(op.dst_buff, PACKET_TARGETS.get(op.name))
        for areas, writes in ((sources, False), (targets, True)):
            for area, packets in areas:
                for owner, name in self._where(rank, block, area, packets):
                    start = self.buffers[owner, name].start + area.index * self.cells
                    yield Used(
                        rank=rank,
                        operation=op,
                        turn=now.turn,
                        owns=area.type is not None,
                        owner=owner,
                        buffer=name,
                        first=area.index,
                        chunks=area.size,
                        start=start,
                        writes=writes,
                    )

    def _outside(self, rank: int, op: PlanOperation, owner: int, area: Area, name: str) -> None:
        self.refutations.setdefault(
            "bounds",
            refuted(
                Counterexample(
                    property="bounds",
                    rank=rank,
                    action=op.name,
                    expected=f"chunks {area.index} to {area.index + area.size - 1} of rank "
                    f"{owner}'s {name} to exist",
                    found="they do not",
                )
            ),
        )

    def _touched(
        self, rank: int, block: int, op: PlanOperation, turn: int | None
    ) -> tuple[dict[int, int], dict[int, int]]:
        reads: dict[int, int] = {}
        writes: dict[int, int] = {}
        for sources, targets, size in self._lanes(rank, block, op):
            for low, length in self._runs(op, turn, size):
                for starts, cells in ((sources, reads), (targets, writes)):
                    for start in starts:
                        if self._is_packet(start):
                            continue
                        for place in range(length):
                            cell = start + low + place
                            before = cells.setdefault(cell, place)
                            cells[cell] = place if before == place else SEVERAL_PLACES
        return reads, writes

    def _smeared(self, rank: int, block: int, now: Operation) -> Result | None:
        """Whether an operation writes, at another place of an area, what it reads or writes.

        Its threads share each area alike, and nothing keeps them in step.
        """
        areas: list[tuple[int, int, bool]] = []
        for sources, targets, size in self._lanes(rank, block, now.operation):
            for low, length in self._runs(now.operation, now.turn, size):
                areas += [(start + low, length, False) for start in sources]
                areas += [(start + low, length, True) for start in targets]
        if not _overlap(areas):
            return None
        name = self.plan.gpus[rank].threadblocks[block].id
        return refuted(
            Counterexample(
                property="synchronized",
                rank=rank,
                position=now.place,
                action=f"tb {name}: {now.operation.name}",
                expected="areas that are the same or have nothing in common",
                found="one is written that overlaps another, some threads before others",
            )
        )


def _overlap(areas: list[tuple[int, int, bool]]) -> bool:
    """Whether of two areas (start, length, written) that overlap elsewhere one is written."""
    end = -1
    end_of_written = -1
    for start, group in groupby(sorted(areas), lambda area: area[0]):
        here = list(group)
        writes = any(written for _, _, written in here)
        if start < end_of_written or (writes and start < end):
            return True
        end = max([end, *(start + length for _, length, _ in here)])
        end_of_written = max(
            [end_of_written, *(start + length for _, length, written in here if written)]
        )
    return False
