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

from latecomer.verify.asynchronous.mscclpp_plan import Plan, PlanGpu, PlanOperation
from latecomer.verify.core.verdict import PROVED, Counterexample, Result, refuted

PACKETS = frozenset(["ppkt", "cpkt", "upkt", "respkt", "repkt", "recpkt", "recspkt"])
"""Operations whose threads share the words of an area alike, so the same area in the same way."""
SIGNALS = frozenset({"signal", "rlxsignal"})
WAITS = frozenset({"wait", "rlxwait"})
GIVES_SIGNALS = SIGNALS | {"sem_release"}
AWAITS_SIGNALS = WAITS | {"sem_acquire"}
PIPELINE_ROUNDS = 2
"""Rounds of a pipeline in a program; why they stand for any number: ``mscclpp_rounds``."""

SEVERAL_OFFSETS = -1
"""Of a cell that an operation has at several places of its areas."""

Key = tuple[str, int, int]
"""What is counted: ``channel`` or ``semaphore``, its rank, its number there."""


class Use(NamedTuple):
    """Where something is signalled or waited for: by the ``nth`` operation of a block, from 0."""

    block: int
    nth: int


class Operation(NamedTuple):
    """An operation of a block, pipelines unrolled.

    Attributes:
        operation: as the plan has it.
        position: in its block of the plan; within a pipeline, the pipeline's.
        round: of the pipeline, from 0; None outside of pipelines.
    """

    operation: PlanOperation
    position: int
    round: int | None


def unrolled(gpu: PlanGpu, rounds: int = PIPELINE_ROUNDS) -> list[list[Operation]]:
    """The operations of each block in their order, pipelines with so many rounds."""
    blocks = []
    for block in gpu.threadblocks:
        operations: list[Operation] = []
        for position, outer in enumerate(block.ops):
            if outer.name == "pipeline":
                for number in range(rounds):
                    operations += [Operation(inner, position, number) for inner in outer.ops]
            else:
                operations.append(Operation(outer, position, None))
        blocks.append(operations)
    return blocks


