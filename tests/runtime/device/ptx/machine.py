"""All ranks: their memory, the kernels launched on each one's stream, and what can happen next.

Each rank has one stream. A kernel begins, at any time, when the one before it has ended; its blocks
are then all on the device. What can happen next is a *choice*: a rank begins its next kernel, a
group of threads runs on, a host raises its stop word.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.runtime.device.ptx.block import Block
from tests.runtime.device.ptx.group import Group
from tests.runtime.device.ptx.memory import Memory
from tests.runtime.device.ptx.order import BlockOrder
from tests.runtime.device.ptx.program import Program

BEGAN_NS = 1_000_000  # what the clock of rank 0 shows when its first kernel begins


@dataclass(frozen=True)
class KernelLaunch:
    """A kernel with its parameters, by name."""

    program: Program
    parameters: dict[str, int]


@dataclass
class RankRun:
    """How far a rank has come: ``launched`` kernels have begun, the last of them has ``blocks``."""

    queue: tuple[KernelLaunch, ...]
    launched: int = 0
    blocks: tuple[Block, ...] = ()
    past: list[tuple[Block, ...]] = field(default_factory=list)

    @property
    def is_idle(self) -> bool:
        """Whether no kernel runs."""
        return all(block.has_ended for block in self.blocks)

    @property
    def may_begin(self) -> bool:
        """Whether a kernel is next."""
        return self.is_idle and self.launched < len(self.queue)


class Machine:
    """The ranks.

    Args:
        memory: of all of them.
        queues: by rank, the kernels in the order of its stream.
        blocks: of each kernel.
        stop_words: by rank, the address.
        units: in how many groups of warps a block runs.
    """

    def __init__(
        self,
        memory: Memory,
        queues: list[tuple[KernelLaunch, ...]],
        blocks: int,
        stop_words: list[int],
        units: int = 1,
    ) -> None:
        self.memory = memory
        self.blocks = blocks
        self.units = units
        self.stop_words = stop_words
        total = len(queues) * blocks
        self.orders = [BlockOrder(i, i // blocks, total) for i in range(total)]
        self.ranks = [RankRun(queue) for queue in queues]
        self.stopped: set[int] = set()

    def copy(self) -> Machine:
        """Another one, the same."""
        other = object.__new__(Machine)
        other.__dict__ |= self.__dict__
        other.memory = self.memory.copy()
        other.orders = [order.copy() for order in self.orders]
        other.stopped = set(self.stopped)
        other.ranks = []
        for run in self.ranks:
            blocks = tuple(
                block.copy(other.memory, other.orders[block.order.number]) for block in run.blocks
            )
            past = [*run.past[:-1], blocks] if run.past else []
            other.ranks.append(RankRun(run.queue, run.launched, blocks, past))
        return other

    def key(self) -> tuple:
        """All of it, to tell states apart."""
        ranks = tuple(
            (run.launched, tuple(block.key() for block in run.blocks)) for run in self.ranks
        )
        orders = tuple(order.key() for order in self.orders)
        return self.memory.key(), orders, ranks, tuple(sorted(self.stopped))

    @property
    def has_ended(self) -> bool:
        """Whether all kernels of all ranks have."""
        return all(run.is_idle and not run.may_begin for run in self.ranks)

    def begin(self, rank: int) -> None:
        """Begin a rank's next kernel: after all accesses of the one before (8.9.4, API)."""
        run = self.ranks[rank]
        assert run.may_begin
        orders = self.orders[rank * self.blocks : (rank + 1) * self.blocks]
        for order in orders:
            order.end_launch()
        ended = [order.copy() for order in orders]
        for order in orders:
            order.begin_launch(ended)
        launch = run.queue[run.launched]
        run.launched += 1
        run.blocks = tuple(
            Block(
                program=launch.program,
                parameters=launch.parameters,
                index=index,
                blocks=self.blocks,
                memory=self.memory,
                order=order,
                units=self.units,
                now=BEGAN_NS * (1 + rank) + run.launched,
            )
            for index, order in enumerate(orders)
        )
        run.past.append(run.blocks)

    def groups(self) -> list[Group]:
        """All groups of threads that can run on."""
        return [
            group
            for run in self.ranks
            for block in run.blocks
            for group in block.groups
            if not group.is_waiting
        ]

    def stop(self, rank: int) -> None:
        """A host raises its stop word."""
        self.stopped.add(rank)
        self.memory.host_stores(self.stop_words[rank], 1)
