"""Which signal ends which wait in an MSCCL++ plan, and what threads of a block do too early.

Channels and semaphores count: the k-th wait at an end of a channel is ended by the k-th signal from
the other end. Which signal that is, is known before anything runs if all are given by one block,
or by blocks that semaphores put in an order; likewise the waits. Else that is refuted.

The threads of a block run apart between two ``nop`` or ``barrier``: only some give a signal or wait
for one. So a signal needs a ``nop`` between it and the data before it, data need one between
them and the wait before them, and so do two operations of which one writes what the other touches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cmp_to_key
from itertools import pairwise
from typing import NamedTuple

from verify.asynchronous.mscclpp_plan import Plan, PlanGpu, PlanOperation
from verify.core.verdict import PROVED, Counterexample, Result, refuted

PACKETS = frozenset(["ppkt", "cpkt", "upkt", "respkt", "repkt", "recpkt", "recspkt"])
"""Operations whose threads share the words of an area alike, so the same area in the same way."""
SIGNALS = frozenset({"signal", "rlxsignal"})
WAITS = frozenset({"wait", "rlxwait"})
PIPELINE_ROUNDS = 2
"""Rounds of a pipeline in a program; why they stand for any number: ``mscclpp_rounds``."""

SEVERAL_PLACES = -1
"""Of a cell that an operation has at several places of its areas."""

Key = tuple[str, int, int]
"""What is counted: ``channel`` or ``semaphore``, its rank, its number there."""


class Use(NamedTuple):
    """A place where something is signalled or waited for: block and operation, in flat order."""

    block: int
    position: int


class Operation(NamedTuple):
    """An operation of a block, pipelines unrolled; ``turn``: of the pipeline, or None."""

    operation: PlanOperation
    place: int
    turn: int | None


def flat(gpu: PlanGpu, rounds: int = PIPELINE_ROUNDS) -> list[list[Operation]]:
    """The operations of each block in their order, pipelines with so many rounds."""
    blocks = []
    for block in gpu.threadblocks:
        found: list[Operation] = []
        for place, outer in enumerate(block.ops):
            if outer.name == "pipeline":
                for turn in range(rounds):
                    found += [Operation(inner, place, turn) for inner in outer.ops]
            else:
                found.append(Operation(outer, place, None))
        blocks.append(found)
    return blocks


class Counting:
    """The numbers of all signals and waits.

    Attributes:
        signals, waits: per key, where it is signalled and waited for, in order.
        joined: semaphores that one block acquires as often as all others together release them, in
            a row: it goes on when all have released.
        unordered: keys of which nobody knows whose signal ends which wait; what is said of them.
        relaxed: uses of relaxed signals and waits, which order no data.
        wrong: the first thing that keeps these from being known; else PROVED.
    """

    def __init__(self, plan: Plan, blocks: list[list[list[Operation]]]) -> None:
        self.plan = plan
        self.signals: dict[Key, list[tuple[int, Use]]] = {}
        self.waits: dict[Key, list[tuple[int, Use]]] = {}
        self.joined: set[Key] = set()
        self.unordered: dict[Key, str] = {}
        self.relaxed: set[tuple[Key, int, Use]] = set()
        self.wrong: Result = PROVED
        for rank, of_rank in enumerate(blocks):
            for block, operations in enumerate(of_rank):
                for position, (operation, _, _) in enumerate(operations):
                    use = rank, Use(block, position)
                    for key in self.signalled(rank, block, operation):
                        self.signals.setdefault(key, []).append(use)
                        if operation.name == "rlxsignal":
                            self.relaxed.add((key, *use))
                    for key in self.awaited(rank, block, operation):
                        self.waits.setdefault(key, []).append(use)
                        if operation.name == "rlxwait":
                            self.relaxed.add((key, *use))
        for rank in range(len(plan.gpus)):
            self._order(rank)
        for key in sorted(self.signals.keys() | self.waits.keys()):
            if key[0] == "semaphore":
                self._share(key, blocks)
        for key in sorted(self.signals.keys() | self.waits.keys()):
            signals = len(self.signals.get(key, ()))
            waits = len(self.waits.get(key, ()))
            initial = self.initial(key)
            if initial and signals < waits <= signals + initial:
                found = f"{signals} releases and {waits} acquires: a later run waits for ever"
                self._refute(key[1], f"as many releases as acquires of {name_of(key)}", found)
            if signals > waits:
                found = f"{signals} signals and {waits} waits: the next run's waits end too early"
                self._refute(key[1], f"as many waits as signals for {name_of(key)}", found)

    def signalled(self, rank: int, block: int, operation: PlanOperation) -> Iterator[Key]:
        """What an operation raises."""
        if operation.name in SIGNALS and operation.channel_type == "memory":
            for local in operation.channel_ids:
                peer, there = other_end(self.plan, rank, self.channel(rank, block, local))
                yield "channel", peer, there
        elif operation.name == "sem_release":
            yield from (("semaphore", rank, number) for number in operation.semaphore_ids)

    def awaited(self, rank: int, block: int, operation: PlanOperation) -> Iterator[Key]:
        """What an operation waits for."""
        if operation.name in WAITS and operation.channel_type == "memory":
            for local in operation.channel_ids:
                yield "channel", rank, self.channel(rank, block, local)
        elif operation.name == "sem_acquire":
            yield from (("semaphore", rank, number) for number in operation.semaphore_ids)

    def channel(self, rank: int, block: int, local: int) -> int:
        """The GPU's number of a memory channel that a block calls ``local``."""
        return self.plan.gpus[rank].threadblocks[block].memory_channels()[local]

    def initial(self, key: Key) -> int:
        """Waits that need no signal."""
        if key[0] == "channel":
            return 0
        return self.plan.gpus[key[1]].semaphores[key[2]].init_value

    def _order(self, rank: int) -> None:
        """Put what several blocks of a rank do to one key into the order of its semaphores."""
        before = self._reach(rank)

        def sign(one: tuple[int, Use], other: tuple[int, Use]) -> int:
            return -1 if before(one[1], other[1]) else int(before(other[1], one[1]))

        for table in (self.signals, self.waits):
            for key, uses in table.items():
                if key[0] != "channel" or uses[0][0] != rank or len({u.block for _, u in uses}) < 2:
                    continue
                uses.sort(key=cmp_to_key(sign))
                for (_, one), (_, other) in pairwise(uses):
                    if not before(one, other):
                        found = f"blocks {one.block} and {other.block}, which nothing orders"
                        self._refute(rank, f"an order of the uses of {name_of(key)}", found)

    def _share(self, key: Key, blocks: list[list[list[Operation]]]) -> None:
        """Of a semaphore that several blocks release or acquire: a join, or in no known order."""
        releases = [use for _, use in self.signals.get(key, [])]
        acquires = [use for _, use in self.waits.get(key, [])]
        releasing = {use.block for use in releases}
        acquiring = {use.block for use in acquires}
        if max(len(releasing), len(acquiring)) < 2:
            return

        if not self.initial(key) and len(acquiring) == 1 and len(releases) == len(acquires):
            first = acquires[0]
            last = acquires[-1]
            between = blocks[key[1]][first.block][first.position : last.position + 1]
            if all(now.operation.name in {"sem_acquire", "nop"} for now in between):
                self.joined.add(key)
                return
        several = "release" if len(releasing) > 1 else "acquire"
        self.unordered[key] = f"several blocks {several} {name_of(key)}, in no known order"

    def orders_data(self, key: Key, number: int) -> bool:
        """Whether the signal of this number and the wait that it ends order data, too."""
        pair = (self.signals[key][number], self.waits[key][number])
        return not any((key, *use) in self.relaxed for use in pair)

    def _reach(self, rank: int) -> Callable[[Use, Use], bool]:
        """Whether one place comes before another, by the order of blocks and by semaphores."""
        edges: dict[int, list[tuple[Use, Use]]] = {}
        for key, releases in self.signals.items():
            acquires = self.waits.get(key, [])[self.initial(key) :]
            if key[:2] != ("semaphore", rank) or any(
                len({use.block for _, use in uses}) > 1 for uses in (releases, acquires)
            ):
                continue
            for (_, one), (_, other) in zip(releases, acquires, strict=False):
                edges.setdefault(one.block, []).append((one, other))

        def before(one: Use, other: Use) -> bool:
            first = {one.block: one.position + (one.block == other.block)}
            queue = [one.block]
            while queue:
                block = queue.pop()
                for release, acquire in edges.get(block, ()):
                    known = first.get(acquire.block)
                    if release.position >= first[block] and (
                        known is None or acquire.position < known
                    ):
                        first[acquire.block] = acquire.position
                        queue.append(acquire.block)
            return other.block in first and other.position >= first[other.block]

        return before

    def _refute(self, rank: int, expected: str, found: str) -> None:
        if self.wrong is PROVED:
            self.wrong = refuted(
                Counterexample(
                    property="connections_match", rank=rank, expected=expected, found=found
                )
            )


