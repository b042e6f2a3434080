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
"""Rank, buffer (``p``: packets in scratch), place."""

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
        mine = (self.current + 1) % 3
        self.counters[(mine + 1) % 3] = 0
        self.counters[mine] += 1
        return mine


@dataclass
class Task:
    """An operation on its way: what it reads and adds up, row by row, and where that goes."""

    operation: Operation
    rows: list[tuple[list[Cell], list[Cell]]]
    values: list[int] | None = None


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
        self.semaphores = {
            (rank, n): s["init_value"]
            for rank, gpu in self.gpus.items()
            for n, s in enumerate(gpu.get("semaphores", []))
        }
        self.barriers: dict[tuple[int, int], Syncer] = {}
        self.expected = self._demand()

    def _operations(self) -> list[Operation]:
        return [
            op
            for gpu in self.plan["gpus"]
            for block in gpu["threadblocks"]
            for outer in block["ops"]
            for op in (outer, *outer.get("ops", []))
        ]

    def outcome(self) -> Outcome:
        """Run all blocks as far as they go, then look at what the ranks hold."""
        blocks = [
            (rank, block, self._segments(block))
            for rank, gpu in self.gpus.items()
            for block in gpu["threadblocks"]
        ]
        at = [0] * len(blocks)
        tasks: list[list[Task]] = [[] for _ in blocks]
        arrived: dict[int, int] = {}
        going = list(range(len(blocks)))
        self.random.shuffle(going)
        calm = self.random.choice(CALM)
        while going:
            for number in going:
                rank, block, segments = blocks[number]
                if tasks[number]:
                    moved = self._advance(rank, block, tasks[number])
                elif at[number] == len(segments):
                    going.remove(number)
                    moved = True
                else:
                    sync, operations = segments[at[number]]
                    moved = True
                    if self._comes(rank, number, sync, arrived):
                        pass
                    elif self._leaves(rank, number, sync, arrived):
                        tasks[number] = [self._task(rank, block, op, i) for op, i in operations]
                        at[number] += 1
                    else:
                        moved = False
                if moved:
                    break
            else:
                stuck = [f"gpu {blocks[n][0]} tb {blocks[n][1]['id']}" for n in sorted(going)]
                return Outcome("hang", f"{', '.join(stuck[:6])} wait")
            if self.random.random() < calm:
                self.random.shuffle(going)
        wrong = [cell for cell, value in self.expected.items() if self._load(cell) != value]
        return Outcome("wrong", str(wrong[0])) if wrong else Outcome("right")

    def _segments(self, block: Operation) -> list[tuple[Operation | None, list[Any]]]:
        """The operations between two synchronizations, with the round of their pipeline."""
        found: list[tuple[Operation | None, list[Any]]] = [(None, [])]
        for outer in block["ops"]:
            rounds = range(PIPELINED) if outer["name"] == "pipeline" else [None]
            for turn in rounds:
                for op in outer["ops"] if turn is not None else [outer]:
                    if op["name"] in SYNCHRONIZE:
                        found.append((op, []))
                    else:
                        found[-1][1].append((op, turn))
        return found

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
            name = task.operation["name"]
            kind = "wait" if name in WAITS else "signal" if name in SIGNALS else ""
            keys: set[object] = set()
            if kind:
                keys = {(kind, channel) for channel in task.operation["channel_ids"]}
            elif name.endswith("pkt"):  # thread t takes word t of the area, here and there
                keys = {frozenset(c for row in task.rows for cs in row for c in cs if c[1] != "p")}
            if not keys & ordered:
                ready.append(task)
            ordered |= keys
        self.random.shuffle(ready)
        return any(self._step(rank, block, task, tasks) for task in ready)

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
                task.values = [
                    sum(self._load(cell) for cell in sources) % PRIME for sources, _ in task.rows
                ]
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
        reads = [
            self._cells(rank, block, op, s, turn, n >= out_of_packets.get(name, 99))
            for n, s in enumerate(sources)
        ]
        writes = [
            self._cells(rank, block, op, t, turn, n >= into_packets.get(name, 99))
            for n, t in enumerate(targets)
        ]
        if name in REDUCES | PACKETS | {"glres"}:
            lanes = [(reads, writes)]
        else:
            lanes = [([r], [w]) for r, w in zip(reads * len(writes), writes, strict=False)]
        rows = []
        for froms, tos in lanes:
            length = len(froms[0][0])
            for i in range(length):
                rows.append(
                    (
                        [area[i] for places in froms for area in places],
                        [area[i] for places in tos for area in places],
                    )
                )
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
        per_turn = max(1, self.cells // PIPELINED)
        places = [
            p for p in range(low, low + size) if turn is None or p % self.cells // per_turn == turn
        ]
        if "switch_channel_id" in area:
            ids = next(c for c in block["channels"] if c["channel_type"] == "switch")
            groups = [
                (channel.get("buffer_type") or channel["buff"], group["ranks"])
                for channel in self.gpus[rank]["channels"]
                if channel["channel_type"] == "switch"
                for group in channel["rank_groups"]
            ]
            buffer, ranks = groups[ids["channel_ids"][area["switch_channel_id"]]]
            return [[(other, buffer, place) for place in places] for other in ranks]
        owner = rank
        buffer = area.get("type")
        if "buffer_id" in area:
            refs = [r for b in block["remote_buffer_refs"] for r in b["remote_buffer_ids"]]
            remote = self.gpus[rank]["remote_buffers"][refs[area["buffer_id"]]]
            owner = remote["rank"]
            buffer = remote["type"]
        assert buffer is not None
        return [[(owner, "p" if packets and buffer == "s" else buffer, p) for p in places]]

    def _channel(self, block: Operation, local: int) -> int:
        memory = [c for c in block["channels"] if c["channel_type"] == "memory"]
        return int([c for group in memory for c in group["channel_ids"]][local])

    def _peers(self, rank: int) -> list[int]:
        channels = self.gpus[rank]["channels"]
        memory = [c["connected_to"] for c in channels if c["channel_type"] == "memory"]
        return [peer for peers in memory for peer in peers]

    def _peer_end(self, rank: int, channel: int) -> tuple[int, int]:
        """The other end: channels of a pair of ranks belong together in their order."""
        peers = self._peers(rank)
        nth = peers[:channel].count(peers[channel])
        theirs = [n for n, peer in enumerate(self._peers(peers[channel])) if peer == rank]
        return peers[channel], theirs[nth]

    def _same(self, cell: Cell) -> Cell:
        """One name for each cell: in place, input and output are one."""
        rank, buffer, place = cell
        if self.plan["inplace"] and buffer == "i":
            share = self.gpus[rank]["input_chunks"] * self.cells
            at = rank * share if self.plan["collective"] == "allgather" else 0
            return rank, "o", place + at
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
        if self.plan["collective"] == "allreduce":
            sums = [sum(self._load((r, "i", c)) for r in ranks) % PRIME for c in range(inputs)]
            return {(r, "o", c): value for r in ranks for c, value in enumerate(sums)}
        if self.plan["collective"] == "allgather":
            return {
                (r, "o", n * inputs + c): self._load((owner, "i", c))
                for r in ranks
                for n, owner in enumerate(ranks)
                for c in range(inputs)
            }
        raise NotImplementedError(self.plan["collective"])
