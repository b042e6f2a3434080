"""Runs one interleaving of an MSCCL++ plan, with real data; shares nothing with ``verify``.

Followed: ``execution_plan.cc``, ``execution_kernel.hpp`` of microsoft/mscclpp. The threads of a
block come together only at ``nop`` and ``barrier``: operations between two of these run in any
order and side by side, except that each channel's signals keep theirs, and its waits, and packet
operations on the same words, which are the same thread's. An operation reads at one moment and
writes at a later one. A packet is read when it has come. Chunks hold integers modulo 2^61 - 1. Not
taken: port channels, whose puts a CPU thread carries out later.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.corpus.executor import CALM, PRIME, Outcome

Operation = dict[str, Any]
Cell = tuple[int, str, int]
"""Rank, buffer (``p``: packets in scratch), offset."""

SYNCHRONIZE = frozenset({"nop", "barrier"})
WAITS = frozenset({"wait", "rlxwait"})
SIGNALS = frozenset({"signal", "rlxsignal"})
REDUCES = frozenset({"re", "res", "rre", "rres"})
PACKETS = frozenset({"respkt", "repkt", "recpkt", "recspkt"})
PIPELINED = 2
"""Rounds of a pipeline that are run; each takes its part of every chunk."""


@dataclass
class Syncer:
    """A ``DeviceSyncer``: three counters in turn, so that one can be cleared before its use."""

    counters: list[int] = field(default_factory=lambda: [0, 0, 0])
    current: int = 0

    def arrive(self) -> int:
        """Count a block that comes; returns the counter that it has to look at."""
        counter = (self.current + 1) % 3
        self.counters[(counter + 1) % 3] = 0
        self.counters[counter] += 1
        return counter


@dataclass
class Task:
    """An operation on its way: what it reads and adds up, row by row, and where that goes."""

    operation: Operation
    rows: list[tuple[list[Cell], list[Cell]]]
    values: list[int] | None = None


Segment = tuple[Operation | None, list[tuple[Operation, int | None]]]
"""The synchronization before it (none: the begin), and operations with their pipeline's round."""


@dataclass(eq=False)
class BlockState:
    """How far a block is.

    Attributes:
        number: among all blocks of the plan.
        segment: the one that is next.
        tasks: of the segment before it, those that are not done.
    """

    number: int
    rank: int
    block: Operation
    segments: list[Segment]
    segment: int = 0
    tasks: list[Task] = field(default_factory=list)
    is_over: bool = False