def other_end(plan: Plan, rank: int, channel: int) -> tuple[int, int]:
    """Where a channel leads: those of two ranks belong together in their order; -1: nowhere."""
    peers = plan.gpus[rank].peers()
    if not 0 <= channel < len(peers):
        return rank, -1
    nth = peers[:channel].count(peers[channel])
    theirs = [n for n, peer in enumerate(plan.gpus[peers[channel]].peers()) if peer == rank]
    return peers[channel], theirs[nth] if nth < len(theirs) else -1


def name_of(key: Key) -> str:
    """A counter as people write it."""
    return f"{key[0]} {key[2]} of rank {key[1]}"


Touched = Callable[[PlanOperation, int | None], tuple[dict[int, int], dict[int, int]]]
"""What an operation reads and writes, packets left out: cell to its place in its area. Empty where
it moves no data."""


def synchronized(
    rank: int, block: str, operations: list[Operation], touched: Touched
) -> Result | None:
    """The first ``nop`` that is missing in a block; None if none is."""
    segment: list[tuple[Operation, dict[int, int], dict[int, int]]] = []
    for now in operations:
        name = now.operation.name
        if name in {"nop", "barrier"}:
            segment = []
            continue
        reads, writes = touched(now.operation, now.turn)
        if len(set(now.operation.channel_ids)) < len(now.operation.channel_ids):
            twice = "each channel of an operation to be another one"
            return _missing(rank, block, now, twice, "one is there twice, for two threads at once")
        signals = name in SIGNALS | {"sem_release"}
        moves = bool(now.operation.src_buff)
        for before, read, written in segment:
            earlier = before.operation.name
            waited = earlier in WAITS | {"sem_acquire"}
            moved = bool(before.operation.src_buff)
            same = {earlier, name} <= PACKETS and _same_threads(read | written, reads | writes)
            met = written.keys() & (reads.keys() | writes.keys()) or read.keys() & writes.keys()
            if (
                (met and not same)
                or (signals and moved)
                or (waited and moves)
                or _apart(before.operation, now.operation)
            ):
                expected = f"a nop between it and {earlier} (operation {before.place})"
                found = "none, so threads of the block do one before others do the other"
                return _missing(rank, block, now, expected, found)
        segment.append((now, reads, writes))
    return None


