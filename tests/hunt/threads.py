"""All interleavings of threads that wait for counters, semaphores and barriers of all sorts.

Unlike in interleavings.py, who ends a wait may depend on the interleaving here: several threads can
take from one semaphore, and MSCCL++'s ``DeviceSyncer`` opens when its counter *is* the number it
waits for. So states are explored one by one, with the code of the device's counters as it is.

One thread alone is moved where that is enough: where nothing that other threads can do before it
touches what its next action touches. What they can do is computed with that thread standing still,
and rather too much than too little. What is left out by that has the same ends, and the same
hangs, as what is tried.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from tests.hunt.interleavings import JUNK, Undecided, Value

ABSENT = -1
"""What a packet holds that has not come; values are above 0."""


class Act(NamedTuple):
    """One action of a thread; what it means is said in :meth:`Machine._enabled` and ``_do``.

    ``key``: what it touches beside memory, if that makes a difference to other threads.
    """

    kind: str
    at: int = 0
    number: int = 0
    sources: tuple[int, ...] = ()
    targets: tuple[int, ...] = ()
    key: int | None = None


State = tuple[tuple[int, ...], tuple[object, ...], tuple[int, ...], tuple[Value, ...]]
"""How far each thread is; what it holds; counters; memory."""


Ends = tuple[bool, set[tuple[Value, ...]], set[tuple[int, ...]]]
"""Whether some run hangs; memory, and counters, at the ends of the others."""


class Machine:
    """Threads, their counters and their memory.

    Attributes:
        spoils: per cell, the cells that a store into it spoils (a packet and what lies beneath it).
    """

    def __init__(
        self,
        threads: list[list[Act]],
        counters: list[int],
        memory: list[Value],
        packets: set[int],
        spoils: dict[int, tuple[int, ...]],
    ) -> None:
        self.threads = threads
        self.packets = packets
        self.spoils = spoils
        self.start: State = (
            (0,) * len(threads),
            (None,) * len(threads),
            tuple(counters),
            tuple(memory),
        )
        self.touches = [[self._touched(act) for act in thread] for thread in threads]
        self.last: dict[int, dict[int, list[int]]] = {}
        for number, thread in enumerate(self.touches):
            for at, touched in enumerate(thread):
                for cell, writes in touched.items():
                    of_cell = self.last.setdefault(cell, {}).setdefault(number, [-1, -1])
                    of_cell[0] = at
                    if writes:
                        of_cell[1] = at
        self.race = ""

    def _touched(self, act: Act) -> dict[int, bool]:
        touched: dict[int, bool] = {}
        for cells, writes in ((act.sources, False), (act.targets, True)):
            for cell in cells:
                touched[cell] = writes
                if cell in self.packets:
                    touched |= dict.fromkeys(self.spoils.get(cell, ()), writes)
        if act.key is not None:
            touched[-1 - act.key] = True
        return touched

    def explore(self, most_states: int, reduce: bool = True) -> Ends:
        """Whether some run hangs; memory at the ends of all runs; counters there.

        Where ``reduce`` is off, every thread that can go on is tried in every state.

        Raises:
            Undecided: there are more than ``most_states`` states.
        """
        hangs = False
        ends: set[tuple[Value, ...]] = set()
        counters: set[tuple[int, ...]] = set()
        seen: set[State] = set()
        todo = [self.start]
        while todo:
            state = todo.pop()
            while True:
                ready = [n for n in range(len(self.threads)) if self._enabled(state, n)]
                alone = None
                if reduce:
                    alone = next((n for n in ready if not self._rivals(state, n)), None)
                if reduce and alone is None:
                    alone = next((n for n in ready if not self._meets(state, n)), None)
                if alone is None:
                    break
                state = self._do(state, alone)
            if not ready:
                if all(at == len(t) for at, t in zip(state[0], self.threads, strict=True)):
                    ends.add(state[3])
                    counters.add(state[2])
                else:
                    hangs = True
                continue
            if state in seen:
                continue
            seen.add(state)
            if len(seen) > most_states:
                raise Undecided
            self._notice(state, ready)
            todo += [self._do(state, number) for number in ready]
        return hangs, ends, counters

    def sample(self, count: int, seed: int) -> Ends:
        """As :meth:`explore`, of so many runs drawn at random."""
        draw = random.Random(seed)
        hangs = False
        ends: set[tuple[Value, ...]] = set()
        counters: set[tuple[int, ...]] = set()
        for turn in range(count):
            state = self.start
            priority = [draw.random() for _ in self.threads]
            while True:
                ready = [n for n in range(len(self.threads)) if self._enabled(state, n)]
                if not ready:
                    break
                one = draw.choice(ready) if turn % 2 else max(ready, key=priority.__getitem__)
                state = self._do(state, one)
            if all(at == len(t) for at, t in zip(state[0], self.threads, strict=True)):
                ends.add(state[3])
                counters.add(state[2])
            else:
                hangs = True
        return hangs, ends, counters

    def _enabled(self, state: State, number: int) -> bool:
        where, held, counters, memory = state
        at = where[number]
        if at == len(self.threads[number]):
            return False
        act = self.threads[number][at]
        if act.kind == "at least":
            return counters[act.at] >= act.number
        if act.kind == "token":
            return counters[act.at] >= held[number]
        if act.kind == "poll":
            return held[number] > 0 or counters[act.at] >= held[number]
        if act.kind == "leave":
            return counters[act.at + 1 + held[number]] == act.number
        if act.kind == "read":
            return not any(memory[cell] == ABSENT for cell in act.sources if cell in self.packets)
        return True

    def _do(self, state: State, number: int) -> State:
        where, held, counters, memory = state
        act = self.threads[number][where[number]]
        moved = (*where[:number], where[number] + 1, *where[number + 1 :])
        mine: object = None
        if act.kind == "raise":
            counters = _put(counters, act.at, counters[act.at] + 1)
        elif act.kind == "ticket":
            counters = _put(counters, act.at, counters[act.at] + 1)
            mine = counters[act.at]
        elif act.kind == "load":
            mine = counters[act.at]
        elif act.kind == "store":
            assert isinstance(held[number], int)
            mine = held[number] + 1
            counters = _put(counters, act.at, mine)
        elif act.kind == "acquire":
            mine = counters[act.at]
            counters = _put(counters, act.at, counters[act.at] - 1)
        elif act.kind == "arrive":
            index = (counters[act.at] + 1) % 3
            counters = _put(counters, act.at + 1 + (index + 1) % 3, 0)
            counters = _put(counters, act.at + 1 + index, counters[act.at + 1 + index] + 1)
            mine = index
        elif act.kind == "leave":
            counters = _put(counters, act.at, held[number])
        elif act.kind == "read":
            total: Value = 0
            for cell in act.sources:
                value = memory[cell]
                total = JUNK if value is JUNK or total is JUNK else total + value
            mine = total
        elif act.kind == "write":
            cells = list(memory)
            for cell in act.targets:
                for other in self.spoils.get(cell, ()):
                    cells[other] = ABSENT if other in self.packets else JUNK
                cells[cell] = held[number]
            memory = tuple(cells)
        holding = (*held[:number], mine, *held[number + 1 :])
        return moved, holding, counters, memory

    def _rivals(self, state: State, number: int) -> bool:
        """Whether any other thread has still to touch what the thread's next action touches."""
        where = state[0]
        for cell, writes in self.touches[number][where[number]].items():
            for other, last in self.last[cell].items():
                if other != number and where[other] <= last[0 if writes else 1]:
                    return True
        return False

    def _meets(self, state: State, number: int) -> bool:
        """Whether others may touch that before the thread goes on: rather yes than no."""
        touched = self.touches[number][state[0][number]]
        ahead = _Ahead(self, state)
        going = True
        while going:
            going = False
            for other, thread in enumerate(self.threads):
                if other == number:
                    continue
                while ahead.where[other] < len(thread) and ahead.may(other):
                    for cell, writes in self.touches[other][ahead.where[other]].items():
                        if cell in touched and (writes or touched[cell]):
                            return True
                    ahead.go(other)
                    going = True
        return False

    def _notice(self, state: State, ready: list[int]) -> None:
        """Remember a race: two threads that could both go on, and meet in memory."""
        where = state[0]
        for one in ready:
            for two in ready:
                if one < two and not self.race:
                    mine, theirs = (self.touches[n][where[n]] for n in (one, two))
                    met = [c for c in mine if c >= 0 and c in theirs and (mine[c] or theirs[c])]
                    if met:
                        self.race = f"threads {one} and {two} meet at cell {met[0]}"