class Counting:
    """The numbers of all signals and waits.

    Args:
        plan: whose they are.
        blocks: per rank, the operations of its blocks.

    Attributes:
        signals, waits: per key, where it is signalled and waited for (rank, use), in order.
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

        for rank, blocks_of_rank in enumerate(blocks):
            for block, operations in enumerate(blocks_of_rank):
                for index, unrolled_operation in enumerate(operations):
                    self._add(rank, Use(block, index), unrolled_operation.operation)
        for rank in range(len(plan.gpus)):
            self._order(rank)
        for key in self._keys():
            if key[0] == "semaphore":
                self._join_or_give_up(key, blocks)
        for key in self._keys():
            self._require_all_used_up(key)

    def _add(self, rank: int, use: Use, operation: PlanOperation) -> None:
        """Count what an operation signals and waits for."""
        for key in self.signalled(rank, use.block, operation):
            self.signals.setdefault(key, []).append((rank, use))
            if operation.name == "rlxsignal":
                self.relaxed.add((key, rank, use))
        for key in self.awaited(rank, use.block, operation):
            self.waits.setdefault(key, []).append((rank, use))
            if operation.name == "rlxwait":
                self.relaxed.add((key, rank, use))

    def _keys(self) -> list[Key]:
        return sorted(self.signals.keys() | self.waits.keys())

    def signalled(self, rank: int, block: int, operation: PlanOperation) -> Iterator[Key]:
        """What an operation raises."""
        if operation.name in SIGNALS and operation.channel_type == "memory":
            for channel_of_block in operation.channel_ids:
                channel = self.channel(rank, block, channel_of_block)
                peer, channel_of_peer = other_end(self.plan, rank, channel)
                yield "channel", peer, channel_of_peer
        elif operation.name == "sem_release":
            for number in operation.semaphore_ids:
                yield "semaphore", rank, number

    def awaited(self, rank: int, block: int, operation: PlanOperation) -> Iterator[Key]:
        """What an operation waits for."""
        if operation.name in WAITS and operation.channel_type == "memory":
            for channel_of_block in operation.channel_ids:
                yield "channel", rank, self.channel(rank, block, channel_of_block)
        elif operation.name == "sem_acquire":
            for number in operation.semaphore_ids:
                yield "semaphore", rank, number

    def channel(self, rank: int, block: int, channel_of_block: int) -> int:
        """The GPU's number of a memory channel, by the number that a block has for it."""
        return self.plan.gpus[rank].threadblocks[block].memory_channels()[channel_of_block]

    def initial(self, key: Key) -> int:
        """Waits that need no signal."""
        kind, rank, number = key
        if kind == "channel":
            return 0
        return self.plan.gpus[rank].semaphores[number].init_value

    def _order(self, rank: int) -> None:
        """Put what several blocks of a rank do to one key into the order of its semaphores."""
        before = self._order_of_uses(rank)

        def compare(first: tuple[int, Use], second: tuple[int, Use]) -> int:
            if before(first[1], second[1]):
                return -1
            return int(before(second[1], first[1]))

        for table in (self.signals, self.waits):
            for key, uses in table.items():
                blocks = {use.block for _, use in uses}
                if key[0] != "channel" or uses[0][0] != rank or len(blocks) < 2:
                    continue
                uses.sort(key=cmp_to_key(compare))
                for (_, earlier), (_, later) in pairwise(uses):
                    if not before(earlier, later):
                        pair = f"blocks {earlier.block} and {later.block}"
                        expected = f"an order of the uses of {name_of(key)}"
                        self._refute(rank, expected, f"{pair}, which nothing orders")

    def _join_or_give_up(self, key: Key, blocks: list[list[list[Operation]]]) -> None:
        """Of a semaphore that several blocks release or acquire: a join, or in no known order."""
        releases = [use for _, use in self.signals.get(key, [])]
        acquires = [use for _, use in self.waits.get(key, [])]
        releasing_blocks = {use.block for use in releases}
        acquiring_blocks = {use.block for use in acquires}
        if max(len(releasing_blocks), len(acquiring_blocks)) < 2:
            return

        if not self.initial(key) and len(acquiring_blocks) == 1 and len(releases) == len(acquires):
            first = acquires[0]
            last = acquires[-1]
            rank = key[1]
            in_between = blocks[rank][first.block][first.nth : last.nth + 1]
            if all(o.operation.name in {"sem_acquire", "nop"} for o in in_between):
                self.joined.add(key)
                return
        verb = "release" if len(releasing_blocks) > 1 else "acquire"
        self.unordered[key] = f"several blocks {verb} {name_of(key)}, in no known order"

    def _require_all_used_up(self, key: Key) -> None:
        """Signals that are left over, or credits that are lacking, meet the next run."""
        signals = len(self.signals.get(key, ()))
        waits = len(self.waits.get(key, ()))
        initial = self.initial(key)
        rank = key[1]
        if initial and signals < waits <= signals + initial:
            expected = f"as many releases as acquires of {name_of(key)}"
            found = f"{signals} releases and {waits} acquires: a later run waits for ever"
            self._refute(rank, expected, found)
        if signals > waits:
            expected = f"as many waits as signals for {name_of(key)}"
            found = f"{signals} signals and {waits} waits: the next run's waits end too early"
            self._refute(rank, expected, found)

    def orders_data(self, key: Key, number: int) -> bool:
        """Whether the signal of this number and the wait that it ends order data, too."""
        signal = (key, *self.signals[key][number])
        wait = (key, *self.waits[key][number])
        return signal not in self.relaxed and wait not in self.relaxed

    def _order_of_uses(self, rank: int) -> Callable[[Use, Use], bool]:
        """Whether one use comes before another, by the order of blocks and by semaphores."""
        # Block -> (its release, the acquire that it ends), of semaphores whose k-th acquire is
        # known to be ended by the k-th release.
        acquired_after: dict[int, list[tuple[Use, Use]]] = {}
        for key, releases in self.signals.items():
            acquires = self.waits.get(key, [])[self.initial(key) :]
            if key[:2] != ("semaphore", rank) or _of_several_blocks(releases):
                continue
            if _of_several_blocks(acquires):
                continue
            for (_, release), (_, acquire) in zip(releases, acquires, strict=False):
                acquired_after.setdefault(release.block, []).append((release, acquire))

        def before(earlier: Use, later: Use) -> bool:
            # Per block reached: its first operation that comes after ``earlier``, or is it.
            first_index = {earlier.block: earlier.nth + (earlier.block == later.block)}
            queue = [earlier.block]
            while queue:
                block = queue.pop()
                for release, acquire in acquired_after.get(block, ()):
                    if release.nth < first_index[block]:
                        continue
                    first = first_index.get(acquire.block)
                    if first is None or acquire.nth < first:
                        first_index[acquire.block] = acquire.nth
                        queue.append(acquire.block)
            return later.block in first_index and later.nth >= first_index[later.block]

        return before

    def _refute(self, rank: int, expected: str, found: str) -> None:
        if self.wrong is PROVED:
            self.wrong = refuted(
                Counterexample(
                    property="connections_match", rank=rank, expected=expected, found=found
                )
            )


