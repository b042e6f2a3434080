"""Which blocks an MSCCL++ barrier joins, and which barriers are none.

``barrier_id`` names a ``DeviceSyncer`` of the GPU (``concurrency_device.hpp``). Each block that
comes raises its counter by one, then looks until the counter is exactly ``num_threadblocks``; the
first to see that lets the next use begin with another counter. With a count of 1 a block only
brings its own threads together, whatever others do at that id.

So an id is a barrier if exactly ``num_threadblocks`` blocks use it, always with that count: each of
them waits for all of them, use by use. Fewer blocks never raise the counter so far, and a block
that comes once more than another one waits for ever; both are said in the program, as a wait for
what nobody does. With more blocks than the count, or with several counts, it depends on who comes
when: a counter that passes the count before anybody looks is never seen to be equal.
"""

from __future__ import annotations

from collections.abc import Sequence

from latecomer.verify.asynchronous.mscclpp_order import AWAITS_SIGNALS, Operation
from latecomer.verify.core.verdict import Counterexample, Result, refuted, unknown

READS_PACKETS = frozenset({"rppkt", "upkt", "respkt", "repkt", "recpkt", "recspkt"})
MAY_WAIT = AWAITS_SIGNALS | READS_PACKETS
"""Operations, beside barriers, that a block may stay at until others have done something."""


def joins_blocks(operation: Operation) -> bool:
    """Whether a block waits for others here; with a count of 1 it does not."""
    return operation.operation.name == "barrier" and operation.operation.joined != 1


class Barriers:
    """The barriers of one rank.

    Args:
        rank: whose they are.
        blocks: the operations of its blocks.

    Attributes:
        members: per barrier id, the numbers of the blocks that use it, with counts other than 1.
        wrong: what is refuted or unknown for all runs; None where the program says everything.
    """

    def __init__(self, rank: int, blocks: Sequence[Sequence[Operation]]) -> None:
        self.rank = rank
        self.members: dict[int, list[int]] = {}
        self._counts: dict[int, set[int]] = {}
        self._arrivals: dict[int, int] = {}
        for block, operations in enumerate(blocks):
            for operation in operations:
                if joins_blocks(operation):
                    self._add(block, operation)

        self._wrong_with: dict[int, Result | None] = {}
        for identity in sorted(self.members):
            self._wrong_with[identity] = self._judge(identity, blocks)
        wrong = [result for result in self._wrong_with.values() if result is not None]
        wrong.sort(key=lambda result: result.counterexample is None)  # what is refuted comes first
        self.wrong: Result | None = wrong[0] if wrong else None

    def _add(self, block: int, operation: Operation) -> None:
        identity = operation.operation.barrier
        members = self.members.setdefault(identity, [])
        if block not in members:
            members.append(block)
        self._counts.setdefault(identity, set()).add(operation.operation.joined)
        self._arrivals[identity] = self._arrivals.get(identity, 0) + 1

    def understood(self, identity: int) -> bool:
        """Whether each of its members waits at a barrier for all of them, use by use."""
        return self._wrong_with[identity] is None

    def never_full(self, identity: int) -> bool:
        """Whether a barrier waits for more blocks than ever come."""
        return max(self._counts[identity]) > len(self.members[identity])

    def _judge(self, identity: int, blocks: Sequence[Sequence[Operation]]) -> Result | None:
        """What is wrong with one id, unless the program says it."""
        counts = self._counts[identity]
        members = self.members[identity]
        arrivals = self._arrivals[identity]
        name = f"barrier {identity} of rank {self.rank}"
        if counts == {0}:
            return self._never_opens(identity, "0 blocks are waited for, and 1 has come")
        if max(counts) > arrivals:
            found = f"{max(counts)} blocks are waited for, and {arrivals} come"
            return self._never_opens(identity, found)
        if len(counts) > 1:
            several = " and ".join(str(count) for count in sorted(counts))
            return unknown(f"{name} has several counts: {several}")

        (count,) = counts
        if len(members) <= count:
            return None
        if arrivals % count:
            opens = arrivals // count
            found = f"{arrivals} arrivals, which open it {opens} times; the rest waits"
            return self._never_opens(identity, found)
        come_at_once = sum(_comes_by_itself(blocks[member], identity) for member in members)
        if come_at_once > count:
            found = f"{come_at_once} blocks can come before any of them looks: none sees {count}"
            return self._never_opens(identity, found)
        return unknown(f"{name} is for {count} blocks, and {len(members)} use it")

    def _never_opens(self, identity: int, found: str) -> Result:
        return refuted(
            Counterexample(
                property="deadlock_free",
                rank=self.rank,
                action=f"barrier {identity}",
                expected="every block that comes to it to go on",
                found=found,
            )
        )


def _comes_by_itself(operations: Sequence[Operation], identity: int) -> bool:
    """Whether a block comes to a barrier without waiting for anybody before."""
    for operation in operations:
        if joins_blocks(operation):
            return operation.operation.barrier == identity
        if operation.operation.name in MAY_WAIT:
            return False
    return False
