"""A block: its groups of threads, and the barrier.

In the beginning a block is one group, or several of some warps each, which then run at their own
pace. What a branch has split is put together again at the barrier.

The barrier (PTX ISA 9.7.13.1): ``bar.sync`` is ``barrier.sync.aligned``, so that all threads of a
block have to come to the same one; anything else is undefined there, and an error here.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from tests.runtime.device.ptx.arithmetic import UNSIGNED, Value
from tests.runtime.device.ptx.group import Event, Group
from tests.runtime.device.ptx.memory import Memory
from tests.runtime.device.ptx.order import BlockOrder
from tests.runtime.device.ptx.program import Program
from tests.runtime.device.ptx.regions import Wrong
from tests.runtime.device.ptx.shared import Shared

WARP = 32


class Block:
    """One block of one launch.

    Args:
        program: what it runs, with ``parameters`` by name.
        index: among the ``blocks`` of its launch.
        order: its place in causality order.
        units: in how many groups of warps it runs, at least.
        now: the clock of its device.
    """

    def __init__(
        self,
        program: Program,
        parameters: dict[str, int],
        index: int,
        blocks: int,
        memory: Memory,
        order: BlockOrder,
        units: int,
        now: int,
    ) -> None:
        self.program = program
        self.index = index
        self.memory = memory
        self.order = order
        self.shared = Shared()
        self.threads = program.text.threads
        self.units = min(units, self.threads // WARP)
        self.now = now
        self.groups: list[Group] = []
        self.events: list[Event] = []
        self.barriers = 0
        special = {"%ctaid.x": index, "%nctaid.x": blocks}
        registers = list(program.initial)
        for name, value in (parameters | special).items():
            registers[program.places[name]] = value
        warps = self.threads // WARP
        borders = [warps * i // self.units * WARP for i in range(self.units + 1)]
        for unit, (first, end) in enumerate(pairwise(borders)):
            threads = np.arange(first, end)
            own = list(registers)
            own[program.places["%tid.x"]] = threads.astype(np.uint32)
            self.groups.append(Group(self, unit, threads, own, 0))

    def copy(self, memory: Memory, order: BlockOrder) -> Block:
        """Another one, the same, with another memory and order."""
        other = object.__new__(Block)
        other.__dict__ |= self.__dict__
        other.memory = memory
        other.order = order
        other.shared = self.shared.copy()
        other.events = list(self.events)
        other.groups = [group.copy(other) for group in self.groups]
        return other

    def key(self) -> tuple:
        """All of it, to tell states apart."""
        return self.index, self.shared.key(), tuple(group.key() for group in self.groups)

    def clock(self) -> int:
        """``%globaltimer`` (10.28)."""
        return self.now

    @property
    def has_ended(self) -> bool:
        """Whether all its threads have."""
        return not self.groups

    def end(self, group: Group) -> None:
        """A group's threads end."""
        self.groups.remove(group)
        if any(other.is_waiting for other in self.groups):
            raise Wrong("threads end while others wait at a barrier")

    def barrier(self) -> bool:
        """Whether all threads have come; they go on then, at the instruction that follows."""
        if not all(group.is_waiting for group in self.groups):
            return False
        if len({group.at for group in self.groups}) > 1 or self._present() < self.threads:
            raise Wrong("not all threads of a block come to the same barrier")
        self.barriers += 1
        self.memory.settle(self.order)
        self.order.barrier()
        self.shared.barrier()
        for group in self.groups:
            group.is_waiting = False
            group.at += 1
        if len(self.groups) > self.units:
            self._join()
        return True

    def _present(self) -> int:
        return sum(len(group.threads) for group in self.groups)

    def _join(self) -> None:
        """Put together again what has been split."""
        units: dict[int, list[Group]] = {}
        for group in self.groups:
            units.setdefault(group.unit, []).append(group)
        self.groups = [
            parts[0] if len(parts) == 1 else self._joined(parts) for parts in units.values()
        ]

    def _joined(self, parts: list[Group]) -> Group:
        threads = np.concatenate([part.threads for part in parts])
        places = np.argsort(threads)
        registers: list[Value | None] = []
        columns = zip(*(part.registers for part in parts), strict=True)
        for bits, values in zip(self.program.bits, columns, strict=True):
            first = values[0]
            if all(not isinstance(v, np.ndarray) and v == first for v in values):
                registers.append(first)
                continue
            kind = UNSIGNED[bits]
            arrays = [
                v if isinstance(v, np.ndarray) else np.full(len(part.threads), v or 0, kind)
                for v, part in zip(values, parts, strict=True)
            ]
            registers.append(np.concatenate(arrays)[places])
        first_part = parts[0]
        return Group(self, first_part.unit, threads[places], registers, first_part.at)