class _Ahead:
    """What threads could still do, without values: what they wait for is rather there than not.

    Where the order of several threads makes a difference (acts with a key) nobody waits.
    """

    def __init__(self, machine: Machine, state: State) -> None:
        self.machine = machine
        self.where = list(state[0])
        self.held = list(state[1])
        self.counters = list(state[2])
        self.memory = state[3]
        self.came: set[int] = set()

    def may(self, number: int) -> bool:
        """Whether a thread may go on."""
        act = self.machine.threads[number][self.where[number]]
        held = self.held[number]
        if act.kind == "at least":
            return self.counters[act.at] >= act.number
        if act.kind == "read":
            packets = [cell for cell in act.sources if cell in self.machine.packets]
            return all(self.memory[c] != ABSENT or c in self.came for c in packets)
        if act.key is not None:
            return True
        if act.kind == "token":
            return self.counters[act.at] >= held
        if act.kind == "poll":
            return held > 0 or self.counters[act.at] >= held
        if act.kind == "leave":
            return self.counters[act.at + 1 + held] >= act.number
        return True

    def go(self, number: int) -> None:
        """Let a thread do its next act."""
        act = self.machine.threads[number][self.where[number]]
        self.where[number] += 1
        counters = self.counters
        if act.kind in {"raise", "ticket"}:
            counters[act.at] += 1
            self.held[number] = counters[act.at]
        elif act.kind == "acquire":
            self.held[number] = counters[act.at]
            counters[act.at] -= 1
        elif act.kind == "arrive":
            index = (counters[act.at] + 1) % 3
            counters[act.at + 1 + (index + 1) % 3] = 0
            counters[act.at + 1 + index] += 1
            self.held[number] = index
        elif act.kind == "leave" and act.key is None:
            counters[act.at] = self.held[number]
        self.came |= {cell for cell in act.targets if cell in self.machine.packets}


def _put(values: tuple[int, ...], at: int, value: object) -> tuple[int, ...]:
    return (*values[:at], value, *values[at + 1 :])  # type: ignore[return-value]