def _same_threads(one: dict[int, int], other: dict[int, int]) -> bool:
    """Whether what two operations share lies at the same places of their areas.

    Then the same threads of the block have it, one operation after the other.
    """
    shared = one.keys() & other.keys()
    return all(one[cell] == other[cell] != SEVERAL_PLACES for cell in shared)


def _missing(rank: int, block: str, now: Operation, expected: str, found: str) -> Result:
    return refuted(
        Counterexample(
            property="synchronized",
            rank=rank,
            position=now.place,
            action=f"{block}: {now.operation.name}",
            expected=expected,
            found=found,
        )
    )


def _apart(one: PlanOperation, other: PlanOperation) -> bool:
    """Whether different threads give signals or wait, one of which must come before the other.

    Thread number i of a block looks after channel i, or semaphore i, of an operation.
    """
    threads = max(map(_threads, (one, other)))
    if one.name in WAITS | {"sem_acquire"} and other.name in SIGNALS | {"sem_release"}:
        return threads > 1
    if {one.name, other.name} <= SIGNALS or {one.name, other.name} <= WAITS:
        thread_of = {channel: thread for thread, channel in enumerate(other.channel_ids)}
        return any(
            thread_of.get(channel, thread) != thread
            for thread, channel in enumerate(one.channel_ids)
        )
    return False


def _threads(operation: PlanOperation) -> int:
    """How many threads give signals or wait in an operation."""
    return len(operation.channel_ids) + len(operation.semaphore_ids)
