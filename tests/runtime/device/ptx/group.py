"""A group: threads of a block that are at the same instruction; each is one call for all of them.

A branch on which they do not agree splits the group. It runs on until its next strong access, or to
a barrier or its end: nothing else of it can be told apart from outside, if there is no race; and
races are found by order (:mod:`order`), however groups take turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tests.runtime.device.ptx.accesses import copies_among
from tests.runtime.device.ptx.arithmetic import UNSIGNED, Value
from tests.runtime.device.ptx.memory import Chooser, Memory
from tests.runtime.device.ptx.order import MANY, BlockOrder
from tests.runtime.device.ptx.program import Barrier, Branch, Program, Return, Strong
from tests.runtime.device.ptx.regions import Wrong
from tests.runtime.device.ptx.shared import Shared

LONGEST = 5_000  # turns of a group until its next strong access: it hangs, if it needs more

ALL = slice(None)
"""Of a group: all its threads."""


@dataclass(frozen=True)
class Event:
    """What a block did in global memory: ``what`` is load, store, exchange, acquire, relaxed.

    ``addresses`` of the threads that did it, of one ``unit``, after so many ``barriers``; ``size``
    bytes each (copies are left out); ``value`` of a strong access, or the first thread's.
    """

    what: str
    barriers: int
    unit: int
    addresses: np.ndarray
    size: int
    value: int = 0


class Surroundings(Protocol):
    """What a group has of its block (:mod:`block`)."""

    program: Program
    memory: Memory
    order: BlockOrder
    shared: Shared
    threads: int
    units: int
    groups: list[Group]

    def clock(self) -> int:
        """``%globaltimer``."""

    events: list[Event]
    barriers: int

    def barrier(self) -> bool:
        """Whether all threads have come to the barrier."""

    def end(self, group: Group) -> None:
        """A group's threads end."""


