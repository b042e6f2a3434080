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
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import gcd

from bench.corpus.messages import IN_FLIGHT, MAX_COUNT
from bench.corpus.parse import (
    ADDS,
    RECEIVES,
    SENDS,
    WRITES,
    Address,
    Block,
    File,
    Transmission,
    finer,
)

PRIME = 2**61 - 1
CALM = (0.0, 0.001, 0.05, 1.0)
"""How often the block that runs draws another priority."""

SHARED = frozenset({"allgather", "reducescatter", "alltoall"})
"""Collectives in which a rank has a share of the buffer."""

UNRAISED = -(2**63)
"""The flag of a block that has raised none: below all that is waited for, so also below -1."""

Held = frozenset[tuple[int, int, int]]
"""Steps to be delayed: (rank, block, number of the transmission)."""

Connection = tuple[int, int, int]
"""Sending rank, receiving rank, channel."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended: ``right``, ``hang``, ``wrong`` or ``fault``, and what was seen."""

    kind: str
    detail: str = ""


class Fault(Exception):
    """The run does what no executor defines: it leaves a buffer, or two ends do not match."""


@dataclass
class _Moving:
    """A message that a block has read and not yet written: its first chunk, and the sums."""

    first: int
    values: list[int]


@dataclass
class _BlockState:
    """How far a block is.

    Attributes:
        transmission: the number of the one that is next, or under way.
        chunk: of it, the first that is still to be moved.
        moving: what is read and not yet written.
        waits_for: in words; empty where it can go on, as far as is known.
        hops: messages in the longest row, each waited for, that led here.
        flag: what it has raised its flag to.
        raised: every value of the flag, with ``hops`` at that time.
    """

    block: Block
    transmission: int = 0
    chunk: int = 0
    moving: _Moving | None = None
    waits_for: str = ""
    hops: int = 0
    flag: int = UNRAISED
    raised: list[tuple[int, int]] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        return self.transmission >= len(self.block.program)

    @property
    def current(self) -> Transmission:
        return self.block.program[self.transmission]

    @property
    def sends_on(self) -> Connection:
        return self.block.rank, self.block.send, self.block.channel

    @property
    def receives_from(self) -> Connection:
        return self.block.receive, self.block.rank, self.block.channel

    def __str__(self) -> str:
        current = self.current
        block = self.block
        return f"gpu {block.rank} tb {block.id} step {current.steps[0]} ({current.kind})"


@dataclass
class _Message:
    """Chunks in a FIFO, and the messages in the longest row that led to it, itself counted."""

    values: list[int]
    hops: int