def _of_several_blocks(uses: list[tuple[int, Use]]) -> bool:
    return len({use.block for _, use in uses}) > 1


def other_end(plan: Plan, rank: int, channel: int) -> tuple[int, int]:
    """Where a channel leads: those of two ranks belong together in their order; -1: nowhere."""
    peers = plan.gpus[rank].peers()
    if not 0 <= channel < len(peers):
        return rank, -1
    peer = peers[channel]
    nth = peers[:channel].count(peer)
    peers_of_peer = plan.gpus[peer].peers()
    channels_back = [number for number, back in enumerate(peers_of_peer) if back == rank]
    return peer, channels_back[nth] if nth < len(channels_back) else -1


def name_of(key: Key) -> str:
    """A counter as people write it."""
    kind, rank, number = key
    return f"{kind} {number} of rank {rank}"


class Touched(NamedTuple):
    """The cells that an operation reads and writes, packets left out.

    Each with its offset in its area, or ``SEVERAL_OFFSETS``. Empty where it moves no data.
    """

    reads: dict[int, int]
    writes: dict[int, int]

    def conflicts_with(self, other: Touched) -> bool:
        """Whether one of two operations writes what the other touches."""
        others = other.reads.keys() | other.writes.keys()
        return bool(self.writes.keys() & others or self.reads.keys() & other.writes.keys())

    def by_same_threads(self, other: Touched) -> bool:
        """Whether what two operations share lies at the same offsets of their areas.

        Then the same threads of the block have it, one operation after the other.
        """
        mine = self.reads | self.writes
        others = other.reads | other.writes
        shared = mine.keys() & others.keys()
        return all(mine[cell] == others[cell] != SEVERAL_OFFSETS for cell in shared)


def synchronized(
    rank: int,
    block: str,
    operations: list[Operation],
    touched: Callable[[Operation], Touched],
) -> Result | None:
    """The first ``nop`` that is missing in a block; None if none is.

    Args:
        rank: of the block; ``block`` is its name.
        operations: of the block, in order.
        touched: what an operation reads and writes.
    """
    since_nop: list[tuple[Operation, Touched]] = []
    for current in operations:
        operation = current.operation
        if operation.name in {"nop", "barrier"}:
            since_nop = []
            continue
        if len(set(operation.channel_ids)) < len(operation.channel_ids):
            return _refuted(
                rank,
                block,
                current,
                expected="each channel of an operation to be another one",
                found="one is there twice, for two threads at once",
            )

        cells = touched(current)
        for before, cells_before in since_nop:
            if _needs_nop(before.operation, cells_before, operation, cells):
                name = before.operation.name
                return _refuted(
                    rank,
                    block,
                    current,
                    expected=f"a nop between it and {name} (operation {before.position})",
                    found="none, so threads of the block do one before others do the other",
                )
        since_nop.append((current, cells))
    return None


def _needs_nop(
    before: PlanOperation, cells_before: Touched, after: PlanOperation, cells_after: Touched
) -> bool:
    """Whether threads of a block have to come together between two operations."""
    if before.src_buff and after.name in GIVES_SIGNALS:
        return True
    if before.name in AWAITS_SIGNALS and after.src_buff:
        return True
    if _by_different_threads(before, after):
        return True
    if not cells_before.conflicts_with(cells_after):
        return False
    both_packets = {before.name, after.name} <= PACKETS
    return not (both_packets and cells_before.by_same_threads(cells_after))


def _by_different_threads(before: PlanOperation, after: PlanOperation) -> bool:
    """Whether different threads give signals or wait, one of which must come before the other.

    Thread number i of a block looks after channel i, or semaphore i, of an operation.
    """
    if before.name in AWAITS_SIGNALS and after.name in GIVES_SIGNALS:
        return max(_threads(before), _threads(after)) > 1
    names = {before.name, after.name}
    if names <= SIGNALS or names <= WAITS:
        thread_after = {channel: thread for thread, channel in enumerate(after.channel_ids)}
        for thread, channel in enumerate(before.channel_ids):
            if thread_after.get(channel, thread) != thread:
                return True
    return False


def _threads(operation: PlanOperation) -> int:
    """How many threads give signals or wait in an operation."""
    return len(operation.channel_ids) + len(operation.semaphore_ids)


def _refuted(rank: int, block: str, current: Operation, expected: str, found: str) -> Result:
    return refuted(
        Counterexample(
            property="synchronized",
            rank=rank,
            position=current.position,
            action=f"{block}: {current.operation.name}",
            expected=expected,
            found=found,
        )
    )
