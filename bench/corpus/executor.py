"""Runs one interleaving of an MSCCL XML, with real data: does it hang, does it sum right?

A block takes its transmissions message by message; each message is read at one moment and written
at a later one, and between the two any other block may run, as on a GPU. Which one runs is drawn:
every block has a priority that changes now and then (after Burckhardt et al., "A randomized
scheduler with probabilistic guarantees of finding bugs", ASPLOS 2010), and a step that is *held*
runs only when nothing else can. Chunks hold integers modulo 2^61 - 1, drawn per (rank, chunk): a
wrong sum passes with a probability of 2^-61.

Followed: ``msccl_kernel.cu`` and ``msccl_setup.cc`` of Azure/msccl-executor-nccl at c6f6b36d, with
stock buffers. It stops at one pass over the buffer: passes differ in no wait and share no data.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush
from math import gcd

from bench.corpus.messages import IN_FLIGHT, MAX_COUNT
from bench.corpus.parse import (
    ADDS,
    RECEIVES,
    SENDS,
    WRITES,
    Block,
    File,
    Place,
    Transmission,
    finer,
)

PRIME = 2**61 - 1
CALM = (0.0, 0.001, 0.05, 1.0)
"""How often the block that runs draws another priority."""


SHARED = frozenset({"allgather", "reducescatter", "alltoall"})
"""Collectives in which a rank has a share of the buffer."""

Held = frozenset[tuple[int, int, int]]
"""Steps to be delayed: (rank, block, number of the transmission)."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended: ``right``, ``hang``, ``wrong`` or ``fault``, and what was seen."""

    kind: str
    detail: str = ""


class Fault(Exception):
    """The run does what no executor defines: it leaves a buffer, or two ends do not match."""