class Group:
    """Threads at one instruction, ``at``; their registers.

    ``unit`` is that which it began in: where a group was split, the barrier joins those of a unit.
    ``strong`` is the access that it is about to do, if that was reached.
    """

    def __init__(
        self,
        block: Surroundings,
        unit: int,
        threads: np.ndarray,
        registers: list[Value | None],
        at: int,
    ) -> None:
        self.block = block
        self.unit = unit
        self.threads = threads
        self.registers = registers
        self.at = at
        self.strong: Strong | None = None
        self.is_waiting = False
        self.polls: dict[int, int] = {}  # address -> the newest message seen, since it last acted
        self.stutters = 0

    def copy(self, block: Surroundings) -> Group:
        """Another one, the same, of another block."""
        other = object.__new__(Group)
        other.__dict__ |= self.__dict__
        other.block = block
        other.registers = list(self.registers)
        other.polls = dict(self.polls)
        return other

    def key(self) -> tuple:
        """All of it that still matters, to tell states apart."""
        values = [self.registers[place] for place in self.block.program.live(self.at)]
        registers = tuple(v.tobytes() if isinstance(v, np.ndarray) else v for v in values)
        return self.at, self.is_waiting, self.threads.tobytes(), registers

    def active(self, guard: int, negated: bool) -> np.ndarray | slice | None:
        """Of its threads those for which a guard holds: ALL, a mask, or nothing for none."""
        if guard < 0:
            return ALL
        condition = self.registers[guard]
        if condition is None:
            raise Wrong("a guard that was never set")
        if isinstance(condition, np.ndarray):
            where = ~condition if negated else condition
            if where.all():
                return ALL
            return where if where.any() else None
        return ALL if condition != negated else None

    def advance(self, choose: Chooser) -> None:
        """Do the strong access that it is at, if there is one; run on to the next."""
        if self.strong is not None:
            self._access(self.strong, choose)
            self.strong = None
            self.at += 1
        program = self.block.program
        for _ in range(LONGEST):
            steps, self.at, turn = program.straight(self.at)
            try:
                for step in steps:
                    step(self)
            except TypeError as error:
                raise Wrong(f"a register that was never set ({error})") from error
            if type(turn) is Branch:
                self._branch(turn)
            elif type(turn) is Strong:
                self.strong = turn
                return
            elif type(turn) is Barrier:
                self.is_waiting = True
                if not self.block.barrier():
                    return
                if self not in self.block.groups:
                    return  # it was joined with another
            else:
                assert type(turn) is Return
                self.block.end(self)
                return
        raise Wrong("a hang: a loop that looks at nothing")

    def _branch(self, turn: Branch) -> None:
        where = self.active(turn.guard, turn.negated)
        if where is None:
            self.at += 1
        elif where is ALL:
            self.at = turn.to
        else:
            other = self._split_off(where)
            other.at = turn.to
            self.at += 1

    def _split_off(self, where: np.ndarray) -> Group:
        """A group of some of the threads, which leave this one."""
        registers = [
            value[where] if isinstance(value, np.ndarray) else value for value in self.registers
        ]
        other = Group(self.block, self.unit, self.threads[where], registers, self.at)
        self.registers = [
            value[~where] if isinstance(value, np.ndarray) else value for value in self.registers
        ]
        self.threads = self.threads[~where]
        self.block.groups.append(other)
        return other

    def _note(self, what: str, addresses: np.ndarray, size: int, value: int = 0) -> None:
        block = self.block
        block.events.append(Event(what, block.barriers, self.unit, addresses, size, value))

    def _acts(self) -> None:
        self.polls.clear()
        self.stutters = 0

    # -- global memory

    def _addresses(self, active: np.ndarray | slice, base: Value | None, offset: int) -> np.ndarray:
        if base is None:
            raise Wrong("an address that was never set")
        if isinstance(base, np.ndarray):
            return base[active] + np.uint64(offset & (1 << 64) - 1)
        count = len(self.threads[active])
        return np.full(count, (base + offset) & (1 << 64) - 1, np.uint64)

    def ld_global(
        self,
        number: int,
        active: np.ndarray | slice,
        base: Value | None,
        offset: int,
        width: int,
        places: Sequence[int],
    ) -> None:
        """A load of one word for each place; guarded-off threads keep what they have."""
        block = self.block
        if active is ALL and isinstance(base, int):
            constant = block.memory.constant(block.order, base + offset, width, len(places))
            if constant is not None:
                for place, value in zip(places, constant, strict=True):
                    self.registers[place] = value
                return
        addresses = self._addresses(active, base, offset)
        threads = self.threads[active]
        copies = self._copies(number, threads, addresses)
        results = block.memory.load(block.order, threads, addresses, width, len(places), copies)
        if copies is not None:
            addresses = addresses[~copies]
        if len(addresses):
            self._note("load", addresses, width * len(places))
        for place, result in zip(places, results, strict=True):
            self._write(place, active, result)

    def _copies(self, number: int, threads: np.ndarray, addresses: np.ndarray) -> np.ndarray | None:
        """Which of these loads are copies (``memory``).

        Where a block runs in parts, a part does not see it: that is known from a block that ran as
        one, of which each thread's load was a copy or was not.
        """
        known = self.block.program.copies
        if self.block.units == 1:
            copies = copies_among(addresses)
            if copies is not None:
                of_all = known.setdefault(number, np.zeros(self.block.threads, np.bool_))
                of_all[threads[copies]] = True
            return copies
        if number not in known:
            return None
        copies = known[number][threads]
        return copies if copies.any() else None

    def _write(self, place: int, active: np.ndarray | slice, result: np.ndarray) -> None:
        if active is ALL:
            self.registers[place] = result
            return
        before = self.registers[place]
        if before is None:
            before = 0
        merged = np.full(len(self.threads), before, result.dtype)
        merged[active] = result
        self.registers[place] = merged

    def st_global(
        self,
        number: int,
        active: np.ndarray | slice,
        base: Value | None,
        offset: int,
        width: int,
        places: Sequence[int],
    ) -> None:
        """A store of one word from each place."""
        del number
        self._acts()
        addresses = self._addresses(active, base, offset)
        values = []
        for place in places:
            value = self.registers[place]
            if value is None:
                raise Wrong("a store of a register that was never set")
            if isinstance(value, np.ndarray):
                values.append(value[active])
            else:
                values.append(np.full(len(addresses), value, UNSIGNED[8 * width]))
        block = self.block
        block.memory.store(block.order, self.threads[active], addresses, width, values)
        self._note("store", addresses, width * len(places), int(values[0][0]))

    def _access(self, strong: Strong, choose: Chooser) -> None:
        """A strong access, of one thread after another."""
        active = self.active(strong.guard, strong.negated)
        if active is None:
            return
        addresses = self._addresses(active, self.registers[strong.base], strong.offset)
        threads = self.threads[active]
        found = np.zeros(len(threads), np.uint32)
        values = None if strong.value is None else self.registers[strong.value]
        for i, (thread, address) in enumerate(
            zip(threads.tolist(), addresses.tolist(), strict=True)
        ):
            if strong.value is None:
                found[i] = self._strong_load(strong, thread, address, choose)
            else:
                value = int(values[active][i] if isinstance(values, np.ndarray) else values)
                found[i] = self._exchange(strong, thread, address, value)
        self._write(strong.target, active, found)

    def _strong_load(self, strong: Strong, thread: int, address: int, choose: Chooser) -> int:
        block = self.block
        value = block.memory.strong_load(
            block.order, thread, address, strong.scope, strong.orders, choose
        )
        seen = block.memory.words[address].seen[block.order.number, thread]
        if self.polls.get(address) == seen:
            self.stutters += 1
        else:
            self.polls[address] = seen
            self.stutters = 0
        self._note("acquire" if strong.orders else "relaxed", np.array([address]), 4, value)
        return value

    def _exchange(self, strong: Strong, thread: int, address: int, value: int) -> int:
        self._acts()
        block = self.block
        self._note("exchange", np.array([address]), 4, value)
        return block.memory.exchange(
            block.order, thread, address, value, strong.scope, strong.orders
        )

    # -- shared memory

    def ld_shared(
        self,
        number: int,
        active: np.ndarray | slice,
        base: Value | None,
        offset: int,
        width: int,
        places: Sequence[int],
    ) -> None:
        """A load, from one address: our builds have one word there."""
        del number
        threads = self.threads[active]
        value = int(self._shared_word(threads, base, offset, width, is_store=False)[0])
        for place in places:
            if active is ALL:
                self.registers[place] = value
            else:
                self._write(place, active, np.full(len(threads), value, np.uint32))

    def st_shared(
        self,
        number: int,
        active: np.ndarray | slice,
        base: Value | None,
        offset: int,
        width: int,
        places: Sequence[int],
    ) -> None:
        """A store to one address."""
        del number
        shared_word = self._shared_word(self.threads[active], base, offset, width, is_store=True)
        for place in places:
            value = self.registers[place]
            if value is None:
                raise Wrong("a store of a register that was never set")
            word = value[active][0] if isinstance(value, np.ndarray) else value
            shared_word[0] = word

    def _shared_word(
        self, threads: np.ndarray, base: Value | None, offset: int, width: int, *, is_store: bool
    ) -> np.ndarray:
        """The word that these threads access, as a view of one element."""
        assert width == 4
        assert isinstance(base, int)
        at = base + offset
        thread = int(threads[0]) if len(threads) == 1 else MANY
        self.block.shared.access(thread, at, width, is_store=is_store)
        return self.block.shared.bytes[at : at + width].view(np.uint32)
