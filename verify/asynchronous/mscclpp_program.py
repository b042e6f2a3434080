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
from verify.asynchronous.mscclpp_order import (
    PIPELINE_ROUNDS,
    Counting,
    Operation,
    Use,
    flat,
    name_of,
    synchronized,
)
from verify.asynchronous.mscclpp_plan import Area, Plan, PlanOperation
from verify.core.verdict import PROVED, Counterexample, Result, refuted
from verify.errors import FormatError

SUMS = frozenset(["re", "res", "rre", "rres", "respkt", "repkt", "recpkt", "recspkt", "glres"])
"""Operations that add up all their sources; of others each target has its own."""
PACKET_TARGETS = dict.fromkeys(("ppkt", "rppkt", "cpkt"), 0) | dict.fromkeys(
    ("respkt", "recpkt", "recspkt"), 1
)
PACKET_SOURCES = dict.fromkeys(("rppkt", "upkt"), 0) | dict.fromkeys(
    ("respkt", "repkt", "recpkt", "recspkt"), 1
)
"""From which on sources or targets in scratch are packets."""


class Lowering:
    """A plan as a program of the model.

    Attributes:
        found: properties that are refuted before anything runs.
    """

    def __init__(self, plan: Plan, name: str) -> None:
        self.plan, self.found = plan, dict[str, Result]()
        ranks = len(plan.gpus)
        self.blocks = [flat(gpu) for gpu in plan.gpus]
        all_operations = [o for of in self.blocks for block in of for o in block]
        groups = [o.operation.tbg_info.tbg_size for o in all_operations if o.operation.tbg_info]
        loops = any(o.turn is not None for o in all_operations)
        self.cells = lcm(1, *groups) * (PIPELINE_ROUNDS if loops else 1)
        self.counters: dict[object, int] = {}
        self.names: list[str] = []
        self.addresses = 0
        self.buffers: dict[tuple[int, str], Buffer] = {}
        for rank, gpu in enumerate(plan.gpus):
            whole = max(gpu.input_chunks, gpu.output_chunks) if plan.inplace else gpu.output_chunks
            self._buffer(rank, "o", whole)
            if plan.inplace:
                share = gpu.input_chunks * rank if plan.collective == "allgather" else 0
                start = self.buffers[rank, "o"].start + share * self.cells
                self.buffers[rank, "i"] = Buffer(rank, "i", start, gpu.input_chunks * self.cells)
            else:
                self._buffer(rank, "i", gpu.input_chunks)
            self._buffer(rank, "s", gpu.scratch_chunks)
            self._buffer(rank, "packets ", gpu.scratch_chunks)
        if plan.collective not in {"allreduce", "allgather"}:
            raise FormatError(name, f"the collective {plan.collective!r} is not known here")
        self.counting = Counting(plan, self.blocks)
        self.barriers = [Barriers(rank, blocks) for rank, blocks in enumerate(self.blocks)]
        self.ranks = ranks

    def _buffer(self, rank: int, name: str, chunks: int) -> None:
        self.buffers[rank, name] = Buffer(rank, name, self.addresses, chunks * self.cells)
        self.addresses += chunks * self.cells

    def program(self) -> Program:
        """The program, and what is wrong already in ``found``."""
        blocks = []
        if self.counting.wrong is not PROVED:
            self.found["connections_match"] = self.counting.wrong
        for rank, of_rank in enumerate(self.blocks):
            for block, operations in enumerate(of_rank):
                name = f"tb {self.plan.gpus[rank].threadblocks[block].id}"
                steps = tuple(self._steps(rank, block, operations))
                blocks.append(Block(rank, name, steps))
                touched = lambda op, turn, r=rank, b=block: self._touched(r, b, op, turn)  # noqa: E731
                missing = synchronized(rank, name, operations, touched)
                if missing is not None:
                    self.found.setdefault("synchronized", missing)
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
        barriers: dict[int, int] = {}
        for position, now in enumerate(operations):
            op, place = now.operation, now.place
            if op.name == "barrier":
                if not joins(now) or not self.barriers[rank].understood(op.barrier_id):
                    continue
                use = barriers[op.barrier_id] = barriers.get(op.barrier_id, -1) + 1
                mine = self._counter((rank, "barrier", op.barrier_id, block, use))
                yield Step("barrier: come", place, 0, signals=(Signal(mine, 1),))
                members = self.barriers[rank].members[op.barrier_id]
                absent = [-1] if self.barriers[rank].never_full(op.barrier_id) else []
                came = [
                    self._counter((rank, "barrier", op.barrier_id, member, use))
                    for member in (*members, *absent)
                ]
                yield Step("barrier: go", place, 0, waits=tuple(Signal(c, 1) for c in came))
                continue
            for key in self.counting.awaited(rank, block, op):
                number = self._number(self.counting.waits[key], rank, block, position)
                number -= self.counting.initial(key)
                waits = (Signal(self._counter((*key, number)), 1),) if number >= 0 else ()
                yield Step(f"{op.name} {name_of(key)}", place, 0, waits=waits)
            for key in self.counting.signalled(rank, block, op):
                number = self._number(self.counting.signals[key], rank, block, position)
                signals = (Signal(self._counter((*key, number)), 1),)
                yield Step(f"{op.name} {name_of(key)}", place, 0, signals=signals)
            for sources, targets in self._lanes(rank, block, op):
                yield from self._data(op, place, now.turn, sources, targets)

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
    ) -> Iterator[Step]:
        """The steps of one lane: areas that begin at these addresses."""
        for low, length in self._runs(op, turn):
            froms = tuple(start + low for start in sources)
            tos = tuple(start + low for start in targets)
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

    def _runs(self, op: PlanOperation, turn: int | None) -> Iterator[tuple[int, int]]:
        """The cells of an area that the operation takes, as (from, how many)."""
        size = op.dst_buff[0].size * self.cells
        cells = range(size)
        if op.tbg_info:
            part, parts = op.tbg_info.tb_id, op.tbg_info.tbg_size
            cells = range(size * part // parts, size * (part + 1) // parts)
        per_turn = self.cells // PIPELINE_ROUNDS
        taken = [c for c in cells if turn is None or c % self.cells // per_turn == turn]
        for _, run in groupby(enumerate(taken), lambda pair: pair[1] - pair[0]):
            members = [cell for _, cell in run]
            yield members[0], len(members)

    def _is_packet(self, address: int) -> bool:
        return any(
            b.name == "packets " and b.start <= address < b.start + b.chunks
            for b in self.buffers.values()
        )

    def _lanes(
        self, rank: int, block: int, op: PlanOperation
    ) -> Iterator[tuple[list[int], list[int]]]:
        """Where the sources and targets of an operation begin, for each sum or copy that it is."""
        if not op.dst_buff or not op.src_buff:
            return
        reads, writes = (
            [
                self._starts(rank, block, op, area, n >= packets.get(op.name, len(areas)))
                for n, area in enumerate(areas)
            ]
            for areas, packets in ((op.src_buff, PACKET_SOURCES), (op.dst_buff, PACKET_TARGETS))
        )
        if not all(reads) or not all(writes):
            return  # outside of its buffer: found already
        if op.name in SUMS:
            yield [a for area in reads for a in area], [a for area in writes for a in area]
            return
        yield from zip(reads * len(writes), writes, strict=False)

    def _starts(
        self, rank: int, block: int, op: PlanOperation, area: Area, packets: bool
    ) -> list[int]:
        """The addresses at which an area begins (several behind a switch); none: not there."""
        gpu = self.plan.gpus[rank]
        own = gpu.threadblocks[block]
        places: list[tuple[int, str | None]] = [(rank, area.type)]
        if area.switch_channel_id is not None:
            groups = [
                (c.buffer_type or c.buff, group.ranks)
                for c in gpu.channels
                if c.channel_type == "switch"
                for group in c.rank_groups
            ]
            ids = [
                n for ref in own.channels if ref.channel_type == "switch" for n in ref.channel_ids
            ]
            buffer, ranks = groups[ids[area.switch_channel_id]]
            places = [(other, buffer) for other in ranks]
        elif area.buffer_id is not None:
            refs = [n for ref in own.remote_buffer_refs for n in ref.remote_buffer_ids]
            remote = gpu.remote_buffers[refs[area.buffer_id]]
            places = [(remote.rank, remote.type)]
        starts = []
        for owner, named in places:
            name = "packets " if packets and named == "s" else named or ""
            buffer_there = self.buffers.get((owner, name))
            end = (area.index + area.size) * self.cells
            if buffer_there is None or area.index < 0 or end > buffer_there.chunks:
                self._outside(rank, op, owner, area, name)
                return []
            starts.append(buffer_there.start + area.index * self.cells)
        return starts

    def _outside(self, rank: int, op: PlanOperation, owner: int, area: Area, name: str) -> None:
        self.found.setdefault(
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
    ) -> tuple[set[int], set[int]]:
        reads: set[int] = set()
        writes: set[int] = set()
        for sources, targets in self._lanes(rank, block, op):
            for low, length in self._runs(op, turn):
                for starts, cells in ((sources, reads), (targets, writes)):
                    cells.update(a + low + n for a in starts for n in range(length))
        plain = [{a for a in cells if not self._is_packet(a)} for cells in (reads, writes)]
        return plain[0], plain[1]