class Run:
    """One run; :meth:`outcome` carries it out.

    Args:
        file: what is run.
        in_place: whether input and output are one buffer.
        per_message: chunks of a message, at most.
        slots: messages that a connection has room for; None: as the protocol has it.
        seed: of the interleaving and of the data.
        held: steps to be delayed until nothing else can run.
    """

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
        if file.collective in SHARED:
            parts = file.ranks // gcd(file.chunks, file.ranks)
            if parts > 1:  # a rank's share is no whole number of chunks
                file = finer(file, parts)
                per_message = per_message * parts
        self.file = file
        self.in_place = in_place
        self.per_message = per_message
        self.slots = slots or IN_FLIGHT[file.protocol]
        self.held = held

        self.random = random.Random(seed)
        self.calm = self.random.choice(CALM)
        self.memory = [self._buffers(rank) for rank in range(file.ranks)]
        self.expected = [self._expected(rank) for rank in range(file.ranks)]
        self.blocks = [_BlockState(block) for block in file.blocks]
        self._by_id = {(state.block.rank, state.block.id): state for state in self.blocks}
        self._fifos: dict[Connection, deque[_Message]] = {}
        self._waiting: dict[object, list[int]] = {}  # event -> numbers of blocks

    @property
    def hops(self) -> list[int]:
        """Per block, messages in the longest row of which each waited for the one before."""
        return [state.hops for state in self.blocks]

    def outcome(self) -> Outcome:
        """Run all blocks as far as they go, then look at what the ranks hold."""
        shared = self._shared_connection()
        if shared is not None:
            return Outcome("fault", f"two blocks share a connection: {shared}")
        try:
            self._run()
        except Fault as fault:
            return Outcome("fault", str(fault))

        stuck = [state for state in self.blocks if not state.is_over]
        if stuck:
            lines = [f"{state} waits for {state.waits_for}" for state in stuck[:4]]
            return Outcome("hang", f"{len(stuck)} blocks wait: {'; '.join(lines)}")
        for (sender, receiver, _), fifo in self._fifos.items():
            if fifo:
                detail = f"a message from rank {sender} to {receiver} is never received"
                return Outcome("fault", detail)
        for rank, expected in enumerate(self.expected):
            for address, value in expected.items():
                if self._load(rank, address) != value:
                    return Outcome("wrong", f"rank {rank}, {address.buffer}[{address.offset}]")
        return Outcome("right")

    def _shared_connection(self) -> tuple[str, int, int, int] | None:
        """An end of a connection that two blocks have: (side, rank, peer, channel)."""
        owners: dict[tuple[str, int, int, int], int] = {}
        for block in self.file.blocks:
            for side, peer in (("send", block.send), ("recv", block.receive)):
                end = (side, block.rank, peer, block.channel)
                if peer >= 0 and owners.setdefault(end, block.id) != block.id:
                    return end
        return None

    def _run(self) -> None:
        """Let blocks read and write in turn until none can go on."""
        ready: list[tuple[float, int]] = []
        priority = [self.random.random() for _ in self.blocks]
        for number in range(len(self.blocks)):
            heappush(ready, (priority[number], number))
        held_back: list[int] = []
        while ready or held_back:
            if ready:
                _, number = heappop(ready)
                if self._is_held(number):
                    held_back.append(number)
                    continue
            else:
                number = held_back.pop(self.random.randrange(len(held_back)))

            for event in self._advance(number):
                for woken in self._waiting.pop(event, ()):
                    heappush(ready, (priority[woken], woken))
            state = self.blocks[number]
            if not state.waits_for and not state.is_over:
                if self.random.random() < self.calm:
                    priority[number] = self.random.random()
                heappush(ready, (priority[number], number))

    def _is_held(self, number: int) -> bool:
        state = self.blocks[number]
        step = (state.block.rank, state.block.id, state.transmission)
        return step in self.held and state.moving is None

    def _advance(self, number: int) -> list[object]:
        """Let a block read or write its next message; what happened, for those who wait for it."""
        state = self.blocks[number]
        state.waits_for = ""
        if state.is_over:
            return []
        if state.moving is not None:
            return self._write(state, state.moving)

        event = self._awaited_event(state)
        if event is not None:
            self._waiting.setdefault(event, []).append(number)
            return []
        if state.chunk >= state.current.count:
            return self._finish(state)
        self._read(state)
        return []

    def _awaited_event(self, state: _BlockState) -> object | None:
        """What a block has to wait for before its next message; None: nothing."""
        current = state.current
        rank = state.block.rank
        if state.chunk == 0:
            for block, flag in current.waits:
                awaited = self._by_id.get((rank, block))
                if awaited is None or awaited.flag < flag:
                    state.waits_for = f"tb {block} step {flag}"
                    return ("flag", rank, block)
                hops = next(hops for raised, hops in awaited.raised if raised >= flag)
                state.hops = max(state.hops, hops)
        if state.chunk >= current.count:
            return None

        if current.kind in RECEIVES and not self._fifos.get(state.receives_from):
            state.waits_for = f"a message from rank {state.block.receive}"
            return ("came", state.receives_from)
        if current.kind in SENDS:
            fifo = self._fifos.setdefault(state.sends_on, deque())
            if len(fifo) >= self.slots:
                state.waits_for = f"room towards rank {state.block.send}"
                return ("left", state.sends_on)
        return None

    def _read(self, state: _BlockState) -> None:
        """Take what has come, and add the block's own operands."""
        current = state.current
        chunks = min(self.per_message, current.count - state.chunk)
        values = [0] * chunks
        if current.kind in RECEIVES:
            values = list(self._fifos[state.receives_from][0].values)
            if len(values) != chunks:
                raise Fault(f"{state} expects {chunks} chunks, {len(values)} come")

        operands: list[Address] = []
        if current.kind in ADDS or current.kind in {"s", "cpy"}:
            operands += current.sources
        if current.kind == "re":
            operands.append(current.target)
        for operand in operands:
            for index in range(chunks):
                chunk = Address(operand.buffer, operand.offset + state.chunk + index)
                values[index] = (values[index] + self._load(state.block.rank, chunk)) % PRIME
        state.moving = _Moving(state.chunk, values)

    def _write(self, state: _BlockState, moving: _Moving) -> list[object]:
        """Store and send the sums; the message that came leaves its slot."""
        current = state.current
        state.moving = None
        events: list[object] = []
        if current.kind in WRITES:
            for index, value in enumerate(moving.values):
                address = Address(
                    current.target.buffer, current.target.offset + moving.first + index
                )
                buffer, offset = self._locate(state.block.rank, address)
                buffer[offset] = value
        if current.kind in RECEIVES:
            message = self._fifos[state.receives_from].popleft()
            state.hops = max(state.hops, message.hops)
            events.append(("left", state.receives_from))
        if current.kind in SENDS:
            self._fifos[state.sends_on].append(_Message(moving.values, state.hops + 1))
            events.append(("came", state.sends_on))

        state.chunk += len(moving.values)
        if state.chunk >= current.count:
            events += self._finish(state)
        return events

    def _finish(self, state: _BlockState) -> list[object]:
        """Go on to the next transmission; raise the flag, if this one does."""
        flag = state.current.publishes
        state.transmission += 1
        state.chunk = 0
        if flag < 0:
            return []
        state.flag = flag
        state.raised.append((flag, state.hops))
        return [("flag", state.block.rank, state.block.id)]

    def _buffers(self, rank: int) -> dict[str, list[int]]:
        """The three buffers, all of them random to begin with."""
        file = self.file
        share = file.chunks // file.ranks
        chunks = {"i": file.chunks, "o": file.chunks, "s": file.scratch.get(rank, 0)}
        if file.collective == "allgather":
            chunks["i"] = share
        if file.collective == "reducescatter":
            chunks["o"] = share
        buffers = {}
        for name, number in chunks.items():
            buffers[name] = [self.random.randrange(PRIME) for _ in range(number)]
        return buffers

    def _locate(self, rank: int, address: Address) -> tuple[list[int], int]:
        """The memory behind an address; in place, input and output are one."""
        name, offset = address
        buffers = self.memory[rank]
        file = self.file
        if name not in buffers or not 0 <= offset < len(buffers[name]):
            raise Fault(f"rank {rank} leaves its buffer: {name}[{offset}]")
        if self.in_place:
            share = file.chunks // file.ranks
            if file.collective == "reducescatter" and name == "o":
                return buffers["i"], offset + rank * share
            if file.collective != "reducescatter" and name == "i":
                first = rank * share if file.collective == "allgather" else 0
                return buffers["o"], offset + first
        return buffers[name], offset

    def _load(self, rank: int, address: Address) -> int:
        buffer, offset = self._locate(rank, address)
        return buffer[offset]

    def _expected(self, rank: int) -> dict[Address, int]:
        """What must lie where at the end; root is rank 0, as in all public files."""
        collective = self.file.collective
        chunks = self.file.chunks
        share = chunks // self.file.ranks
        output = [Address("o", chunk) for chunk in range(chunks)]

        match collective:
            case "allreduce":
                return {address: self._total(address.offset) for address in output}
            case "reduce":
                if rank != 0:
                    return {}
                return {address: self._total(address.offset) for address in output}
            case "reducescatter":
                first = rank * share
                return {address: self._total(first + address.offset) for address in output[:share]}
            case "allgather" | "alltoall":
                first = rank * share if collective == "alltoall" else 0
                expected = {}
                for address in output:
                    owner = address.offset // share
                    expected[address] = self._input(owner, first + address.offset % share)
                return expected
            case "broadcast":
                return {address: self._input(0, address.offset) for address in output}
        raise Fault(f"nothing is known of the collective {collective}")

    def _input(self, owner: int, chunk: int) -> int:
        return self._load(owner, Address("i", chunk))

    def _total(self, chunk: int) -> int:
        return sum(self._input(owner, chunk) for owner in range(self.file.ranks)) % PRIME