class Run:
    """One run; :meth:`outcome` carries it out."""

    def __init__(
        self,
        file: File,
        *,
        in_place: bool,
        per_message: int = MAX_COUNT,
        slots: int | None = None,
        seed: int = 0,
        held: Held = frozenset(),
    ) -> None:
        parts = file.ranks // gcd(file.chunks, file.ranks) if file.collective in SHARED else 1
        if parts > 1:  # a rank's share is no whole number of chunks
            file = finer(file, parts)
            per_message = per_message * parts
        self.file = file
        self.in_place = in_place
        self.per_message = per_message
        self.slots = slots or IN_FLIGHT[file.protocol]
        self.random = random.Random(seed)
        self.calm = self.random.choice(CALM)
        self.held = held
        self.memory = [self._buffers(rank) for rank in range(file.ranks)]
        self.expected = [self._expected(rank) for rank in range(file.ranks)]
        self.queues: dict[tuple[int, int, int], deque[list[int]]] = {}
        self.flags = {(block.rank, block.id): -1 for block in file.blocks}
        self.waiting: dict[object, list[int]] = {}
        self.at = [0] * len(file.blocks)  # transmission
        self.message = [0] * len(file.blocks)
        self.read: list[tuple[int, list[int], list[int]] | None] = [None] * len(file.blocks)
        self.why: dict[int, str] = {}
        self.hops = [0] * len(file.blocks)  # longest chain of messages waited for, so far
        self.published: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self._stamps: dict[object, deque[int]] = {}

    def outcome(self) -> Outcome:
        """Run all blocks as far as they go, then look at what the ranks hold."""
        ends: dict[tuple[str, int, int, int], int] = {}
        for block in self.file.blocks:
            for end, peer in (("send", block.send), ("recv", block.receive)):
                key = (end, block.rank, peer, block.channel)
                if peer >= 0 and ends.setdefault(key, block.id) != block.id:
                    return Outcome("fault", f"two blocks share a connection: {key}")
        try:
            self._run()
        except Fault as fault:
            return Outcome("fault", str(fault))
        stuck = [n for n, block in enumerate(self.file.blocks) if self.at[n] < len(block.program)]
        if stuck:
            lines = [f"{self._name(n)} waits for {self.why[n]}" for n in stuck]
            return Outcome("hang", f"{len(stuck)} blocks wait: {'; '.join(lines[:4])}")
        full = next((key for key, queue in self.queues.items() if queue), None)
        if full is not None:
            return Outcome("fault", f"a message from rank {full[0]} to {full[1]} is never received")
        for rank, wanted in enumerate(self.expected):
            for place, value in wanted.items():
                if self._load(rank, place) != value:
                    return Outcome("wrong", f"rank {rank}, {place.buffer}[{place.offset}]")
        return Outcome("right")

    def _run(self) -> None:
        ready: list[tuple[float, int]] = []
        priority = [self.random.random() for _ in self.file.blocks]
        for number in range(len(self.file.blocks)):
            heappush(ready, (priority[number], number))
        held: list[int] = []
        while ready or held:
            if ready:
                number = heappop(ready)[1]
                if self._is_held(number) and self.read[number] is None:
                    held.append(number)
                    continue
            else:
                number = held.pop(self.random.randrange(len(held)))
            for event in self._advance(number):
                for woken in self.waiting.pop(event, ()):
                    heappush(ready, (priority[woken], woken))
            if number not in self.why and self.at[number] < len(self.file.blocks[number].program):
                if self.random.random() < self.calm:
                    priority[number] = self.random.random()
                heappush(ready, (priority[number], number))

    def _is_held(self, number: int) -> bool:
        block = self.file.blocks[number]
        return (block.rank, block.id, self.at[number]) in self.held

    def _advance(self, number: int) -> list[object]:
        """Let a block read or write its next message; what happened, for those who wait for it."""
        self.why.pop(number, None)
        block = self.file.blocks[number]
        if self.at[number] >= len(block.program):
            return []
        now = block.program[self.at[number]]
        if self.read[number] is not None:
            return self._write(number, block, now)
        if self.message[number] == 0:
            for other, step in now.waits:
                if self.flags.get((block.rank, other), -1) < step:
                    flag = "flag", block.rank, other
                    return self._wait(number, flag, f"tb {other} step {step}")
                known = self.published[block.rank, other]
                first = next(hops for flag, hops in known if flag >= step)
                self.hops[number] = max(self.hops[number], first)
        if self.message[number] >= now.count:
            return self._finish(number, block, now)
        came: list[int] = []
        if now.kind in RECEIVES:
            queue = self.queues.setdefault((block.receive, block.rank, block.channel), deque())
            if not queue:
                key = ("came", block.receive, block.rank, block.channel)
                return self._wait(number, key, f"a message from rank {block.receive}")
            came = queue[0]
        if now.kind in SENDS:
            queue = self.queues.setdefault((block.rank, block.send, block.channel), deque())
            if len(queue) >= self.slots:
                key = ("left", block.rank, block.send, block.channel)
                return self._wait(number, key, f"room towards rank {block.send}")
        first = self.message[number]
        size = min(self.per_message, now.count - first)
        if now.kind in RECEIVES and len(came) != size:
            raise Fault(f"{self._name(number)} expects {size} chunks, {len(came)} come")
        values = came or [0] * size
        if now.kind in ADDS or now.kind in {"s", "cpy"}:
            operands = list(now.sources) + ([now.target] if now.kind == "re" else [])
            for place in operands:
                for index in range(size):
                    at = Place(place.buffer, place.offset + first + index)
                    values = [*values]
                    values[index] = (values[index] + self._load(block.rank, at)) % PRIME
        self.read[number] = (first, values, came)
        return []

    def _write(self, number: int, block: Block, now: Transmission) -> list[object]:
        pending = self.read[number]
        assert pending is not None
        first, values, _ = pending
        self.read[number] = None
        events: list[object] = []
        if now.kind in WRITES:
            for index, value in enumerate(values):
                place = Place(now.target.buffer, now.target.offset + first + index)
                buffer, offset = self._locate(block.rank, place)
                buffer[offset] = value
        if now.kind in RECEIVES:
            self.queues[block.receive, block.rank, block.channel].popleft()
            came = self._stamps["came", block.receive, block.rank, block.channel].popleft()
            self.hops[number] = max(self.hops[number], came)
            events.append(("left", block.receive, block.rank, block.channel))
        if now.kind in SENDS:
            self.queues[block.rank, block.send, block.channel].append(values)
            key = "came", block.rank, block.send, block.channel
            self._stamps.setdefault(key, deque()).append(self.hops[number] + 1)
            events.append(key)
        self.message[number] += len(values)
        if self.message[number] >= now.count:
            events += self._finish(number, block, now)
        return events

    def _finish(self, number: int, block: Block, now: Transmission) -> list[object]:
        self.at[number] += 1
        self.message[number] = 0
        if now.publishes < 0:
            return []
        self.flags[block.rank, block.id] = now.publishes
        self.published.setdefault((block.rank, block.id), []).append(
            (now.publishes, self.hops[number])
        )
        return [("flag", block.rank, block.id)]

    def _wait(self, number: int, event: object, why: str) -> list[object]:
        self.waiting.setdefault(event, []).append(number)
        self.why[number] = why
        return []

    def _name(self, number: int) -> str:
        block = self.file.blocks[number]
        now = block.program[self.at[number]]
        return f"gpu {block.rank} tb {block.id} step {now.steps[0]} ({now.kind})"

    def _buffers(self, rank: int) -> dict[str, list[int]]:
        """The three buffers, all of them random to begin with."""
        file = self.file
        share = file.chunks // file.ranks
        size = {"i": file.chunks, "o": file.chunks, "s": file.scratch.get(rank, 0)}
        if file.collective == "allgather":
            size["i"] = share
        if file.collective == "reducescatter":
            size["o"] = share
        return {name: [self.random.randrange(PRIME) for _ in range(n)] for name, n in size.items()}

    def _locate(self, rank: int, place: Place) -> tuple[list[int], int]:
        """The memory behind a place; in place, input and output are one."""
        name, offset = place
        buffers = self.memory[rank]
        file = self.file
        if name not in buffers or not 0 <= offset < len(buffers[name]):
            raise Fault(f"rank {rank} leaves its buffer: {name}[{offset}]")
        if self.in_place:
            share = file.chunks // file.ranks
            if file.collective == "reducescatter" and name == "o":
                return buffers["i"], offset + rank * share
            if file.collective != "reducescatter" and name == "i":
                mine = rank * share if file.collective == "allgather" else 0
                return buffers["o"], offset + mine
        return buffers[name], offset

    def _load(self, rank: int, place: Place) -> int:
        buffer, offset = self._locate(rank, place)
        return buffer[offset]

    def _expected(self, rank: int) -> dict[Place, int]:
        """What must lie where at the end; root is rank 0, as in all public files."""
        file = self.file
        chunks = file.chunks
        ranks = range(file.ranks)
        share = chunks // file.ranks

        def given(owner: int, chunk: int) -> int:
            return self._load(owner, Place("i", chunk))

        def total(chunk: int) -> int:
            return sum(given(owner, chunk) for owner in ranks) % PRIME

        match file.collective:
            case "allreduce":
                return {Place("o", c): total(c) for c in range(chunks)}
            case "reduce":
                return {Place("o", c): total(c) for c in range(chunks)} if rank == 0 else {}
            case "reducescatter":
                return {Place("o", c): total(rank * share + c) for c in range(share)}
            case "allgather":
                return {Place("o", c): given(c // share, c % share) for c in range(chunks)}
            case "broadcast":
                return {Place("o", c): given(0, c) for c in range(chunks)}
            case "alltoall":
                return {
                    Place("o", c): given(c // share, rank * share + c % share)
                    for c in range(chunks)
                }
        raise Fault(f"nothing is known of the collective {file.collective}")