class PlanRun:
    """One run of a plan; :meth:`outcome` carries it out."""

    def __init__(self, path: Path, seed: int = 0) -> None:
        self.plan = json.loads(path.read_text())
        self.random = random.Random(seed)
        self.gpus = {gpu["id"]: gpu for gpu in self.plan["gpus"]}
        groups = [op["tbg_info"]["tbg_size"] for op in self._operations() if "tbg_info" in op]
        loops = any(op["name"] == "pipeline" for op in self._operations())
        self.cells = max([1, *groups]) * (PIPELINED if loops else 1)
        self.memory: dict[Cell, int] = {}
        self.signals: Counter[tuple[int, int]] = Counter()
        self.semaphores = {}
        for rank, gpu in self.gpus.items():
            for number, semaphore in enumerate(gpu.get("semaphores", [])):
                self.semaphores[rank, number] = semaphore["init_value"]
        self.barriers: dict[tuple[int, int], Syncer] = {}
        self.expected = self._demand()

    def _operations(self) -> list[Operation]:
        """All of the plan, pipelines and what is in them."""
        operations = []
        for gpu in self.plan["gpus"]:
            for block in gpu["threadblocks"]:
                for outer in block["ops"]:
                    operations.append(outer)
                    operations += outer.get("ops", [])
        return operations

    def outcome(self) -> Outcome:
        """Run all blocks as far as they go, then look at what the ranks hold."""
        blocks: list[BlockState] = []
        for rank, gpu in self.gpus.items():
            for block in gpu["threadblocks"]:
                blocks.append(BlockState(len(blocks), rank, block, self._segments(block)))

        arrived: dict[int, int] = {}
        running = list(blocks)
        self.random.shuffle(running)
        calm = self.random.choice(CALM)
        while running:
            moved = next((state for state in running if self._moves(state, arrived)), None)
            if moved is None:
                running.sort(key=lambda state: state.number)
                stuck = [f"gpu {state.rank} tb {state.block['id']}" for state in running[:6]]
                return Outcome("hang", f"{', '.join(stuck)} wait")
            if moved.is_over:
                running.remove(moved)
            if self.random.random() < calm:
                self.random.shuffle(running)

        for cell, value in self.expected.items():
            if self._load(cell) != value:
                return Outcome("wrong", str(cell))
        return Outcome("right")

    def _moves(self, state: BlockState, arrived: dict[int, int]) -> bool:
        """Let a block do one thing, if it can; to end is one, too."""
        if state.tasks:
            return self._advance(state.rank, state.block, state.tasks)
        if state.segment == len(state.segments):
            state.is_over = True
            return True

        sync, operations = state.segments[state.segment]
        if self._comes(state.rank, state.number, sync, arrived):
            return True
        if not self._leaves(state.rank, state.number, sync, arrived):
            return False
        state.tasks = [self._task(state.rank, state.block, op, turn) for op, turn in operations]
        state.segment += 1
        return True

    def _segments(self, block: Operation) -> list[Segment]:
        """The operations between two synchronizations, with the round of their pipeline."""
        rounds: list[tuple[list[Operation], int | None]] = []
        for outer in block["ops"]:
            if outer["name"] == "pipeline":
                rounds += [(outer["ops"], turn) for turn in range(PIPELINED)]
            else:
                rounds.append(([outer], None))

        segments: list[Segment] = [(None, [])]
        for operations, turn in rounds:
            for op in operations:
                if op["name"] in SYNCHRONIZE:
                    segments.append((op, []))
                else:
                    _, of_segment = segments[-1]
                    of_segment.append((op, turn))
        return segments

    def _comes(
        self, rank: int, number: int, sync: Operation | None, arrived: dict[int, int]
    ) -> bool:
        """Count a block at a barrier, unless it is counted already or is at none."""
        if sync is None or sync["name"] == "nop" or number in arrived:
            return False
        if sync.get("num_threadblocks", 0) == 1:
            return False
        syncer = self.barriers.setdefault((rank, sync.get("barrier_id", 0)), Syncer())
        arrived[number] = syncer.arrive()
        return True

    def _leaves(
        self, rank: int, number: int, sync: Operation | None, arrived: dict[int, int]
    ) -> bool:
        """Whether a block may go on; at a barrier it looks for exactly the count."""
        if sync is None or number not in arrived:
            return True
        syncer = self.barriers[rank, sync.get("barrier_id", 0)]
        if syncer.counters[arrived[number]] != sync.get("num_threadblocks", 0):
            return False
        syncer.current = arrived.pop(number)
        return True

    def _advance(self, rank: int, block: Operation, tasks: list[Task]) -> bool:
        """Let some task of a block read or write; finished ones are left out."""
        ordered: set[object] = set()
        ready = []
        for task in tasks:
            keys = self._order_keys(task)
            if not keys & ordered:
                ready.append(task)
            ordered |= keys
        self.random.shuffle(ready)
        return any(self._step(rank, block, task, tasks) for task in ready)

    def _order_keys(self, task: Task) -> set[object]:
        """Tasks of a block with a key in common keep their order."""
        name = task.operation["name"]
        if name in WAITS:
            return {("wait", channel) for channel in task.operation["channel_ids"]}
        if name in SIGNALS:
            return {("signal", channel) for channel in task.operation["channel_ids"]}
        if name.endswith("pkt"):  # thread t takes word t of the area, here and there
            words: set[Cell] = set()
            for sources, targets in task.rows:
                words.update(cell for cell in sources + targets if cell[1] != "p")
            return {frozenset(words)}
        return set()

    def _step(self, rank: int, block: Operation, task: Task, tasks: list[Task]) -> bool:
        op = task.operation
        name = op["name"]
        if name in SIGNALS:
            for channel in op["channel_ids"]:
                self.signals[self._peer_end(rank, self._channel(block, channel))] += 1
        elif name in WAITS:
            ends = [(rank, self._channel(block, channel)) for channel in op["channel_ids"]]
            if any(self.signals[end] < count for end, count in Counter(ends).items()):
                return False
            self.signals.subtract(ends)
        elif name == "sem_release":
            for number in op["semaphore_ids"]:
                self.semaphores[rank, number] += 1
        elif name == "sem_acquire":
            if any(self.semaphores[rank, number] < 1 for number in op["semaphore_ids"]):
                return False
            for number in op["semaphore_ids"]:
                self.semaphores[rank, number] -= 1
        elif name != "flush":
            if task.values is None:
                cells = [cell for sources, _ in task.rows for cell in sources]
                if any(cell[1] == "p" and cell not in self.memory for cell in cells):
                    return False
                task.values = []
                for sources, _ in task.rows:
                    task.values.append(sum(self._load(cell) for cell in sources) % PRIME)
                return True

            for value, (_, targets) in zip(task.values, task.rows, strict=True):
                for cell in targets:
                    self.memory[self._same(cell)] = value
        tasks.remove(task)
        return True

    def _task(self, rank: int, block: Operation, op: Operation, turn: int | None) -> Task:
        name = op["name"]
        if op.get("channel_type") == "port":
            raise NotImplementedError("port channels")
        sources = op.get("src_buff", [])
        targets = op.get("dst_buff", [])
        into_packets = {"ppkt": 0, "rppkt": 0, "cpkt": 0, "respkt": 1, "recspkt": 1, "recpkt": 1}
        out_of_packets = {"rppkt": 0, "upkt": 0} | dict.fromkeys(PACKETS, 1)
        reads = []
        for number, area in enumerate(sources):
            packets = number >= out_of_packets.get(name, 99)
            reads.append(self._cells(rank, block, op, area, turn, packets))
        writes = []
        for number, area in enumerate(targets):
            packets = number >= into_packets.get(name, 99)
            writes.append(self._cells(rank, block, op, area, turn, packets))

        if name in REDUCES | PACKETS | {"glres"}:
            lanes = [(reads, writes)]
        else:
            lanes = [
                ([read], [write]) for read, write in zip(reads * len(writes), writes, strict=False)
            ]
        rows = []
        for lane_reads, lane_writes in lanes:
            length = len(lane_reads[0][0])
            for i in range(length):
                rows.append((_cells_at(lane_reads, i), _cells_at(lane_writes, i)))
        return Task(op, rows)

    def _cells(
        self, rank: int, block: Operation, op: Operation, area: Operation, turn: int | None,
        packets: bool,
    ) -> list[list[Cell]]:  # fmt: skip
        """The cells of an area, once for each rank that it is at (several behind a switch)."""
        low = area["index"] * self.cells
        size = area["size"] * self.cells
        if "tbg_info" in op:
            part = op["tbg_info"]["tb_id"]
            parts = op["tbg_info"]["tbg_size"]
            low = low + size * part // parts
            size = size // parts
        offsets = []
        per_turn = max(1, self.cells // PIPELINED)
        for offset in range(low, low + size):
            if turn is None or offset % self.cells // per_turn == turn:
                offsets.append(offset)

        if "switch_channel_id" in area:
            switched, ranks = self._switch_group(rank, block, area["switch_channel_id"])
            areas = []
            for owner in ranks:
                areas.append([(owner, switched, offset) for offset in offsets])
            return areas

        owner = rank
        buffer = area.get("type")
        if "buffer_id" in area:
            ids: list[int] = []
            for refs in block["remote_buffer_refs"]:
                ids += refs["remote_buffer_ids"]
            remote = self.gpus[rank]["remote_buffers"][ids[area["buffer_id"]]]
            owner = remote["rank"]
            buffer = remote["type"]
        assert buffer is not None
        if packets and buffer == "s":
            buffer = "p"
        return [[(owner, buffer, offset) for offset in offsets]]

    def _switch_group(self, rank: int, block: Operation, local: int) -> tuple[str, list[int]]:
        """The buffer and the ranks behind a block's switch channel."""
        groups: list[tuple[str, list[int]]] = []
        for channel in self.gpus[rank]["channels"]:
            if channel["channel_type"] == "switch":
                buffer = channel.get("buffer_type") or channel["buff"]
                groups += [(buffer, group["ranks"]) for group in channel["rank_groups"]]
        of_block = next(c for c in block["channels"] if c["channel_type"] == "switch")
        return groups[of_block["channel_ids"][local]]

    def _channel(self, block: Operation, local: int) -> int:
        """The GPU's number of a block's memory channel."""
        ids: list[int] = []
        for channel in block["channels"]:
            if channel["channel_type"] == "memory":
                ids += channel["channel_ids"]
        return int(ids[local])

    def _peers(self, rank: int) -> list[int]:
        """The other rank of each memory channel of a GPU."""
        peers: list[int] = []
        for channel in self.gpus[rank]["channels"]:
            if channel["channel_type"] == "memory":
                peers += channel["connected_to"]
        return peers

    def _peer_end(self, rank: int, channel: int) -> tuple[int, int]:
        """The other end: channels of a pair of ranks belong together in their order."""
        peers = self._peers(rank)
        peer = peers[channel]
        nth = peers[:channel].count(peer)
        back = [n for n, rank_back in enumerate(self._peers(peer)) if rank_back == rank]
        return peer, back[nth]

    def _same(self, cell: Cell) -> Cell:
        """One name for each cell: in place, input and output are one."""
        rank, buffer, offset = cell
        if self.plan["inplace"] and buffer == "i":
            share = self.gpus[rank]["input_chunks"] * self.cells
            first = rank * share if self.plan["collective"] == "allgather" else 0
            return rank, "o", first + offset
        return cell

    def _load(self, cell: Cell) -> int:
        key = self._same(cell)
        if key not in self.memory:
            self.memory[key] = self.random.randrange(PRIME)
        return self.memory[key]

    def _demand(self) -> dict[Cell, int]:
        """What must lie where at the end."""
        ranks = sorted(self.gpus)
        inputs = self.gpus[ranks[0]]["input_chunks"] * self.cells
        expected: dict[Cell, int] = {}
        if self.plan["collective"] == "allreduce":
            for offset in range(inputs):
                total = sum(self._load((rank, "i", offset)) for rank in ranks) % PRIME
                for rank in ranks:
                    expected[rank, "o", offset] = total
            return expected
        if self.plan["collective"] == "allgather":
            for rank in ranks:
                for number, owner in enumerate(ranks):
                    for offset in range(inputs):
                        value = self._load((owner, "i", offset))
                        expected[rank, "o", number * inputs + offset] = value
            return expected
        raise NotImplementedError(self.plan["collective"])


def _cells_at(areas: list[list[list[Cell]]], i: int) -> list[Cell]:
    """The i-th cell of every area, on every rank that it is at."""
    cells = []
    for copies in areas:
        cells += [copy[i] for copy in copies]
    return cells
